import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { TestClock } from "effect/testing"
import * as Usage from "../../src/session/Usage.ts"

const make = Effect.gen(function* () {
  const log: Array<string> = []
  const usage = yield* Usage.make
  yield* usage
    .idleFor(1000, () => void log.push("marked"))
    .pipe(Effect.andThen(Effect.sync(() => void log.push("closed"))), Effect.forkScoped)
  const use = Effect.acquireRelease(Effect.sync(usage.enter), () => Effect.sync(usage.leave))
  const during = <A, E>(effect: Effect.Effect<A, E>) => Effect.scoped(Effect.andThen(use, effect))
  return { during, log, usage }
})

describe("Usage", () => {
  it.effect("closes once after the idle time, and not a millisecond before", () =>
    Effect.gen(function* () {
      const { log } = yield* make
      yield* TestClock.adjust(999)
      assert.deepStrictEqual(log, [])
      yield* TestClock.adjust(1)
      assert.deepStrictEqual(log, ["marked", "closed"])
      yield* TestClock.adjust(10_000)
      assert.deepStrictEqual(log, ["marked", "closed"])
    })
  )

  it.effect("counts from the end of the last use, also of a failed or interrupted one", () =>
    Effect.gen(function* () {
      const { during, log } = yield* make
      yield* TestClock.adjust(600)
      yield* during(Effect.void)
      yield* TestClock.adjust(600)
      yield* Effect.exit(during(Effect.fail("no")))
      yield* TestClock.adjust(600)
      const use = yield* Effect.forkChild(during(Effect.never), { startImmediately: true })
      yield* TestClock.adjust(600)
      yield* Fiber.interrupt(use)
      yield* TestClock.adjust(999)
      assert.deepStrictEqual(log, [])
      yield* TestClock.adjust(1)
      assert.deepStrictEqual(log, ["marked", "closed"])
    })
  )

  it.effect("`missing` is the time until it has been idle long enough", () =>
    Effect.gen(function* () {
      const { during, usage } = yield* make
      assert.strictEqual(usage.missing(700), 700)
      yield* TestClock.adjust(300)
      assert.deepStrictEqual([usage.missing(700), usage.missing(300)], [400, 0])
      const use = yield* Effect.forkChild(during(Effect.never), { startImmediately: true })
      assert.deepStrictEqual([usage.inUse(), usage.missing(300)], [true, 300])
      yield* Fiber.interrupt(use)
      assert.deepStrictEqual([usage.inUse(), usage.missing(700)], [false, 700])
      yield* TestClock.adjust(300)
      usage.touch()
      assert.strictEqual(usage.missing(700), 700)
    })
  )

  it.effect("is not idle until the last of several uses ends, however long it lasts", () =>
    Effect.gen(function* () {
      const { during, log } = yield* make
      const long = yield* Effect.forkChild(during(Effect.sleep(50_000)), { startImmediately: true })
      yield* during(Effect.void)
      yield* TestClock.adjust(50_000)
      yield* Fiber.join(long)
      yield* TestClock.adjust(999)
      assert.deepStrictEqual(log, [])
      yield* TestClock.adjust(1)
      assert.deepStrictEqual(log, ["marked", "closed"])
    })
  )
})
