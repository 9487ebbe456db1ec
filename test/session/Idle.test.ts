import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { TestClock } from "effect/testing"
import * as Idle from "../../src/session/Idle.ts"

const make = Effect.gen(function* () {
  const log: Array<string> = []
  const idle = yield* Idle.make(
    1000,
    () => void log.push("marked"),
    Effect.sync(() => void log.push("closed"))
  )
  const during = <A, E>(effect: Effect.Effect<A, E>) => Effect.scoped(Effect.andThen(idle.use, effect))
  return { during, idle, log }
})

describe("Idle", () => {
  it.effect("closes once when nothing was used for so long, and not a millisecond before", () =>
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

  it.effect("counts from the end of the last use, failed or interrupted ones too", () =>
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

  it.effect("a use ends once, by itself or with its scope", () =>
    Effect.gen(function* () {
      const { idle, log } = yield* make
      const scope = yield* Scope.make()
      const end = yield* Scope.provide(idle.use, scope)
      const other = yield* idle.use
      yield* TestClock.adjust(5000)
      yield* end
      yield* TestClock.adjust(500)
      yield* Scope.close(scope, Exit.void)
      yield* end
      yield* TestClock.adjust(5000)
      assert.deepStrictEqual(log, [])
      yield* other
      yield* TestClock.adjust(1000)
      assert.deepStrictEqual(log, ["marked", "closed"])
    })
  )

  it.effect("is not idle while one of several uses goes on, however long", () =>
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
