/** Reports which files of the fake disk have changed. */
import * as Schema from "effect/Schema"
import type { ChangeCounts } from "../guest/Evidence.ts"
import { ChangeLine, type ChangesAsked, maxText, maxTexts } from "../guest/Methods.ts"
import { agentsDirectory, type FakeDisk, type Node, targetOf } from "./FakeDisk.ts"
import type { AnswerTo, RequestOf } from "./Requests.ts"

/** All files at one moment. */
export type Moment = ReadonlyMap<string, Node>

export interface FakeChanges {
  /** The session begins. */
  readonly begin: () => void
  /** Reports the differences since a moment. */
  readonly since: (then: Moment, asked: ChangesAsked) => { readonly data: Buffer; readonly end: ChangeCounts }
  /** Marks this moment. */
  readonly mark: () => AnswerTo<"changes.mark">
  /** Reports the differences since a mark; `undefined` for one that is not known. */
  readonly read: (request: RequestOf<"changes.read">) => AnswerTo<"changes.read"> | undefined
}

const encode = Schema.encodeSync(Schema.fromJsonString(ChangeLine))

const maxMarks = 16

const stateOf = (node: Node): NonNullable<ChangeLine["after"]> => ({
  type: node.type,
  size: contentOf(node).length,
  mode: node.mode,
  uid: 1000,
  gid: 1000,
  ...(node.type === "symlink" && { target: targetOf(node) })
})

/** A file's text; `undefined` for bytes that are not text. */
const textOf = (node: Node | undefined): string | undefined => {
  if (node?.type !== "file") return ""
  const text = node.bytes.toString("utf8")
  return text.includes("\0") || !Buffer.from(text).equals(node.bytes) ? undefined : text
}

interface Difference {
  readonly kind: ChangeLine["kind"]
  readonly path: string
  readonly from?: string
  readonly before: Node | undefined
  readonly after: Node | undefined
}

const isAgents = (name: string): boolean => `${name}/`.startsWith(`${agentsDirectory}/`)

const differences = (then: Moment, now: Moment): ReadonlyArray<Difference> => {
  const gone = new Map(
    [...then].filter(([name]) => !now.has(name) && !isAgents(name)).map(([name, node]) => [node, name])
  )
  const found: Array<Difference> = []
  for (const [path, after] of now) {
    if (isAgents(path)) continue
    const before = then.get(path)
    const from = before === undefined ? gone.get(after) : undefined
    if (from !== undefined) {
      // The same file under another name.
      gone.delete(after)
      found.push({ kind: "renamed", path, from, before: after, after })
    } else if (before === undefined) found.push({ kind: "created", path, before, after })
    else if (before.type !== after.type || before.mode !== after.mode || !before.bytes.equals(after.bytes)) {
      found.push({ kind: "modified", path, before, after })
    }
  }
  for (const [before, path] of gone) found.push({ kind: "deleted", path, before, after: undefined })
  return found.sort((a, b) => (a.path < b.path ? -1 : 1))
}

const nothing = Buffer.alloc(0)

/** A file's content; empty for a link or directory. */
const contentOf = (node: Node | undefined): Buffer => (node?.type === "file" ? node.bytes : nothing)

const lineOf = ({ after, before, from, kind, path }: Difference, texts: boolean): ChangeLine => {
  const content = kind !== "renamed" && !contentOf(before).equals(contentOf(after))
  const [old, fresh] = [textOf(before), textOf(after)]
  const large = Math.max(contentOf(before).length, contentOf(after).length) > maxText
  const common = {
    kind,
    path,
    ...(from !== undefined && { from }),
    ...(before !== undefined && { before: stateOf(before) }),
    ...(after !== undefined && { after: stateOf(after) }),
    content
  }
  if (!content || !texts) return { ...common, text: "none" }
  if (large) return { ...common, text: "large" }
  return old === undefined || fresh === undefined
    ? { ...common, text: "binary" }
    : { ...common, text: "text", old, new: fresh }
}

/** A line without its texts, because those before it used up the budget. */
const withoutText = (line: ChangeLine): ChangeLine => {
  const { new: _, old: __, ...rest } = line
  return { ...rest, text: "budget" }
}

/** Reports changes of a guest's files. */
export const make = (disk: FakeDisk): FakeChanges => {
  let start: Moment = disk.all()
  const marks = new Map<number, Moment>()
  let last = 0

  const since: FakeChanges["since"] = (then, { maxFiles, patches }) => {
    const found = differences(then, disk.all())
    const counts = { created: 0, modified: 0, deleted: 0, renamed: 0 }
    for (const { kind } of found) counts[kind]++
    let texts = 0
    const lines = found.slice(0, maxFiles).map((it) => {
      const line = lineOf(it, patches)
      texts += (line.old?.length ?? 0) + (line.new?.length ?? 0)
      return texts <= maxTexts ? line : withoutText(line)
    })
    return {
      data: Buffer.from(lines.map((line) => `${encode(line)}\n`).join("")),
      end: { ...counts, unexamined: 0, unlisted: found.length - lines.length }
    }
  }

  return {
    begin: () => {
      start = disk.all()
      marks.clear()
    },
    since,
    mark: () => {
      marks.set(++last, disk.all())
      for (const id of marks.keys()) if (marks.size > maxMarks) marks.delete(id)
      return { end: { mark: last } }
    },
    read: ({ since: mark, ...asked }) => {
      const then = mark === 0 ? start : marks.get(mark)
      return then === undefined ? undefined : since(then, asked)
    }
  }
}
