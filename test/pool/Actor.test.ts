import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scheduler from "effect/Scheduler"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import { TestClock } from "effect/testing"
import * as PoolActor from "../../src/pool/Actor.ts"

class NoDisk extends Schema.TaggedError<NoDisk>()("NoDisk", { message: Schema.String }) {}

interface FakeClone {
  readonly number: number
  readonly dead: Deferred.Deferred<string>
}

/** A pool whose clones are numbers, and the set of those that are alive. */
const playPool = Effect.fnUntraced(function* (options: { readonly size: number; readonly fails?: () => boolean }) {
  const alive = new Set<number>()
  let made = 0
  const scope = yield* Scope.make()
  const pool = yield* PoolActor.make<FakeClone, NoDisk>({
    settings: { size: options.size, maxParallel: 2, maxAgeMs: 60_000, quietMs: 100, breakerAfter: 3, breakerMs: 1000 },
    create: (started) =>
      Effect.gen(function* () {
        yield* started
        if (options.fails?.() === true) return yield* new NoDisk({ message: "no disk" })
        const number = ++made
        yield* Effect.acquireRelease(
          Effect.sync(() => void alive.add(number)),
          () =>
            Effect.andThen(
              Effect.yieldNow,
              Effect.sync(() => void alive.delete(number))
            )
        )
        yield* Effect.sleep("10 millis")
        return { number, dead: yield* Deferred.make<string>() }
      }),
    death: (clone) => Deferred.await(clone.dead)
  }).pipe(Scope.provide(scope))
  return { pool, alive, close: Scope.close(scope, Exit.void) }
})

const ready = (pool: PoolActor.PoolActor<FakeClone>) => Effect.map(pool.state, ({ state }) => state.ready.length)

/** Advances the clock until a condition holds. */
const until = <A>(effect: Effect.Effect<A>, holds: (value: A) => boolean) =>
  Effect.gen(function* () {
    for (let n = 0; n < 2000; n++) {
      if (holds(yield* effect)) return
      yield* Effect.yieldNow
      yield* TestClock.adjust("1 millis")
    }
    assert.fail("the condition never held")
  })

describe("PoolActor", () => {
  it.effect("fills, gives each clone once, refills, and destroys all but the given ones when it closes", () =>
    Effect.gen(function* () {
      const { alive, close, pool } = yield* playPool({ size: 3 })
      yield* until(ready(pool), (it) => it === 3)
      const scope = yield* Scope.make()
      const answers = yield* Effect.all([pool.claim, pool.claim]).pipe(Scope.provide(scope))
      assert.deepStrictEqual(
        answers.map((it) => it._tag === "Given" && it.clone.number),
        [1, 2]
      )
      assert.strictEqual(yield* ready(pool), 1)
      yield* until(ready(pool), (it) => it === 3)
      yield* close
      assert.deepStrictEqual([...alive], [1, 2])
      yield* Scope.close(scope, Exit.void)
      assert.strictEqual(alive.size, 0)
      assert.strictEqual((yield* Effect.scoped(pool.claim))._tag, "Missed")
    })
  )

  it.effect("destroys a discarded clone at once, and replaces an old one", () =>
    Effect.gen(function* () {
      const { alive, close, pool } = yield* playPool({ size: 1 })
      yield* until(ready(pool), (it) => it === 1)
      const first = yield* Effect.scoped(
        Effect.gen(function* () {
          const answer = yield* pool.claim
          assert.strictEqual(answer._tag, "Given")
          if (answer._tag !== "Given") return undefined
          yield* answer.discard
          assert.isFalse(alive.has(answer.clone.number))
          return answer.clone
        })
      )
      assert.strictEqual(first?.number, 1)
      yield* until(ready(pool), (it) => it === 1)
      assert.deepStrictEqual([...alive], [2])
      // It reaches its maximum age, and another one replaces it.
      yield* TestClock.adjust("60 seconds")
      yield* until(
        Effect.sync(() => [...alive].join()),
        (it) => it === "3"
      )
      yield* until(ready(pool), (it) => it === 1)
      yield* close
      assert.strictEqual(alive.size, 0)
    })
  )

  it.effect("reports why its clones keep failing, and tries again later", () =>
    Effect.gen(function* () {
      let broken = true
      const { close, pool } = yield* playPool({ size: 1, fails: () => broken })
      yield* until(pool.state, (it) => it.breaker === "open")
      assert.deepStrictEqual(yield* Effect.scoped(pool.claim), {
        _tag: "Missed",
        kind: "breaker",
        reason: "the pool's clones keep failing: no disk"
      })
      broken = false
      yield* TestClock.adjust("1 seconds")
      yield* until(ready(pool), (it) => it === 1)
      assert.strictEqual((yield* pool.state).breaker, "closed")
      yield* close
    })
  )

  // With few operations per turn, the interrupt also comes between the pool's answer and the claimer's use of it.
  it.effect.each([2048, 7, 5, 4, 3])("a claim interrupted at any step leaves nothing, at %i operations a turn", (ops) =>
    Effect.gen(function* () {
      for (let steps = 0; steps < 30; steps++) {
        const { alive, close, pool } = yield* playPool({ size: 1 }).pipe(
          Effect.provideService(Scheduler.MaxOpsBeforeYield, ops)
        )
        yield* until(ready(pool), (it) => it === 1)
        const fiber = yield* Effect.scoped(Effect.andThen(pool.claim, Effect.never)).pipe(Effect.forkScoped)
        // The two fibres take turns; the interrupt comes between any two of them.
        const interrupter = yield* Effect.gen(function* () {
          for (let n = 0; n < steps; n++) yield* Effect.yieldNow
          fiber.interruptUnsafe()
        }).pipe(Effect.forkScoped)
        yield* Fiber.join(interrupter)
        yield* Fiber.await(fiber)
        yield* close
        assert.deepStrictEqual([...alive], [], `interrupted after ${steps} steps`)
      }
    })
  )

  it.effect.prop(
    "claims interrupted at any step, and a pool closed at any step, leave nothing",
    [
      Schema.Array(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 12 }))),
      Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 40 }))
    ],
    ([steps, last]) =>
      Effect.gen(function* () {
        const { alive, close, pool } = yield* playPool({ size: 2 })
        yield* until(ready(pool), (it) => it === 2)
        const claims: Array<Fiber.Fiber<unknown>> = []
        for (const n of steps) {
          claims.push(
            yield* Effect.scoped(Effect.andThen(pool.claim, Effect.sleep("15 millis"))).pipe(Effect.forkScoped)
          )
          for (let k = 0; k < n; k++) yield* Effect.yieldNow
          if (n % 2 === 0) yield* Fiber.interrupt(claims.at(-1) as Fiber.Fiber<unknown>)
          else yield* TestClock.adjust(n * 5)
        }
        for (let k = 0; k < last; k++) yield* Effect.yieldNow
        yield* close
        yield* Effect.forEach(claims, Fiber.interrupt, { discard: true })
        assert.strictEqual(alive.size, 0)
      }),
    { arbitrary: { runs: 300 }, timeout: 30_000 }
  )
})
