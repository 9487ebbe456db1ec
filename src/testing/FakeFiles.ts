/** Answers the requests of `session.files` from a disk in memory. It has no owners, so it denies no access. */
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as path from "node:path/posix"
import { encodeName, Name } from "../guest/Names.ts"
import * as FileName from "../internal/FileName.ts"
import { type Code, directory, type FakeDisk, type Node } from "./FakeDisk.ts"

/** The guest's answer: bytes to send, and the END. */
export interface Answer {
  readonly data?: Uint8Array
  readonly end: object
}

const decode = Schema.decodeUnknownOption(
  Schema.Struct({
    method: Schema.String,
    path: Name,
    to: Schema.optionalKey(Name),
    offset: Schema.optionalKey(Schema.Finite),
    length: Schema.optionalKey(Schema.Finite),
    mode: Schema.optionalKey(Schema.Int),
    modified: Schema.optionalKey(Schema.Int),
    createParents: Schema.optionalKey(Schema.Boolean),
    recursive: Schema.optionalKey(Schema.Boolean),
    force: Schema.optionalKey(Schema.Boolean),
    noFollow: Schema.optionalKey(Schema.Boolean)
  })
)

export const failed = (code: Code, where: string): Answer => ({ end: { error: { code, path: encodeName(where) } } })

const stat = ({ bytes, mode, modified, type }: Node) => ({
  type,
  size: type === "directory" ? 4096 : bytes.length,
  mode,
  modified,
  uid: 1000,
  gid: 1000,
  ...(type === "symlink" && { target: encodeName(FileName.fromBytes(bytes)) })
})

/** Methods that apply to a link itself, not to its target. */
const ofItself = new Set(["file.remove", "file.rename", "file.makeDirectory"])

/** Answers a request; `content` is the data sent with it. `undefined` for an unknown method. */
export const answer = (disk: FakeDisk, request: unknown, content: Uint8Array, now: number): Answer | undefined => {
  const decoded = Option.getOrUndefined(decode(request))
  if (decoded === undefined) return undefined
  const {
    createParents = false,
    force = false,
    length,
    method,
    mode,
    modified = now,
    noFollow = false,
    offset = 0
  } = decoded
  const refused = (code: Code): Answer => failed(code, decoded.path)
  const follow = !noFollow && !ofItself.has(method)
  let found = disk.find(decoded.path, follow)
  if (found === "ENOENT" && createParents) {
    const at = path.resolve("/home/user", decoded.path)
    found = disk.parents(at, now) ?? disk.find(decoded.path, follow)
  }
  if (typeof found === "string") return method === "file.remove" && force ? { end: {} } : refused(found)
  const { at, node } = found
  switch (method) {
    case "file.read": {
      if (node === undefined) return refused("ENOENT")
      if (node.type === "directory") return refused("EISDIR")
      const data = node.bytes.subarray(offset, length === undefined ? undefined : offset + length)
      return { data, end: { size: node.bytes.length, bytes: data.length } }
    }
    case "file.stat":
      return node === undefined ? refused("ENOENT") : { end: stat(node) }
    case "file.list": {
      if (node === undefined) return refused("ENOENT")
      if (node.type !== "directory") return refused("ENOTDIR")
      const lines = disk.below(at).map((it) => {
        const found = disk.find(it, false)
        if (typeof found === "string" || found.node === undefined) return ""
        return `${JSON.stringify({ name: encodeName(path.basename(it)), ...stat(found.node) })}\n`
      })
      return { data: Buffer.from(lines.join("")), end: { entries: lines.length } }
    }
    case "file.write":
      if (node?.type === "directory" || decoded.path.endsWith("/")) return refused("EISDIR")
      disk.place(at, { type: "file", bytes: Buffer.from(content), mode: mode ?? node?.mode ?? 0o644, modified })
      return { end: { bytes: content.length } }
    case "file.makeDirectory": {
      if (node !== undefined) return createParents && node.type === "directory" ? { end: {} } : refused("EEXIST")
      disk.place(at, directory(now, mode))
      return { end: {} }
    }
    case "file.remove":
      if (node === undefined) return force ? { end: {} } : refused("ENOENT")
      if (disk.below(at).length > 0 && decoded.recursive !== true) return refused("ENOTEMPTY")
      disk.remove(at)
      return { end: {} }
    case "file.rename": {
      const to = disk.find(decoded.to ?? "", false)
      if (node === undefined) return refused("ENOENT")
      if (typeof to === "string") return refused(to)
      if (to.at === at) return { end: {} }
      if (to.at.startsWith(`${at}/`)) return refused("EINVAL")
      if (to.node !== undefined && (to.node.type === "directory") !== (node.type === "directory")) {
        return refused(node.type === "directory" ? "ENOTDIR" : "EISDIR")
      }
      if (disk.below(to.at).length > 0) return refused("ENOTEMPTY")
      disk.rename(at, to.at)
      return { end: {} }
    }
    default:
      return undefined
  }
}
