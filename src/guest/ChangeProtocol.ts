/**
 * What host and agent say to each other about changed files.
 */
import * as Schema from "effect/Schema"
import { Change, Counts } from "../Changes.ts"
import { Name, Stat } from "./FileProtocol.ts"

/** What a request asks for; part of an OPEN. */
export interface ChangesOpen {
  readonly patches: boolean
  readonly maxFiles: number
}

/** What the guest sends of one file's text at the most, in bytes; and of all. */
export const maxText = 256 * 1024
export const maxTexts = 4 * 1024 * 1024

const Text = Schema.String.check(Schema.isMaxLength(maxText))
const { gid, mode, size, target, type, uid } = Stat.fields
const State = Schema.Struct({ type, size, mode, uid, gid, target })

/** One change, as a line of JSON. With `text: "text"` both contents are there. */
export const ChangeLine = Schema.Struct({
  kind: Change.fields.kind,
  path: Name,
  from: Schema.optionalKey(Name),
  before: Schema.optionalKey(State),
  after: Schema.optionalKey(State),
  content: Schema.Boolean,
  text: Schema.Literals(["text", "none", "binary", "large", "lost", "budget"]),
  old: Schema.optionalKey(Text),
  new: Schema.optionalKey(Text)
})
export type ChangeLine = typeof ChangeLine.Type

/** The counts that come after all lines. */
export const ChangesEnd = Schema.Struct({ ...Counts.fields, unlisted: Counts.fields.unexamined })
export type ChangesEnd = typeof ChangesEnd.Type

/** END of `changes.mark`. */
export const MarkEnd = Schema.Struct({ mark: Schema.Int.check(Schema.isGreaterThanOrEqualTo(1)) })
