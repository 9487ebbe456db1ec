/** What the tests of behaviour share: a session, and executions as values. */
import { assert } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { Failure, Language, Request, Result } from "../../src/Execution.ts"
import { Sandbox, type PlainSessionOptions } from "../../src/Sandbox.ts"
import type { Session } from "../../src/Session.ts"

/** A new session, which closes with the scope. */
export const session = (options: PlainSessionOptions = {}) => Sandbox.use((sandbox) => sandbox.session(options))

/** What tests request in addition to language and code. */
export type Settings = Omit<Request, "language" | "code">

/** Executes code in a session. */
export interface Execute {
  (language: Language, code: string, settings?: Settings): Effect.Effect<Result, Failure>
}

export const executing =
  (it: Session): Execute =>
  (language, code, settings = {}) =>
    it.exec({ language, code, ...settings })

/** An execution in a new session. */
export const fresh = Effect.map(session(), executing)

/** Stdout of code that is expected to succeed. */
export const stdout = (effect: Effect.Effect<Result, Failure>) => Effect.map(effect, (result) => result.stdout)

/** The task's own failure: everything but `SandboxError`. */
export type TaskFailure = Exclude<Failure, { readonly _tag: "SandboxError" }>

/** The error of a failed task. */
export const failure = (effect: Effect.Effect<Result, Failure>): Effect.Effect<TaskFailure, Result> =>
  Effect.map(Effect.flip(effect), (error) => {
    if (error._tag === "SandboxError") return assert.fail(`the sandbox failed: ${error.message}`)
    return error
  })

/** Result or failure of a task: both have output and receipt. */
export const ended = (effect: Effect.Effect<Result, Failure>): Effect.Effect<Result | TaskFailure> =>
  Effect.match(effect, {
    onSuccess: (result): Result | TaskFailure => result,
    onFailure: (error) => (error._tag === "SandboxError" ? assert.fail(`the sandbox failed: ${error.message}`) : error)
  })
