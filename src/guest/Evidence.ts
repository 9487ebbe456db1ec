/**
 * Evidence: the guest's report of how an execution ended. The session turns it into an outcome (`session/Outcome`).
 *
 * A hostile guest can lie here about its own task only. The length of texts and the depth of values are bounded.
 */
import * as Schema from "effect/Schema"
import { Counts } from "../Changes.ts"

const Text = Schema.String.check(Schema.isMaxLength(256 * 1024))
const Amount = Schema.Finite.check(Schema.isGreaterThanOrEqualTo(0))

/** Our interpreters nest values at most 51 levels deep; a deeper value could overflow the stack of code that writes JSON. */
const shallow = Schema.makeFilter(
  (value: Schema.Json) => {
    let level: ReadonlyArray<Schema.Json> = [value]
    for (let depth = 0; level.length > 0; depth++) {
      if (depth > 100) return false
      level = level.flatMap((it) => (typeof it === "object" && it !== null ? Object.values(it) : []))
    }
    return true
  },
  { expected: "data of at most 100 levels" }
)

/** How many files changed; `unlisted` counts those that the report does not list. */
export const ChangeCounts = Schema.Struct({ ...Counts.fields, unlisted: Counts.fields.unexamined })
export type ChangeCounts = typeof ChangeCounts.Type

/**
 * How an execution ended.
 *
 * - `exception.causeErrno`: the errno of the exception's cause, if the exception itself has none.
 * - `refused`: the refused connection that caused the exit code.
 * - `rest`: files in the guest with the output beyond what was sent.
 */
export const Evidence = Schema.Struct({
  exitCode: Schema.NullOr(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 255 }))),
  signal: Schema.NullOr(Text),
  exception: Schema.NullOr(
    Schema.Struct({
      type: Text,
      message: Text,
      traceback: Text,
      errno: Schema.NullOr(Text),
      path: Schema.NullOr(Text),
      module: Schema.NullOr(Text),
      code: Schema.NullOr(Text),
      causeErrno: Schema.optionalKey(Text)
    })
  ),
  commands: Schema.Array(
    Schema.Struct({
      name: Text,
      kind: Schema.Literals(["not-found", "not-executable", "permission"]),
      path: Schema.NullOr(Text)
    })
  ),
  limits: Schema.Array(
    Schema.Struct({
      limit: Schema.Literals(["time", "memory", "processes", "disk", "file-size"]),
      allowed: Schema.NullOr(Schema.Finite),
      observed: Schema.NullOr(Schema.Finite)
    })
  ),
  state: Schema.Literals(["kept", "reset"]),
  result: Schema.NullOr(Schema.Struct({ repr: Text, json: Schema.optionalKey(Schema.Json.check(shallow)) })),
  usage: Schema.Struct({
    cpuMs: Schema.NullOr(Amount),
    peakMemoryBytes: Schema.NullOr(Amount),
    wallMs: Schema.NullOr(Amount)
  }),
  refused: Schema.optionalKey(Schema.Struct({ host: Text, port: Schema.Int })),
  changes: Schema.optionalKey(ChangeCounts),
  rest: Schema.optionalKey(Schema.Struct({ stdout: Schema.NullOr(Text), stderr: Schema.NullOr(Text) }))
})
export type Evidence = typeof Evidence.Type
