/** What a task of the test kit leaves in the background, and how it is ended. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as Receipts from "../../src/Receipts.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import type { SpawnOptions } from "../../src/Process.ts"
import * as Testing from "../../src/Testing.ts"
import { joined, kit, python } from "../support/kit.ts"

describe("tasks of the test kit", () => {
  it.effect("a background effect ends with its interpreter, and late output without a reader is counted", () =>
    Effect.suspend(() => {
      const [flooded, more] = [Deferred.makeUnsafe<void>(), Deferred.makeUnsafe<void>()]
      let interrupted = false
      const script: Testing.Script = ({ background, code, stdout }) => {
        if (code === "die") return Testing.killedBy("SIGKILL")
        const late = Effect.gen(function* () {
          yield* stdout(Buffer.alloc(300 * 1024))
          yield* Deferred.succeed(flooded, undefined)
          yield* Deferred.await(more)
          yield* stdout("more")
          return yield* Effect.never
        }).pipe(
          Effect.onInterrupt(() =>
            Effect.sync(() => {
              interrupted = true
            })
          )
        )
        return Effect.as(background(Effect.andThen(Effect.yieldNow, late)), Testing.ends())
      }
      return Effect.gen(function* () {
        const it = yield* Sandbox.use((sandbox) => sandbox.session())
        const { receipt } = yield* it.exec(python("begin"))
        const { sequence } = receipt
        yield* Deferred.await(flooded)
        const [first] = yield* it.output.pipe(Stream.take(1), Stream.runCollect)
        assert.deepStrictEqual(first, { _tag: "Stdout", sequence, bytes: Buffer.alloc(256 * 1024) })
        yield* Deferred.succeed(more, undefined)
        const rest = yield* it.output.pipe(Stream.take(2), Stream.runCollect)
        assert.deepStrictEqual(rest, [
          { _tag: "Dropped", bytes: 44 * 1024 },
          { _tag: "Stdout", sequence, bytes: Buffer.from("more") }
        ])
        assert.isFalse(interrupted)
        yield* Effect.flip(it.exec(python("die")))
        assert.isTrue(interrupted)
      }).pipe(kit({ script }))
    })
  )

  it.effect(
    "a task that a limit, a signal or its caller ends gets a signal first, keeps its interpreter, and ends with its background",
    () =>
      Effect.suspend(() => {
        const heard: Array<string> = []
        let behind = 0
        const script: Testing.Script = ({ argv, background, code, state, trap }) =>
          Effect.gen(function* () {
            state.set("runs", Number(state.get("runs") ?? 0) + 1)
            if (code === "count") return Testing.gives(Number(state.get("runs")))
            if (code === "long") return Testing.prints("x".repeat(100))
            const woken = yield* Deferred.make<void>()
            trap((signal) => {
              heard.push(signal)
              return code !== "deaf" && (code === "stubborn" || Deferred.doneUnsafe(woken, Effect.void))
            })
            behind++
            yield* background(Effect.onInterrupt(Effect.never, () => Effect.sync(() => behind--)))
            if (argv?.[0] === "crash") return Testing.killedBy("SIGSEGV")
            yield* Deferred.await(woken)
            return Testing.exits(7)
          })
        return Effect.gen(function* () {
          const it = yield* Sandbox.use((sandbox) => sandbox.session())
          const receipts = yield* Receipts.Memory
          const ends = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
            Effect.gen(function* () {
              const fiber = yield* Effect.forkChild(Effect.exit(effect), { startImmediately: true })
              yield* joined(fiber, 60)
              const { exitCode, signal, state, stopReason } = (yield* receipts.all).at(-1) ?? {}
              return [exitCode, signal, state, stopReason, heard.splice(0).join(" "), behind]
            })
          const timed = { limits: { timeMs: 10_000 } }
          assert.deepStrictEqual(
            yield* ends(it.exec({ ...python("long"), limits: { output: "fail", outputBytes: 10 } })),
            [130, null, "kept", "output-limit", "", 0]
          )
          for (const [code, ...expected] of [
            ["deaf", 130, null, "kept", "time-limit", "SIGINT", 0],
            ["handles", 7, null, "kept", "time-limit", "SIGINT", 0],
            ["stubborn", 137, "SIGKILL", "reset", "time-limit", "SIGINT", 0]
          ] as const) {
            const count = (yield* it.exec(python("count"))).result?.json
            assert.deepStrictEqual(yield* ends(it.exec({ ...python(code), ...timed })), expected, code)
            const after = (yield* it.exec(python("count"))).result?.json
            assert.strictEqual(after, code === "stubborn" ? 1 : Number(count) + 2, code)
          }
          const closed = (code: string, options: SpawnOptions = {}) => Effect.scoped(it.spawn(code, options))
          for (const [code, ...expected] of [
            ["deaf", 143, "SIGTERM", "kept", "failed", "SIGTERM", 0],
            ["handles", 7, null, "kept", "failed", "SIGTERM SIGHUP", 0],
            ["stubborn", 137, "SIGKILL", "kept", "failed", "SIGTERM SIGHUP", 0]
          ] as const) {
            const options = code === "deaf" ? {} : { pty: { cols: 80, rows: 24 } }
            assert.deepStrictEqual(yield* ends(closed(code, options)), expected, code)
          }
          assert.deepStrictEqual(yield* ends(it.run("deaf", timed)), [130, "SIGINT", "kept", "time-limit", "SIGINT", 0])
          // A task that ends by itself leaves its background running.
          assert.deepStrictEqual(yield* ends(it.run(["crash"])), [139, "SIGSEGV", "kept", "failed", "", 1])
        }).pipe(
          Effect.provide(Testing.layer({ script }).pipe(Layer.provideMerge(Receipts.layerMemory()))),
          Effect.scoped
        )
      })
  )
})
