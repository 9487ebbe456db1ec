/** What callers do with the five channels: settle them, retry them, catch them one by one. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { TestClock } from "effect/testing"
import * as Execution from "../src/Execution.ts"
import type { Receipt } from "../src/Receipt.ts"
import * as Sandbox from "../src/Sandbox.ts"
import {
  fail,
  InvalidInput,
  LimitExceeded,
  NotStarted,
  OutcomeUnknown,
  PermissionDenied,
  SandboxError,
  TaskFailed,
  UnsupportedCommand
} from "../src/SandboxError.ts"
import { fields, receipt } from "./support/receipts.ts"

const done = new Execution.Result({ ...fields({ outcome: "Success", exitCode: 0 }), result: { repr: "1", json: 1 } })
const failures = {
  PermissionDenied: new PermissionDenied({
    operation: "file",
    target: "/etc/shadow",
    rule: "EACCES",
    grant: "none",
    ...fields({ outcome: "PermissionDenied", exitCode: 1 })
  }),
  UnsupportedCommand: new UnsupportedCommand({
    kind: "command",
    name: "nope",
    available: [],
    ...fields({ outcome: "UnsupportedCommand", exitCode: 127 })
  }),
  LimitExceeded: new LimitExceeded({
    limit: "time",
    allowed: 1,
    observed: 2,
    ...fields({ outcome: "LimitExceeded", exitCode: null })
  }),
  TaskFailed: new TaskFailed({
    reason: { _tag: "ExitCode", exitCode: 3 },
    ...fields({ outcome: "TaskFailed", exitCode: 3 })
  })
}
const ended = (outcome: Effect.Effect<Execution.Result, Execution.Failure>) => outcome
const notStarted = fail(new NotStarted({ problem: "lost" }))

describe("settle", () => {
  it.effect("gives a success with its value and exit code", () =>
    Effect.gen(function* () {
      const settled = yield* ended(Effect.succeed(done)).pipe(Execution.settle)
      assert.deepStrictEqual(
        [settled.outcome, settled.exitCode, settled.error, settled.result, settled.stdout],
        ["Success", 0, null, { repr: "1", json: 1 }, "out"]
      )
      assert.strictEqual(settled.receipt, done.receipt)
    })
  )

  for (const error of Object.values(failures)) {
    it.effect(`gives ${error._tag} as a value with everything it carries`, () =>
      Effect.gen(function* () {
        const settled = yield* ended(Effect.fail(error)).pipe(Execution.settle)
        assert.deepStrictEqual(
          [settled.outcome, settled.exitCode, settled.stdout, settled.stderr, settled.result],
          [error._tag, error.receipt.exitCode, "out", "err", null]
        )
        assert.strictEqual(settled.error, error)
        assert.strictEqual(settled.bytes, error.bytes)
      })
    )
  }

  it.effect("leaves a failure of the sandbox an error, and the only one", () =>
    Effect.gen(function* () {
      const flipped: SandboxError = yield* Effect.flip(ended(Effect.fail(notStarted)).pipe(Execution.settle))
      assert.strictEqual(flipped, notStarted)
    })
  )
})

/** Fails with each error in turn, then succeeds; counts how often it was tried. */
const failing = (errors: ReadonlyArray<Execution.Failure>) => {
  const attempts = { count: 0 }
  const effect = Effect.suspend(() => {
    const error = errors[attempts.count++]
    return error === undefined ? Effect.succeed(done) : Effect.fail(error)
  })
  return { attempts, effect }
}

describe("retrySafe", () => {
  it.effect("waits, longer each time, and gives the success", () =>
    Effect.gen(function* () {
      const { attempts, effect } = failing([notStarted, notStarted])
      const fiber = yield* Effect.forkChild(effect.pipe(Sandbox.retrySafe()), { startImmediately: true })
      assert.strictEqual(attempts.count, 1)
      yield* TestClock.adjust("79 millis") // 100 ms varied by a fifth
      assert.strictEqual(attempts.count, 1)
      yield* TestClock.adjust("42 millis")
      assert.strictEqual(attempts.count, 2)
      yield* TestClock.adjust("240 millis")
      assert.strictEqual(yield* Fiber.join(fiber), done)
      assert.strictEqual(attempts.count, 3)
    })
  )

  it.effect("gives up after five more tries with the last error", () =>
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

describe("catchTag", () => {
  const all: ReadonlyArray<Execution.Failure> = [...Object.values(failures), notStarted]
  it.effect("tells all five apart, leaving no error", () =>
    Effect.gen(function* () {
      const said: Array<string> = []
      for (const error of all) {
        const handled: Effect.Effect<string> = ended(Effect.fail(error)).pipe(
          Effect.map((result) => result.stdout),
          Effect.catchTags({
            PermissionDenied: (it) => Effect.succeed(`${it.operation} ${it.target}`),
            UnsupportedCommand: (it) => Effect.succeed(`${it.kind} ${it.name}`),
            LimitExceeded: (it) => Effect.succeed(`${it.limit} ${it.allowed}`),
            TaskFailed: (it) => Effect.succeed(it.reason._tag),
            SandboxError: (it) => Effect.succeed(it.retry)
          })
        )
        said.push(yield* handled)
      }
      assert.deepStrictEqual(said, ["file /etc/shadow", "command nope", "time 1", "ExitCode", "safe"])
    })
  )

  it.effect("opens a reason of the fifth", () =>
    Effect.gen(function* () {
      const handled = ended(Effect.fail(notStarted)).pipe(
        Effect.catchReason("SandboxError", "NotStarted", (reason) => Effect.succeed(reason.problem))
      )
      assert.strictEqual(yield* handled, "lost")
    })
  )
})
