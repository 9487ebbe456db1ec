/** Parks sessions of the test kit: when a session is parked, what wakes it, and what happens when either fails. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Metric from "effect/Metric"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { Capacity } from "../../src/Capacity.ts"
import { Sandbox, type SessionOptions } from "../../src/Sandbox.ts"
import type { SandboxError } from "../../src/SandboxError.ts"
import type { Session } from "../../src/Session.ts"
import * as Telemetry from "../../src/Telemetry.ts"
import * as Testing from "../../src/Testing.ts"

const script: Testing.Script = (task) =>
  Effect.gen(function* () {
    if (task.code === "count") task.state.set("n", Number(task.state.get("n") ?? 0) + 1)
    if (task.code === "slow") yield* Effect.sleep("10 seconds")
    if (task.argv?.[0] === "server") return yield* Effect.never
    return Testing.prints(`${String(task.state.get("n"))} ${task.env["A"]}`)
  })

const open = (options: SessionOptions = {}) =>
  Sandbox.use((sandbox) => sandbox.session({ idleMs: 86_400_000, env: { A: "1" }, ...options }))
const run = (session: Session, code: string) => session.exec({ language: "python", code })
const live = Testing.Machines.use((it) => Effect.map(it.live, (all) => all.length))
const charged = Capacity.use((it) => Effect.map(it.stats, (stats) => stats.held.vms))
const reasonOf = <A, R>(effect: Effect.Effect<A, unknown, R>) =>
  Effect.map(Effect.flip(effect), (error) => (error as SandboxError).reason)
const countOf = (counter: Metric.Counter<number>, result: string) =>
  Effect.map(Metric.value(Metric.withAttributes(counter, { result })), ({ count }) => count)

/** Advances the test clock until the effect is done. */
const advancing = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const fiber = yield* Effect.forkChild(effect, { startImmediately: true })
    while (fiber.pollUnsafe() === undefined) yield* TestClock.adjust(5)
    return yield* Fiber.join(fiber)
  })

/** Closes the scope and checks that no machine and no capacity are in use any more. */
const closing = Effect.fnUntraced(function* (scope: Scope.Closeable) {
  yield* Scope.close(scope, Exit.void)
  assert.deepStrictEqual([yield* live, yield* charged], [0, 0])
})

