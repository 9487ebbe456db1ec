/** Reads and writes whole directories of the fake disk as tar archives, for copies in and out. */
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import * as Tar from "effect/encoding/Tar"
import * as path from "node:path/posix"
import * as FileName from "../internal/FileName.ts"
import { paxLink, paxPath } from "../files/HostTree.ts"
import { type Code, directory, type FakeDisk, type Node, targetOf } from "./FakeDisk.ts"
import { failed } from "./FakeFiles.ts"
import type { AnswerTo, RequestOf } from "./Requests.ts"

type Tree = AnswerTo<"tree.read" | "tree.write">

class Refused extends Data.TaggedError("Refused")<{ readonly code: Code; readonly path: string }> {}

const refused = (code: Code, at: string) => new Refused({ code, path: at })

const plain = (name: string): string => (name.isWellFormed() ? name : name.toWellFormed())
const hex = (name: string): string => (FileName.toBytes(name) ?? Buffer.from(name)).toString("hex")

const exact = (header: Tar.Header, record: string, name: string): string => {
  const found = header.pax[record]
  return found === undefined ? name : FileName.fromBytes(Buffer.from(found, "hex"))
}

const entryOf = (name: string, node: Node): Tar.Entry => {
  const target = node.type === "symlink" ? targetOf(node) : ""
  const options = {
    mode: node.mode & 0o777,
    mtime: new Date(Math.floor(node.modified / 1000) * 1000),
    pax: {
      ...(!name.isWellFormed() && { [paxPath]: hex(name) }),
      ...(!target.isWellFormed() && { [paxLink]: hex(target) })
    }
  }
  if (node.type === "directory") return Tar.directory(plain(name), options)
  return node.type === "file"
    ? Tar.file(plain(name), node.bytes, options)
    : Tar.symlink(plain(name), plain(target), options)
}

const read = Effect.fnUntraced(function* (disk: FakeDisk, name: string) {
  const found = disk.find(name, true)
  if (typeof found === "string") return yield* refused(found, name)
  if (found.node?.type !== "directory") {
    return yield* refused(found.node === undefined ? "ENOENT" : "ENOTDIR", name)
  }
  const entries: Array<Tar.Entry> = []
  let bytes = 0
  const add = (at: string, inside: string, node: Node): void => {
    entries.push(entryOf(inside === "" ? "./" : inside, node))
    if (node.type === "file") bytes += node.bytes.length
    if (node.type !== "directory") return
    for (const it of disk.below(at)) {
      const below = disk.find(it, false)
      if (typeof below === "string" || below.node === undefined) continue
      add(it, inside === "" ? path.basename(it) : `${inside}/${path.basename(it)}`, below.node)
    }
  }
  add(found.at, "", found.node)
  const data = yield* Stream.runCollect(
    Stream.pipeThroughChannelOrFail(Stream.fromIterable(entries), Tar.encode<never, unknown, Tar.Entry>())
  )
  return { data: Buffer.concat(data), end: { entries: entries.length, bytes, skipped: 0 } }
})

const write = Effect.fnUntraced(function* (disk: FakeDisk, name: string, archive: Uint8Array, now: number) {
  const above = disk.parents(path.resolve("/home/user", name), now)
  if (above !== undefined) return yield* refused(above, name)
  const found = disk.find(name, true)
  if (typeof found === "string") return yield* refused(found, name)
  const root = found.at
  const created = found.node === undefined
  if (created) disk.place(root, directory(now))
  else if (found.node.type !== "directory") return yield* refused("ENOTDIR", name)
  let entries = 0
  let bytes = 0
  /** Directories get their times at the end, when nothing more is put into them. */
  const made: Array<readonly [string, Node]> = []

  const add = Effect.fnUntraced(function* (entry: Tar.Entry<Tar.TarError>) {
    const { header } = entry
    const inside = exact(header, paxPath, header.path).replace(/^\/+|\/+$/g, "")
    const at = inside === "" || inside === "." ? root : path.join(root, inside)
    const node = { mode: header.mode & 0o777, modified: header.mtime.getTime() }
    if (at === root) {
      if (created) made.push([root, directory(node.modified, node.mode)])
      return
    }
    const full = `${name}/${inside}`
    const missing = disk.parents(at, now)
    if (missing !== undefined) return yield* refused(missing, full)
    entries++
    const there = disk.all().get(at)
    if (header.type === "Directory") {
      if (there === undefined) {
        disk.place(at, directory(now))
        made.push([at, directory(node.modified, node.mode)])
      } else if (there.type !== "directory") return yield* refused("ENOTDIR", full)
      return
    }
    if (there?.type === "directory") return yield* refused("EISDIR", full)
    if (header.type === "Symlink") {
      const target = exact(header, paxLink, header.linkTarget ?? "")
      disk.place(at, { ...node, type: "symlink", mode: 0o777, bytes: FileName.toBytes(target) ?? Buffer.from(target) })
      return
    }
    const content = Buffer.concat(yield* Stream.runCollect(entry.body))
    bytes += content.length
    disk.place(at, { ...node, type: "file", bytes: content }, there === undefined)
  })

  yield* Stream.make(archive).pipe(
    Stream.pipeThroughChannelOrFail(Tar.decode<never, unknown>()),
    Stream.runForEach(add),
    Effect.catchIf(Tar.isTarError, () => Effect.fail(refused("EINVAL", name)))
  )
  for (const [at, node] of made) disk.settle(at, node)
  return { end: { entries, bytes, skipped: 0 } }
})

/** Answers a request; `content` is the data sent with it. */
export const answer = (
  disk: FakeDisk,
  { method, path: name }: RequestOf<"tree.read" | "tree.write">,
  content: Uint8Array,
  now: number
): Effect.Effect<Tree> => {
  const answered: Effect.Effect<Tree, Refused | Tar.TarError> =
    method === "tree.read" ? read(disk, name) : write(disk, name, content, now)
  return Effect.catchTags(answered, {
    Refused: ({ code, path: at }) => Effect.succeed(failed(code, at)),
    TarError: () => Effect.succeed(failed("EIO", name))
  })
}
