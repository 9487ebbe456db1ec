/** Nothing leaks, at whatever step a caller is interrupted: properties over the test kit, where a session takes a millisecond. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { Capacity } from "../src/Capacity.ts"
import { Pool } from "../src/Pool.ts"
import { Sandbox } from "../src/Sandbox.ts"
import * as Testing from "../src/Testing.ts"

const between = (minimum: number, maximum: number) => Schema.Int.check(Schema.isBetween({ minimum, maximum }))

/** What a caller does, what its task does, and when the caller is interrupted. */
const Call = Schema.Struct({
  what: Schema.Literals(["run", "stream", "session", "spawn", "files", "parked"]),
  does: Schema.Literals(["ends", "works", "writes", "hangs", "dies", "stalls", "violates", "refuses"]),
  /** Before the next caller starts: ms by which the test clock advances, and how often the other fibers may run. */
  afterMs: between(0, 30),
  turns: between(0, 25),
  /** The caller is interrupted after this many ms, or never if `null`. */
  leavesMs: Schema.NullOr(between(0, 60))
})

const replies: Readonly<Record<typeof Call.Type.does, (task: Testing.Task) => ReturnType<Testing.Script>>> = {
  ends: () => Testing.prints("x"),
  works: () => Effect.as(Effect.sleep("20 millis"), Testing.ends()),
  // More than a stream's credit, so that it waits for its reader.
  writes: (task) => Effect.as(task.stdout(Buffer.alloc(600_000)), Testing.ends()),
  hangs: () => Testing.hangs,
  dies: () => Testing.dies(),
  stalls: () => Testing.stalls,
  violates: () => Testing.violates,
  refuses: () => Testing.refuses("failed", "it could not")
}
const script: Testing.Script = (task) => {
  const does = task.argv?.[0] ?? task.code
  return Object.hasOwn(replies, does) ? replies[does as keyof typeof replies](task) : Testing.ends()
}

const act = (call: typeof Call.Type) =>
  Effect.gen(function* () {
    const sandbox = yield* Sandbox
    const request = { language: "python", code: call.does, limits: { timeMs: 50 } } as const
    switch (call.what) {
      case "run":
        return yield* sandbox.run(request)
      case "stream":
        return yield* Stream.runForEach(sandbox.stream(request), () => Effect.yieldNow)
      case "session": {
        const session = yield* sandbox.session()
        yield* session.exec({ language: "bash", code: "ends" })
        return yield* session.exec(request)
      }
      case "parked": {
        const session = yield* sandbox.session({ parkAfterMs: 3 })
        yield* session.exec({ language: "bash", code: "ends" })
        yield* Effect.sleep("10 millis")
        yield* Effect.ignore(session.files.write("x", "x"))
        yield* session.park
        return yield* session.exec(request)
      }
      case "spawn": {
        const session = yield* sandbox.session()
        const started = yield* session.spawn([call.does])
        yield* Stream.runDrain(started.stdout)
        return yield* started.exit
      }
      case "files": {
        const { files } = yield* sandbox.session()
        yield* files.write("big", Buffer.alloc(300_000))
        return yield* files.read("big")
      }
    }
  }).pipe(Effect.scoped, Effect.exit)

const turns = (count: number) => Effect.forEach(Array.from({ length: count }), () => Effect.yieldNow, { discard: true })

/** Lets the other fibers run until `holds` gives true. */
const settled = (holds: Effect.Effect<boolean>, what: () => string) =>
  Effect.gen(function* () {
    for (let n = 0; n < 3000; n++) {
      if (yield* holds) return
      yield* Effect.yieldNow
      if (n % 10 === 9) yield* TestClock.adjust("50 millis")
    }
    assert.fail(what())
  })