describe("a session that may be parked", () => {
  it.effect("is parked when nothing has used it for `parkAfterMs`, and the next call wakes it, as it was", () =>
    Effect.gen(function* () {
      const session = yield* open({ parkAfterMs: 1000 })
      assert.strictEqual((yield* run(session, "count")).stdout, "1 1")
      yield* session.files.write("a", "x")
      yield* TestClock.adjust(999)
      assert.deepStrictEqual([yield* live, yield* charged], [1, 1])
      yield* TestClock.adjust(1)
      assert.deepStrictEqual([yield* live, yield* charged], [0, 0])
      assert.strictEqual((yield* Metric.value(Telemetry.sessionsParked)).value, 1)
      const woken = yield* run(session, "count")
      assert.strictEqual(woken.stdout, "2 1")
      assert.strictEqual(woken.receipt.timing.wakeMs, 0)
      assert.strictEqual(woken.receipt.sequence, 2)
      assert.strictEqual((yield* run(session, "look")).receipt.timing.wakeMs, null)
      assert.deepStrictEqual([yield* live, yield* charged], [1, 1])
      assert.strictEqual((yield* Metric.value(Telemetry.sessionsParked)).value, 0)
      yield* TestClock.adjust(1000)
      assert.strictEqual(yield* live, 0)
      assert.strictEqual(yield* session.files.readText("a"), "x")
      assert.strictEqual(yield* live, 1)
      yield* session.close
      assert.deepStrictEqual([yield* live, yield* charged], [0, 0])
    }).pipe(Effect.provide(Testing.layer({ script })))
  )

  it.effect("is in use while it executes or a program runs, and is not parked unless that is requested", () =>
    Effect.gen(function* () {
      const session = yield* open({ parkAfterMs: 1000 })
      const slow = yield* Effect.forkScoped(run(session, "slow"), { startImmediately: true })
      yield* TestClock.adjust(5000)
      assert.deepStrictEqual([yield* live, yield* session.park], [1, false])
      yield* TestClock.adjust(5000)
      yield* Fiber.join(slow)
      const inside = yield* Scope.make()
      const server = yield* Scope.provide(session.spawn(["server"]), inside)
      yield* TestClock.adjust(5000)
      assert.deepStrictEqual([yield* live, yield* session.park], [1, false])
      // A program that has ended does not count as use, although its handle is still there.
      yield* server.signal("SIGKILL")
      yield* server.exit
      assert.isTrue(yield* session.park)
      assert.isTrue(yield* session.park)
      assert.strictEqual(yield* live, 0)
      const another = yield* open()
      yield* TestClock.adjust("1 hour")
      assert.strictEqual(yield* live, 1)
      assert.strictEqual((yield* run(another, "look")).receipt.timing.wakeMs, null)
      assert.strictEqual((yield* reasonOf(Effect.andThen(session.close, session.park)))._tag, "SessionClosed")
      assert.strictEqual((yield* reasonOf(run(session, "look")))._tag, "SessionClosed")
      yield* Scope.close(inside, Exit.void)
    }).pipe(Effect.provide(Testing.layer({ script })))
  )

  it.effect("stays awake when it is used meanwhile, or when the call of `park` is interrupted", () =>
    Effect.gen(function* () {
      const before = yield* countOf(Telemetry.parks, "abandoned")
      const session = yield* advancing(open({ parkAfterMs: 1000 }))
      yield* run(session, "count")
      yield* TestClock.adjust(1010)
      const { started } = yield* Testing.Machines
      const used = yield* run(session, "count")
      assert.deepStrictEqual([used.stdout, used.receipt.timing.wakeMs], ["2 1", 0])
      const parking = yield* Effect.forkScoped(session.park, { startImmediately: true })
      yield* run(session, "count")
      assert.isFalse(yield* Fiber.join(parking))
      const leaving = yield* Effect.forkScoped(session.park, { startImmediately: true })
      yield* TestClock.adjust(10)
      yield* Fiber.interrupt(leaving)
      assert.strictEqual((yield* run(session, "count")).stdout, "4 1")
      assert.strictEqual((yield* countOf(Telemetry.parks, "abandoned")) - before, 3)
      assert.deepStrictEqual([yield* live, yield* charged, yield* started], [1, 1, 1])
    }).pipe(Effect.provide(Testing.layer({ script, start: () => ({ delayMs: 20 }) })))
  )

  it.effect("stays awake when it cannot be saved, and parking is tried again after the same time", () =>
    Effect.gen(function* () {
      const session = yield* open({ parkAfterMs: 1000 })
      yield* run(session, "count")
      const before = yield* countOf(Telemetry.parks, "capture")
      yield* TestClock.adjust(3500)
      assert.strictEqual((yield* countOf(Telemetry.parks, "capture")) - before, 3)
      assert.deepInclude(yield* reasonOf(session.park), { _tag: "SnapshotFailed", kind: "capture", problem: "no room" })
      assert.strictEqual((yield* run(session, "count")).stdout, "2 1")
    }).pipe(Effect.provide(Testing.layer({ script, start: () => ({ parkFails: "no room" }) })))
  )

  it.effect("stays parked when it cannot be woken, and every call fails with the reason", () =>
    Effect.gen(function* () {
      const session = yield* open()
      assert.isTrue(yield* session.park)
      const asked: ReadonlyArray<Effect.Effect<unknown, unknown>> = [
        run(session, "look"),
        session.files.readText("a"),
        session.changes(),
        session.snapshot()
      ]
      for (const call of asked) {
        assert.deepInclude(yield* reasonOf(call), { _tag: "BootFailed", problem: "no luck", retry: "safe" })
      }
      assert.deepStrictEqual([yield* live, yield* charged, yield* session.park], [0, 0, true])
    }).pipe(Effect.provide(Testing.layer({ script, start: () => ({ wakeFails: "no luck" }) })))
  )

  it.effect("waits for capacity of the host when it wakes, once for all calls", () =>
    Effect.gen(function* () {
      const session = yield* open()
      assert.isTrue(yield* session.park)
      const scope = yield* Scope.make()
      yield* Scope.provide(open(), scope)
      const refused = yield* Effect.forkScoped(reasonOf(run(session, "look")), { startImmediately: true })
      yield* TestClock.adjust(5000)
      assert.deepInclude(yield* Fiber.join(refused), { _tag: "CapacityExceeded", waitedMs: 5000, retry: "safe" })
      const askers = yield* Effect.forEach([1, 2, 3], () =>
        Effect.forkScoped(run(session, "count"), { startImmediately: true })
      )
      yield* TestClock.adjust(1000)
      const [first] = askers
      if (first !== undefined) yield* Fiber.interrupt(first)
      yield* Scope.close(scope, Exit.void)
      const results = yield* Effect.forEach(askers.slice(1), Fiber.join)
      assert.deepStrictEqual(
        results.map(({ receipt, stdout }) => [stdout, receipt.timing.wakeMs]),
        [
          ["1 1", 1000],
          ["2 1", 1000]
        ]
      )
      assert.deepStrictEqual([yield* live, yield* charged], [1, 1])
    }).pipe(Effect.provide(Testing.layer({ script, capacity: { vms: 1, maxWaitMs: 5000 } })))
  )

  it.effect("leaves nothing behind when it ends awake, during parking, parked, or during waking", () =>
    Effect.gen(function* () {
      for (const ms of [0, 999, 1005, 1020, 2000]) {
        for (const asks of [false, true]) {
          const scope = yield* Scope.make()
          const session = yield* advancing(Scope.provide(open({ parkAfterMs: 1000 }), scope))
          yield* TestClock.adjust(ms)
          if (asks) {
            yield* Effect.forkIn(run(session, "count"), scope, { startImmediately: true })
            yield* TestClock.adjust(5)
          }
          yield* closing(scope)
        }
      }
      // A parked session counts as idle.
      const session = yield* advancing(open({ parkAfterMs: 1000, idleMs: 5000 }))
      yield* TestClock.adjust(4000)
      assert.deepStrictEqual([yield* live, yield* charged], [0, 0])
      yield* TestClock.adjust(1000)
      const reason = yield* reasonOf(run(session, "look"))
      assert.deepInclude(reason, { _tag: "SessionClosed", problem: "it was idle for 5000 ms" })
    }).pipe(Effect.provide(Testing.layer({ script, start: () => ({ delayMs: 10 }) })))
  )

  it.effect("its output goes to one reader across parking and waking", () =>
    Effect.gen(function* () {
      const session = yield* open()
      const ended = yield* Deferred.make<void>()
      yield* session.output.pipe(
        Stream.runDrain,
        Effect.andThen(Deferred.succeed(ended, undefined)),
        Effect.forkScoped({ startImmediately: true })
      )
      for (let n = 0; n < 3; n++) {
        assert.isTrue(yield* session.park)
        yield* run(session, "count")
      }
      assert.isFalse(yield* Deferred.isDone(ended))
      assert.isTrue(yield* session.park)
      yield* session.close
      yield* Deferred.await(ended)
    }).pipe(Effect.provide(Testing.layer({ script })))
  )
})
