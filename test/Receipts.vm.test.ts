/** Which receipts a session publishes. */
import { assert, layer } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import * as Receipts from "../src/Receipts.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { qemus } from "./support/processes.ts"

/** The receipts published for a session. */
const published = (id: string) =>
  Receipts.Memory.use((memory) => Effect.map(memory.all, (all) => all.filter((one) => one.session === id)))

const session = Sandbox.use((sandbox) => sandbox.session())

layer(Sandbox.layer.pipe(Layer.provideMerge(Receipts.layerMemory())), {
  excludeTestServices: true,
  timeout: "240 seconds"
})("Receipts", (it) => {
  it.effect("are published for a success and each failure, equal to what the caller gets, in order", () =>
    Effect.gen(function* () {
      const it = yield* session
      const done = yield* it.exec({ language: "bash", code: "echo 1" })
      const codes = ["exit 3", "no-such-command", "echo ls > /tmp/x; /tmp/x"]
      const failed = yield* Effect.forEach(codes, (code) => Effect.flip(it.exec({ language: "bash", code })))
      const limited = yield* Effect.flip(it.exec({ language: "bash", code: "sleep 9", limits: { timeMs: 200 } }))
      yield* Effect.flip(it.exec({ language: "bash", code: "" }))
      const all = yield* published(it.id)
      assert.deepStrictEqual(
        all.map((one) => [one.sequence, one.outcome, one.stopReason]),
        [
          [1, "Success", "completed"],
          [2, "TaskFailed", "failed"],
          [3, "UnsupportedCommand", "unsupported"],
          [4, "PermissionDenied", "permission"],
          [5, "LimitExceeded", "time-limit"]
        ]
      )
      const given = [...failed, limited].map((error) => ("receipt" in error ? error.receipt : undefined))
      assert.deepStrictEqual([done.receipt, ...given], all)
    }).pipe(Effect.scoped)
  )

  it.effect("are published for cancelled executions: interrupted, or whose stream is no longer read", () =>
    Effect.gen(function* () {
      const it = yield* session
      const endless = { language: "python", code: "print('on', flush=True)\nwhile True: pass" } as const
      yield* it.stream(endless).pipe(Stream.take(1), Stream.runDrain)
      const writes = yield* Deferred.make<void>()
      const fiber = yield* Effect.forkChild(
        it.stream(endless).pipe(Stream.runForEach(() => Deferred.succeed(writes, undefined)))
      )
      yield* Deferred.await(writes)
      yield* Fiber.interrupt(fiber)
      yield* it.exec({ language: "python", code: "1" })
      const all = yield* published(it.id)
      assert.deepStrictEqual(
        all
          .map((one) => [one.sequence, one.outcome, one.stopReason, one.state, one.exitCode, one.usage.cpuMs])
          .slice(0, 2),
        [
          [1, "Cancelled", "cancelled", null, null, null],
          [2, "Cancelled", "cancelled", null, null, null]
        ]
      )
      assert.deepStrictEqual([all.length, all[2]?.outcome], [3, "Success"])
      assert.strictEqual(all[0]?.output.stdoutBytes, 3)
    }).pipe(Effect.scoped)
  )

  it.effect("are published for an execution whose outcome is unknown because its VM was lost", () =>
    Effect.gen(function* () {
      const before = new Set(qemus())
      const it = yield* session
      const pid = qemus().find((one) => !before.has(one)) as number
      yield* it.stream({ language: "bash", code: "echo on; sleep 60" }).pipe(
        Stream.runForEach(() => Effect.sync(() => process.kill(pid, "SIGKILL"))),
        Effect.exit
      )
      yield* Effect.exit(it.exec({ language: "bash", code: "echo never" }))
      const all = yield* published(it.id)
      assert.deepStrictEqual(
        all.map((one) => [one.outcome, one.stopReason, one.state]),
        [["SandboxError", "sandbox-failure", "closed"]]
      )
    }).pipe(Effect.scoped)
  )
})
