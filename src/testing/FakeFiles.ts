/** Answers the requests of `session.files` from a disk in memory. It has no owners, so it denies no access. */
import * as path from "node:path/posix"
import type { FileFailed } from "../guest/Methods.ts"
import { encodeName } from "../guest/Names.ts"
import * as FileName from "../internal/FileName.ts"
import type { AnswerTo, FileFields, FileRequest } from "./Requests.ts"
import { type Code, directory, type FakeDisk, type Node } from "./FakeDisk.ts"

export const failed = (code: Code, where: string): { readonly end: typeof FileFailed.Encoded } => ({
  end: { error: { code, path: encodeName(where) } }
})

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

/** Answers a request; `content` is the data sent with it. */
export const answer = (
  disk: FakeDisk,
  request: FileRequest,
  content: Uint8Array,
  now: number
): AnswerTo<FileRequest["method"]> => {
  const { method } = request
  const given: FileFields = request
  const { createParents = false, force = false, length, mode, modified = now, noFollow = false, offset = 0 } = given
  const refused = (code: Code) => failed(code, request.path)
  const follow = !noFollow && !ofItself.has(method)
  let found = disk.find(request.path, follow)
  if (found === "ENOENT" && createParents) {
    const at = path.resolve("/home/user", request.path)
    found = disk.parents(at, now) ?? disk.find(request.path, follow)
  }
  if (typeof found === "string") return method === "file.remove" && force ? { end: {} } : refused(found)
  const { at, node } = found
  switch (request.method) {
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
      if (node?.type === "directory" || request.path.endsWith("/")) return refused("EISDIR")
      disk.place(at, { type: "file", bytes: Buffer.from(content), mode: mode ?? node?.mode ?? 0o644, modified })
      return { end: { bytes: content.length } }
    case "file.makeDirectory": {
      if (node !== undefined) return createParents && node.type === "directory" ? { end: {} } : refused("EEXIST")
      disk.place(at, directory(now, mode))
      return { end: {} }
    }
    case "file.remove":
      if (node === undefined) return force ? { end: {} } : refused("ENOENT")
      if (disk.below(at).length > 0 && given.recursive !== true) return refused("ENOTEMPTY")
      disk.remove(at)
      return { end: {} }
    case "file.rename": {
      const to = disk.find(request.to, false)
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
  }
}
