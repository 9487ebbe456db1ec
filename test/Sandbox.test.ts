import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { TestClock } from "effect/testing"
import type * as Execution from "../src/Execution.ts"
import type { Receipt } from "../src/Receipt.ts"
import * as Sandbox from "../src/Sandbox.ts"
import { fail, InvalidInput, OutcomeUnknown } from "../src/SandboxError.ts"
import { done, failures, notStarted } from "./support/failures.ts"
import { receipt } from "./support/receipts.ts"

/** An effect that fails with each error in turn and then succeeds, and the number of its attempts. */
const failing = (errors: ReadonlyArray<Execution.Failure>) => {
  const attempts = { count: 0 }
  const effect = Effect.suspend(() => {
    const error = errors[attempts.count++]
    return error === undefined ? Effect.succeed(done) : Effect.fail(error)
  })
  return { attempts, effect }
}

describe("retrySafe", () => {
  it.effect("waits longer each time, and returns the success", () =>
    Effect.gen(function* () {
      const { attempts, effect } = failing([notStarted, notStarted])
      const fiber = yield* Effect.forkChild(effect.pipe(Sandbox.retrySafe()), { startImmediately: true })
      assert.strictEqual(attempts.count, 1)
      yield* TestClock.adjust("79 millis") // 100 ms, varied by up to a fifth
      assert.strictEqual(attempts.count, 1)
      yield* TestClock.adjust("42 millis")
      assert.strictEqual(attempts.count, 2)
      yield* TestClock.adjust("240 millis")
      assert.strictEqual(yield* Fiber.join(fiber), done)
      assert.strictEqual(attempts.count, 3)
    })
  )

  it.effect("fails with the last error after five retries", () =>
    Effect.gen(function* () {
      const { attempts, effect } = failing(Array.from({ length: 50 }, () => notStarted))
      const fiber = yield* Effect.forkChild(Effect.flip(effect.pipe(Sandbox.retrySafe())))
      yield* TestClock.adjust("1 minute")
      assert.strictEqual(yield* Fiber.join(fiber), notStarted)
      assert.strictEqual(attempts.count, 6)
    })
  )

  const known: Receipt = receipt({ outcome: "SandboxError", state: "closed" })
  const never = [
    fail(new InvalidInput({ field: "code", problem: "empty", expected: "code" })),
    fail(new OutcomeUnknown({ problem: "lost", receipt: known })),
    failures.TaskFailed,
    failures.LimitExceeded
  ]
  for (const error of never) {
    it.effect(`does not try again after ${error.message}`, () =>
      Effect.gen(function* () {
        const { attempts, effect } = failing([error])
        assert.strictEqual(yield* Effect.flip(effect.pipe(Sandbox.retrySafe())), error)
        assert.strictEqual(attempts.count, 1)
      })
    )
  }
})