describe("lifetime", () => {
  it.effect.prop(
    "callers interrupted at any step leave no machine and no reservation, with a pool or without",
    [Schema.Array(Call).check(Schema.isMaxLength(7)), between(0, 2), between(1, 3), between(0, 15), between(0, 30)],
    ([calls, size, vms, delayMs, last]) =>
      Effect.gen(function* () {
        const scope = yield* Scope.make()
        const kit = Testing.layer({
          script,
          pool: { size },
          capacity: { vms: vms + size, maxWaitMs: 40 },
          start: (vm) => ({
            delayMs: (vm * 7) % (delayMs + 1),
            ...(vm % 5 === 0 && { fails: "no luck" }),
            ...(vm % 3 === 0 && { parkFails: "no room" }),
            ...(vm % 4 === 0 && { wakeFails: "no luck" }),
            ...(vm % 7 === 0 && { refuses: "entropy" as const })
          })
        })
        const context = yield* Layer.buildWithScope(kit, scope)
        yield* Effect.gen(function* () {
          const machines = yield* Testing.Machines
          const capacity = yield* Capacity
          const pool = yield* Pool
          const fibers: Array<Fiber.Fiber<unknown>> = []
          for (const call of calls) {
            const leaving = Effect.sleep(call.leavesMs ?? 0)
            const calling = call.leavesMs === null ? act(call) : Effect.raceFirst(act(call), leaving)
            fibers.push(yield* Effect.forkDetach(calling, { startImmediately: call.turns % 2 === 0 }))
            yield* turns(call.turns)
            yield* TestClock.adjust(call.afterMs)
          }
          yield* turns(last)
          // Interruption waits a while for a process in a guest that no longer answers.
          const leaving = yield* Effect.forkDetach(Fiber.interruptAll(fibers), { startImmediately: true })
          yield* settled(
            Effect.sync(() => leaving.pollUnsafe() !== undefined),
            () => "a caller that was interrupted did not end"
          )
          // Only the pool's machines and reservations are left, and no caller waits.
          let told = ""
          const onlyPool = Effect.gen(function* () {
            const { held, waiting } = yield* capacity.stats
            const live = (yield* machines.live).length
            const [idle] = yield* pool.stats
            const own = (idle?.ready ?? 0) + (idle?.making ?? 0)
            told = `${live} machines, ${held.vms} reservations, ${waiting} waiting, the pool has ${own}`
            return waiting === 0 && held.vms <= own && live <= own && (idle === undefined || live >= idle.ready)
          })
          yield* settled(onlyPool, () => told)
          yield* turns(last)
          yield* Scope.close(scope, Exit.void)
          assert.deepStrictEqual(yield* machines.live, [])
          assert.deepStrictEqual((yield* capacity.stats).held.vms, 0)
        }).pipe(Effect.provide(context))
      }),
    { arbitrary: { runs: 200 }, timeout: 120_000 }
  )

  it.effect("a caller interrupted at any step of a claim leaves the pool full, and its clone dead", () =>
    Effect.gen(function* () {
      let given = 0
      for (let steps = 0; steps < 80; steps++) {
        yield* Effect.gen(function* () {
          const machines = yield* Testing.Machines
          const pool = yield* Pool
          const full = Effect.map(pool.stats, ([it]) => it?.ready === 1)
          yield* settled(full, () => "the pool was never full")
          const calling = yield* Effect.forkChild(Sandbox.use((it) => Effect.scoped(it.session())))
          yield* turns(steps)
          yield* Fiber.interrupt(calling)
          yield* settled(full, () => "the pool was not filled again")
          const live = yield* machines.live
          assert.strictEqual(live.length, 1, `left after ${steps} turns: ${live.join()}`)
          if (live[0] !== 1) given++
        }).pipe(Effect.provide(Testing.layer({ pool: { size: 1 } })), Effect.scoped)
      }
      // Some were interrupted before they reached the pool, most after.
      assert.isAbove(given, 20)
      assert.isBelow(given, 80)
    })
  )

  it.effect("a clone whose template was rebuilt is destroyed when claimed, and a new one is made", () =>
    Effect.gen(function* () {
      const machines = yield* Testing.Machines
      const pool = yield* Pool
      const { run } = yield* Sandbox
      const full = Effect.map(pool.stats, ([it]) => it?.ready === 2)
      yield* settled(full, () => "the pool was never full")
      yield* machines.remakeTemplate
      const { receipt } = yield* run({ language: "python", code: "1" })
      assert.deepStrictEqual(receipt.startPath, {
        kind: "restore",
        missed: [{ kind: "pool", reason: "none of the pool's 2 clones is ready" }]
      })
      assert.deepStrictEqual(
        (yield* machines.live).filter((vm) => vm <= 2),
        []
      )
      yield* settled(full, () => "the pool was not filled again")
      assert.strictEqual((yield* run({ language: "python", code: "1" })).receipt.startPath.kind, "pool")
    }).pipe(Effect.provide(Testing.layer({ pool: { size: 2 } })), Effect.scoped)
  )

  it.effect("a hundred runs at once with room for four: all succeed, in turn, and all reservations are released", () =>
    Effect.gen(function* () {
      const sandbox = yield* Sandbox
      const machines = yield* Testing.Machines
      let most = 0
      const running = yield* Effect.forEach(
        Array.from({ length: 100 }),
        () => sandbox.run({ language: "python", code: "works" }),
        { concurrency: "unbounded" }
      ).pipe(Effect.forkChild({ startImmediately: true }))
      while (running.pollUnsafe() === undefined) {
        most = Math.max(most, (yield* machines.live).length)
        yield* TestClock.adjust("5 millis")
      }
      const results = yield* Fiber.join(running)
      assert.strictEqual(results.filter(({ receipt }) => receipt.outcome === "Success").length, 100)
      assert.strictEqual(most, 4)
      const { held, waiting } = yield* Capacity.use((it) => it.stats)
      assert.deepStrictEqual([held.vms, waiting, (yield* machines.live).length], [0, 0, 0])
    }).pipe(Effect.provide(Testing.layer({ script, capacity: { vms: 4 } })), Effect.scoped)
  )
})
