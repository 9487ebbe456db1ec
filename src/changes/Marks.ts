/** Makes `Session.mark` and `Session.changes`. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { type Changes, Mark, Options as ReportOptions } from "../Changes.ts"
import * as Agent from "../guest/Agent.ts"
import { changesMark, changesRead, type End, type Method, type Request } from "../guest/Methods.ts"
import { decodeInput } from "../internal/decodeInput.ts"
import { fail, InvalidInput, NotStarted, type SandboxError } from "../SandboxError.ts"
import type { Guest } from "../session/Guest.ts"
import * as ChangeReport from "./Report.ts"

const Options = Schema.Struct({ ...ReportOptions.fields, since: Schema.optionalKey(Mark) })
export type Options = typeof Options.Type

const decodeOptions = decodeInput(Options, "options")

/** `session`: the session's id, which its marks carry. */
export const make = (guest: Guest, session: string) => {
  /** Makes a request and returns its END. The bytes before it go to `onData`, which returns false when they are not valid. */
  const request = <M extends Method>(
    method: M,
    fields: Request<M>,
    onData: (bytes: Uint8Array) => boolean
  ): Effect.Effect<End<M>, SandboxError> =>
    guest.open(method, fields).pipe(
      Effect.flatMap((stream) =>
        Agent.follow(stream, (it) =>
          it._tag === "Note" || onData(it.bytes) ? Effect.void : guest.violated("an invalid report of changed files")
        )
      ),
      Effect.scoped,
      Effect.catchTags({
        ChannelViolation: (error) => guest.violated(error.problem),
        Refused: ({ code, problem }) => {
          if (code === null) return guest.violated(problem)
          return Effect.fail(
            fail(
              code === "invalid"
                ? new InvalidInput({ field: "since", problem, expected: "one of the session's latest marks" })
                : new NotStarted({ problem })
            )
          )
        }
      })
    )

  const changes = Effect.fn("Session.changes")(function* (
    given: Options = {}
  ): Effect.fn.Return<Changes, SandboxError> {
    const { since, ...options } = yield* decodeOptions(given)
    if (since !== undefined && since.session !== session) {
      return yield* fail(
        new InvalidInput({ field: "since", problem: `a mark of ${since.session}`, expected: `a mark of ${session}` })
      )
    }
    const asked = ChangeReport.asked(options) ?? { patches: true, maxFiles: 0 }
    const report = ChangeReport.make(asked)
    return yield* report.finish(yield* request(changesRead, { since: since?.id ?? 0, ...asked }, report.push))
  })

  return {
    changes,
    mark: request(changesMark, {}, () => false).pipe(
      Effect.map(({ mark }) => new Mark({ session, id: mark })),
      Effect.withSpan("Session.mark")
    )
  }
}
