import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as Execution from "../src/Execution.ts"
import { failures, notStarted } from "./support/failures.ts"

const ended = (outcome: Effect.Effect<Execution.Result, Execution.Failure>) => outcome

describe("catchTag", () => {
  const all: ReadonlyArray<Execution.Failure> = [...Object.values(failures), notStarted]
  it.effect("handles each of the five errors, and leaves none", () =>
    Effect.gen(function* () {
      const handledAs: Array<string> = []
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
        handledAs.push(yield* handled)
      }
      assert.deepStrictEqual(handledAs, ["file /etc/shadow", "command nope", "time 1", "ExitCode", "safe"])
    })
  )

  it.effect("catchReason opens the reason of a SandboxError", () =>
    Effect.gen(function* () {
      const handled = ended(Effect.fail(notStarted)).pipe(
        Effect.catchReason("SandboxError", "NotStarted", (reason) => Effect.succeed(reason.problem))
      )
      assert.strictEqual(yield* handled, "lost")
    })
  )
})
