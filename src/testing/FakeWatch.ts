/** Watches files of the fake disk, and reports changes as a guest's kernel would. */
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import type * as Scope from "effect/Scope"
import * as path from "node:path/posix"
import type { WatchLine } from "../guest/Methods.ts"
import { encodeName } from "../guest/Names.ts"
import { absolute, type FakeDisk, type Happening } from "./FakeDisk.ts"
import { failed } from "./FakeFiles.ts"
import type { AnswerTo, RequestOf } from "./Requests.ts"

/** The most lines that wait for a slow reader, the same as in a guest's kernel. */
const maxWaiting = 16_384

type Line = Pick<typeof WatchLine.Type, "kind" | "path" | "from">

/** Reports changes until the watched file or directory is gone. `send` may wait. */
export const watch = Effect.fnUntraced(function* (
  disk: FakeDisk,
  request: RequestOf<"file.watch">,
  send: (bytes: Uint8Array) => Effect.Effect<void>
): Effect.fn.Return<AnswerTo<"file.watch">, never, Scope.Scope> {
  const found = disk.find(request.path, true)
  if (typeof found === "string") return failed(found, request.path)
  if (found.node === undefined) return failed("ENOENT", request.path)
  /** Where it is now; `called` is the caller's name for it. */
  let root = found.at
  const called = path.normalize(absolute(request.path)).replace(/(.)\/$/, "$1")
  const isFile = found.node.type === "file"
  const some = Latch.makeUnsafe(false)
  let waiting: Array<Line> = []
  let over = false

  const tell = (kind: Line["kind"], at: string, from?: string): void => {
    const named = (it: string): string => called + it.slice(root.length)
    if (waiting.length > maxWaiting) return
    waiting.push(
      waiting.length === maxWaiting
        ? { kind: "overflow", path: called }
        : { kind, path: named(at), ...(from !== undefined && { from: named(from) }) }
    )
    some.openUnsafe()
  }
  const covers = (at: string): boolean =>
    at !== root &&
    (request.recursive === true ? at.startsWith(root === "/" ? root : `${root}/`) : path.dirname(at) === root)
  /** `unlinked`: it was removed or replaced, not moved away. */
  const gone = (unlinked: boolean): void => {
    // A file that loses its last name also counts as modified.
    if (isFile && unlinked) tell("modify", root)
    tell("remove", root)
    over = true
    some.openUnsafe()
  }
  const take = ({ from, kind, path: at }: Happening): void => {
    if (over) return
    if (from !== undefined) {
      if (from === root || at === root) return gone(at === root)
      if (root.startsWith(`${from}/`)) root = at + root.slice(from.length)
      else if (covers(from))
        tell(covers(at) ? "rename" : "remove", covers(at) ? at : from, covers(at) ? from : undefined)
      else if (covers(at)) arrived(at)
    } else if (at === root) {
      if (kind === "modify") tell("modify", at)
      else if (kind !== "create") gone(true)
    } else if (covers(at)) tell(kind === "put" ? "create" : kind, at)
  }
  /** Reports a file or directory that was moved in, with everything in it. */
  const arrived = (at: string): void => {
    tell("create", at)
    for (const it of disk.below(at)) if (covers(it)) arrived(it)
  }

  yield* Effect.acquireRelease(
    Effect.sync(() => disk.watch(take)),
    (leave) => Effect.sync(leave)
  )
  tell("start", root)
  for (;;) {
    yield* some.await
    const lines = waiting
    waiting = []
    if (!over) some.closeUnsafe()
    if (lines.length === 0) return { end: {} }
    const text = lines.map(({ from, kind, path }) =>
      JSON.stringify({ kind, path: encodeName(path), ...(from !== undefined && { from: encodeName(from) }) })
    )
    yield* send(Buffer.from(`${text.join("\n")}\n`))
  }
})
