/** Collects a guest's report of changed files, lines of JSON and then counts, within bounds, and adds the patches. */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { type Asked, type Change, Changes, type FileState } from "../Changes.ts"
import type { ChangeCounts } from "../guest/Evidence.ts"
import { ChangeLine, type ChangesAsked, maxTexts } from "../guest/Methods.ts"
import * as Lines from "../internal/Lines.ts"
import * as Patch from "./Patch.ts"

/** The request to the guest, with the defaults; `undefined` when no report is wanted. */
export const asked = (given: Asked = false): ChangesAsked | undefined => {
  if (given === false) return undefined
  const { maxFiles = 1000, patches = true } = given === true ? {} : given
  return { patches, maxFiles }
}

/** The longest line in bytes: two texts, in which one byte may become six, and the names. */
const maxLine = 4 * 1024 * 1024
/** The longest report in bytes; the guest stops at 32 MiB. */
const maxReport = 40 * 1024 * 1024
/** How long the texts of one report are compared line by line, in ms. */
const patience = 1000

export interface ChangeReport {
  /** Adds the next bytes; `false` when they are not valid. */
  readonly push: (bytes: Uint8Array) => boolean
  /** Makes the report from the lines so far and the counts, which come last. */
  readonly finish: (counts: ChangeCounts) => Effect.Effect<Changes>
}

const decode = Schema.decodeUnknownOption(Schema.fromJsonString(ChangeLine))

const isFile = (state: FileState | undefined): state is FileState => state?.type === "file"

/** One side of a patch; `null` when it is not a regular file. */
const side = (path: string, state: FileState | undefined, text: string | undefined): Patch.Side | null =>
  isFile(state) ? { path, mode: state.mode, text: text ?? "" } : null

const patchOf = (line: ChangeLine, close: boolean): string => {
  // A change of content needs the texts; a change of only name or mode has a patch without them.
  if (line.text !== "text" && (line.text !== "none" || !isFile(line.before) || !isFile(line.after))) return ""
  return Patch.make(side(line.from ?? line.path, line.before, line.old), side(line.path, line.after, line.new), close)
}

const changeOf = (line: ChangeLine, patches: boolean, close: boolean): Change => {
  const patch = patches ? patchOf(line, close) : ""
  return {
    kind: line.kind,
    path: line.path,
    from: line.from ?? null,
    before: line.before ?? null,
    after: line.after ?? null,
    content: line.content,
    patch: patch === "" ? null : patch,
    omitted: patch !== "" ? null : !patches ? "unasked" : line.text === "text" ? "none" : line.text
  }
}

/** Starts with an empty report. */
export const make = (asked: ChangesAsked): ChangeReport => {
  const lines = Lines.make(maxLine)
  const found: Array<ChangeLine> = []
  let bytes = 0
  let texts = 0
  return {
    push: (chunk) => {
      bytes += chunk.length
      const complete = bytes > maxReport ? undefined : lines(chunk)
      if (complete === undefined) return false
      for (const text of complete) {
        const line = decode(text)
        if (Option.isNone(line) || found.push(line.value) > asked.maxFiles) return false
        texts += (line.value.old?.length ?? 0) + (line.value.new?.length ?? 0)
      }
      return texts <= maxTexts
    },
    finish: Effect.fnUntraced(function* ({ unlisted, ...counts }) {
      const files: Array<Change> = []
      const until = (yield* Clock.currentTimeMillis) + patience
      for (const line of found) {
        files.push(changeOf(line, asked.patches, (yield* Clock.currentTimeMillis) < until))
        if (line.text === "text") yield* Effect.yieldNow
      }
      return new Changes({ files, counts, unlisted })
    })
  }
}
