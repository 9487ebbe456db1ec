/** A file system in memory, as much of one as `session.files` asks for beside `watch` and trees. */
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as path from "node:path/posix"

/** A file; one that is written to is another. */
export interface Node {
  readonly type: "file" | "directory"
  readonly bytes: Buffer
  readonly mode: number
  readonly modified: number
}

/** The guest's answer: bytes to send, and its END. */
export interface Answer {
  readonly data?: Uint8Array
  readonly end: object
}

export interface FakeFiles {
  /** The same files by themselves. */
  readonly copy: () => FakeFiles
  /** All there are now, by their absolute names. */
  readonly all: () => ReadonlyMap<string, Node>
  /** A file's content, or nothing. */
  readonly read: (name: string) => Uint8Array | undefined
  /** Puts a file there, with all directories above it. */
  readonly write: (name: string, content: string | Uint8Array) => void
  /** Answers a request; `content` is what was sent with it. Nothing for a method that is not there. */
  readonly answer: (request: unknown, content: Uint8Array, nowMs: number) => Answer | undefined
}

const home = "/home/user"

const decode = Schema.decodeUnknownOption(
  Schema.Struct({
    method: Schema.String,
    path: Schema.String,
    to: Schema.optionalKey(Schema.String),
    offset: Schema.optionalKey(Schema.Finite),
    length: Schema.optionalKey(Schema.Finite),
    mode: Schema.optionalKey(Schema.Int),
    createParents: Schema.optionalKey(Schema.Boolean),
    recursive: Schema.optionalKey(Schema.Boolean),
    force: Schema.optionalKey(Schema.Boolean)
  })
)

const error = (code: string, where: string): Answer => ({ end: { error: { code, path: where } } })

const directory = (modified: number, mode = 0o755): Node => ({
  type: "directory",
  bytes: Buffer.alloc(0),
  mode,
  modified
})

const absolute = (name: string): string => path.resolve(home, name)

export const make = (): FakeFiles => over(new Map(["/", "/home", home, "/tmp"].map((name) => [name, directory(0)])))

const over = (nodes: Map<string, Node>): FakeFiles => {
  const parents = (name: string, now: number): void => {
    for (let at = path.dirname(name); !nodes.has(at); at = path.dirname(at)) nodes.set(at, directory(now))
  }
  const below = (name: string): ReadonlyArray<string> =>
    [...nodes.keys()].filter((it) => it !== "/" && path.dirname(it) === name)
  const put = (name: string, bytes: Uint8Array, now: number, mode = nodes.get(name)?.mode ?? 0o644): void =>
    void nodes.set(name, { type: "file", bytes: Buffer.from(bytes), mode, modified: now })
  const stat = ({ bytes, mode, modified, type }: Node) => ({
    type,
    size: type === "file" ? bytes.length : 4096,
    mode,
    modified,
    uid: 1000,
    gid: 1000
  })

  return {
    copy: () => over(new Map(nodes)),
    all: () => new Map(nodes),
    read: (name) => nodes.get(absolute(name))?.bytes,
    write: (name, content) => {
      parents(absolute(name), 0)
      put(absolute(name), Buffer.from(content as string), 0)
    },
    answer: (request, content, now) => {
      const decoded = decode(request)
      if (Option.isNone(decoded)) return undefined
      const {
        createParents = false,
        force = false,
        length,
        method,
        mode,
        offset = 0,
        recursive = false
      } = decoded.value
      const name = absolute(decoded.value.path)
      const node = nodes.get(name)
      const above = nodes.get(path.dirname(name))
      const missing = error("ENOENT", decoded.value.path)
      switch (method) {
        case "file.read": {
          if (node === undefined) return missing
          if (node.type === "directory") return error("EISDIR", decoded.value.path)
          const data = node.bytes.subarray(offset, length === undefined ? undefined : offset + length)
          return { data, end: { size: node.bytes.length, bytes: data.length } }
        }
        case "file.stat":
          return node === undefined ? missing : { end: stat(node) }
        case "file.list": {
          if (node === undefined) return missing
          if (node.type !== "directory") return error("ENOTDIR", decoded.value.path)
          const lines = below(name).map((it) => {
            const found = nodes.get(it)
            return found === undefined ? "" : `${JSON.stringify({ name: path.basename(it), ...stat(found) })}\n`
          })
          return { data: Buffer.from(lines.join("")), end: {} }
        }
        case "file.write":
        case "file.makeDirectory": {
          if (above === undefined && !createParents) return missing
          if (above?.type === "file") return error("ENOTDIR", decoded.value.path)
          parents(name, now)
          if (method === "file.write") {
            if (node?.type === "directory") return error("EISDIR", decoded.value.path)
            put(name, content, now, mode)
            return { end: { bytes: content.length } }
          }
          if (node !== undefined && !(createParents && node.type === "directory")) {
            return error("EEXIST", decoded.value.path)
          }
          nodes.set(name, directory(now, mode))
          return { end: {} }
        }
        case "file.remove": {
          if (node === undefined) return force ? { end: {} } : missing
          if (below(name).length > 0 && !recursive) return error("ENOTEMPTY", decoded.value.path)
          for (const it of nodes.keys()) if (it === name || it.startsWith(`${name}/`)) nodes.delete(it)
          return { end: {} }
        }
        case "file.rename": {
          const to = absolute(decoded.value.to ?? "")
          if (node === undefined || !nodes.has(path.dirname(to))) return missing
          const moving = [...nodes].filter(([it]) => it === name || it.startsWith(`${name}/`))
          for (const [it, moved] of moving) {
            nodes.delete(it)
            nodes.set(`${to}${it.slice(name.length)}`, moved)
          }
          return { end: {} }
        }
        default:
          return undefined
      }
    }
  }
}
