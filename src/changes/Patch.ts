/**
 * Makes unified patches with git's headers, for `patch -p1` and `git apply`. The texts come from a guest, which may choose
 * them so that they are expensive to compare. When a comparison takes too long, the patch replaces everything from the first
 * line that differs to the last.
 */
import { structuredPatch } from "diff"
import * as FileName from "../internal/FileName.ts"

/** A file before or after the change. `mode`: permission bits. */
export interface Side {
  readonly path: string
  readonly mode: number
  readonly text: string
}

/** Unchanged lines around a change. */
const context = 3
/** The most changed lines that a comparison looks for: its time grows with the square of this. */
const maxEdits = 500
/** How long one comparison may take, in ms. It blocks everything else in this process. */
const maxMs = 100

const plain = /^[ !#-[\]-~]*$/

/** A path as git writes it: quoted as a C string when it contains anything unusual. */
const quoted = (prefix: string, path: string): string => {
  const name = `${prefix}${path}`
  if (plain.test(name)) return name
  let text = ""
  for (const byte of FileName.toBytes(name) ?? Buffer.from(name)) {
    if (byte === 0x22 || byte === 0x5c) text += `\\${String.fromCharCode(byte)}`
    else if (byte < 0x20 || byte > 0x7e) text += `\\${byte.toString(8).padStart(3, "0")}`
    else text += String.fromCharCode(byte)
  }
  return `"${text}"`
}

/** A name with a space needs a tab after it, or `patch` reads it only up to the space. */
const header = (mark: string, name: string): string => `${mark} ${name}${name.includes(" ") ? "\t" : ""}\n`

const gitMode = (mode: number): string => ((mode & 0o111) === 0 ? "100644" : "100755")

/** The lines of a text, each with its newline; the last may have none. */
const linesOf = (text: string): Array<string> => {
  const lines = text.split("\n").map((line) => `${line}\n`)
  const last = lines.pop()?.slice(0, -1) ?? ""
  if (last !== "") lines.push(last)
  return lines
}

const marked = (mark: string, line: string): string =>
  line.endsWith("\n") ? `${mark}${line}` : `${mark}${line}\n\\ No newline at end of file\n`

const range = (start: number, count: number): string => {
  const first = count === 0 ? start : start + 1
  return count === 1 ? `${first}` : `${first},${count}`
}

/** One hunk from the first line that differs to the last. */
const whole = (before: string, after: string): string => {
  const old = linesOf(before)
  const new_ = linesOf(after)
  const shorter = Math.min(old.length, new_.length)
  let head = 0
  while (head < shorter && old[head] === new_[head]) head++
  let tail = 0
  while (tail < shorter - head && old[old.length - 1 - tail] === new_[new_.length - 1 - tail]) tail++
  const start = Math.max(0, head - context)
  const rest = Math.max(0, tail - context)
  const ends = [old.length - rest, new_.length - rest] as const
  return [
    `@@ -${range(start, ends[0] - start)} +${range(start, ends[1] - start)} @@\n`,
    ...old.slice(start, head).map((line) => marked(" ", line)),
    ...old.slice(head, old.length - tail).map((line) => marked("-", line)),
    ...new_.slice(head, new_.length - tail).map((line) => marked("+", line)),
    ...old.slice(old.length - tail, ends[0]).map((line) => marked(" ", line))
  ].join("")
}

const hunks = (before: string, after: string): string => {
  if (before === "" || after === "") return whole(before, after)
  const found = structuredPatch("", "", before, after, "", "", { context, maxEditLength: maxEdits, timeout: maxMs })
  if (found === undefined) return whole(before, after)
  return found.hunks
    .map(
      ({ lines, newLines, newStart, oldLines, oldStart }) =>
        `@@ -${range(oldStart - 1, oldLines)} +${range(newStart - 1, newLines)} @@\n${lines.map((line) => `${line}\n`).join("")}`
    )
    .join("")
}

/**
 * The patch from `old` to `new_`, each `null` when there is no file; empty when nothing changed that a patch can express.
 * `close`: whether to compare line by line.
 */
export const make = (old: Side | null, new_: Side | null, close: boolean): string => {
  const at = new_?.path ?? old?.path ?? ""
  const from = quoted("a", old?.path ?? at)
  const to = quoted("b", at)
  let extended = ""
  if (old === null && new_ !== null) extended = `new file mode ${gitMode(new_.mode)}\n`
  else if (new_ === null && old !== null) extended = `deleted file mode ${gitMode(old.mode)}\n`
  else if (old !== null && new_ !== null) {
    const modes = [gitMode(old.mode), gitMode(new_.mode)] as const
    if (modes[0] !== modes[1]) extended = `old mode ${modes[0]}\nnew mode ${modes[1]}\n`
    if (old.path !== at)
      extended += `rename from ${quoted("", old.path.slice(1))}\nrename to ${quoted("", at.slice(1))}\n`
  }
  const texts = [old?.text ?? "", new_?.text ?? ""] as const
  if (texts[0] === texts[1]) return extended === "" ? "" : `diff --git ${from} ${to}\n${extended}`
  const names = header("---", old === null ? "/dev/null" : from) + header("+++", new_ === null ? "/dev/null" : to)
  return `diff --git ${from} ${to}\n${extended}${names}${(close ? hunks : whole)(...texts)}`
}
