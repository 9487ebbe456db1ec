/** Marks of a session, and which files have changed since one. */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { type Changes, Mark, Options as ReportOptions } from "../Changes.ts"
import { ChangesEnd, MarkEnd } from "../guest/ChangeProtocol.ts"
import { Sub } from "../guest/Frame.ts"
import { fail, InvalidInput, NotStarted, type SandboxError } from "../SandboxError.ts"
import * as ChangeReport from "./Report.ts"
import { decodeInput } from "../internal/decodeInput.ts"
import type { Guest } from "../files/Client.ts"

const Options = Schema.Struct({ ...ReportOptions.fields, since: Schema.optionalKey(Mark) })
export type Options = typeof Options.Type

const decodeCounts = Schema.decodeUnknownOption(ChangesEnd)
const decodeMark = Schema.decodeUnknownOption(MarkEnd)
const decodeOptions = decodeInput(Options, "options")

/** Marks and reports over a session's guest. */
export const make = (guest: Guest, session: string) => {
  /** One question to the guest, and its END; what comes before that goes to `onData`. */
  const ask = Effect.fnUntraced(function* (
    message: object,
    onData: (bytes: Uint8Array) => boolean
  ): Effect.fn.Return<unknown, SandboxError, Scope.Scope> {
    const stream = yield* guest.open(message)
    for (;;) {
      const events = yield* Effect.catchIf(stream.takeAll, Cause.isDone, () => Effect.succeed([])).pipe(
        Effect.catch(guest.lost)
      )
      if (events.length === 0) return yield* guest.violated("an answer about changes without an end")
      for (const event of events) {
        if (event._tag === "Data" && (event.sub !== Sub.file || !onData(event.bytes))) {
          return yield* guest.violated("a report of changed files that is not understood")
        }
        if (event._tag === "Reset") {
          return yield* fail(
            event.code === "invalid"
              ? new InvalidInput({ field: "since", problem: event.message, expected: "one of the last marks" })
              : new NotStarted({ problem: event.message })
          )
        }
        if (event._tag === "End") return event.value
      }
    }
  }, Effect.scoped)

  /** The answer as it must be. */
  const decoded = <A>(decode: (value: unknown) => Option.Option<A>, value: unknown): Effect.Effect<A, SandboxError> => {
    const answer = decode(value)
    return Option.isSome(answer)
      ? Effect.succeed(answer.value)
      : guest.violated("an answer about changes that is not understood")
  }

  const changes = Effect.fn("Session.changes")(function* (
    given: Options = {}
  ): Effect.fn.Return<Changes, SandboxError> {
    const { since, ...options } = yield* decodeOptions(given)
    if (since !== undefined && since.session !== session) {
      return yield* fail(
        new InvalidInput({ field: "since", problem: `a mark of ${since.session}`, expected: `a mark of ${session}` })
      )
    }
    const asked = ChangeReport.openOf(options) ?? { patches: true, maxFiles: 0 }
    const report = ChangeReport.make(asked)
    const end = yield* ask({ method: "changes.read", since: since?.id ?? 0, ...asked }, report.push)
    return yield* report.finish(yield* decoded(decodeCounts, end))
  })

  return {
    changes,
    mark: Effect.gen(function* () {
      const end = yield* ask({ method: "changes.mark" }, () => false)
      return new Mark({ session, id: (yield* decoded(decodeMark, end)).mark })
    }).pipe(Effect.withSpan("Session.mark"))
  }
}
