/** Executes code in a session's interpreters. */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type * as Execution from "../Execution.ts"
import { Sub } from "../guest/Frame.ts"
import { exec } from "../guest/Methods.ts"
import * as Attempt from "./Attempt.ts"
import type { Context } from "./Context.ts"

/** How many executions' sequence numbers are remembered, for their late output. */
const maxRemembered = 4096

export interface Executor {
  /**
   * Executes a decoded request. Output goes to `emit` as it comes. With `spill`, the guest writes the output that the result
   * does not contain to files.
   */
  readonly execute: (
    request: Execution.Request,
    emit: (event: Execution.Event) => Effect.Effect<void>,
    spill: boolean
  ) => Effect.Effect<Execution.Result, Execution.Failure>
  /** The languages that code was executed in. */
  readonly used: ReadonlySet<Execution.Language>
  /** The receipt's `sequence` of the execution that ran on this stream of the channel; `null` when it is no longer known. */
  readonly sequenceOf: (stream: number) => number | null
}

export const make = (context: Context): Executor => {
  const { languages } = context.origin
  const used = new Set<Execution.Language>()
  /** From an execution's stream id to its receipt's `sequence`, oldest first. */
  const sequences = new Map<number, number>()
  let outstandingMs = 0

  const execute = Effect.fn("Session.exec")(function* (
    request: Execution.Request,
    emit: (event: Execution.Event) => Effect.Effect<void>,
    spill: boolean
  ): Effect.fn.Return<Execution.Result, Execution.Failure, Scope.Scope> {
    const { changes, cwd, env, language, limits = {} } = request
    const code = Buffer.from(request.code)
    const stdin = request.stdin === undefined ? new Uint8Array() : Buffer.from(request.stdin as string)
    const attempt = yield* Attempt.begin(context, { language, argv: null, code, limits, changes })
    if (!languages.includes(language)) {
      return yield* attempt.unsupported({ kind: "language", name: language, available: languages })
    }
    used.add(language)
    const inputs = [
      { sub: Sub.code, bytes: code },
      { sub: Sub.stdin, bytes: stdin }
    ]
    const stream = yield* context.vm
      .open(
        exec,
        {
          language,
          codeBytes: code.length,
          stdinBytes: stdin.length,
          env,
          cwd,
          ...attempt.enforced(spill)
        },
        stdin.length === 0 ? inputs.slice(0, 1) : inputs
      )
      .pipe(Effect.catch((error) => attempt.lost(error, false)))
    attempt.prepare()
    sequences.set(stream.id, attempt.sequence)
    if (sequences.size > maxRemembered) for (const oldest of sequences.keys()) if (sequences.delete(oldest)) break
    // An execution may have to wait for all that were requested before it.
    const patience = (attempt.timeMs ?? 0) + Attempt.graceMs
    outstandingMs += patience
    yield* Effect.addFinalizer(() =>
      Effect.sync(() => {
        outstandingMs -= patience
      })
    )
    const deadline = (yield* Clock.currentTimeMillis) + outstandingMs
    const evidence = yield* Attempt.follow(attempt, stream, emit, deadline).pipe(
      // The agent could not prepare or replace the interpreter: this VM must not be used any more. `lost` is different: an
      // interpreter that died before the code reached it is replaced.
      Effect.catchTag("Refused", (refused) => attempt.refused(refused, refused.code !== "lost"))
    )
    const result = yield* attempt.conclude(evidence)
    yield* emit({ _tag: "Done", result })
    return result
  }, Effect.scoped)

  return { execute, used, sequenceOf: (stream) => sequences.get(stream) ?? null }
}
