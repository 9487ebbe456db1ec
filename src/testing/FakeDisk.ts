/** A disk in memory: files, directories and links by their absolute names, and who is told of what becomes of them. */
import * as path from "node:path/posix"
import * as FileName from "../internal/FileName.ts"

/** A file; one that is written to is another. A link's bytes are what it points at. */
export interface Node {
  readonly type: "file" | "directory" | "symlink"
  readonly bytes: Buffer
  readonly mode: number
  readonly modified: number
}

/** What became of one name; `put` is a whole new content in a file's place. */
export interface Happening {
  readonly kind: "create" | "put" | "modify" | "remove" | "rename"
  readonly path: string
  readonly from?: string
}

/** The name of an errno. */
export type Code =
  | "ENOENT"
  | "ENOTDIR"
  | "EISDIR"
  | "EEXIST"
  | "ENOTEMPTY"
  | "ELOOP"
  | "EINVAL"
  | "ENAMETOOLONG"
  | "EIO"

/** Where a path leads, whether or not something is there; or why nowhere. */
export type Found = { readonly at: string; readonly node: Node | undefined } | Code

export interface FakeDisk {
  /** The same files by themselves. */
  readonly copy: () => FakeDisk
  /** All there are now, by their absolute names. */
  readonly all: () => ReadonlyMap<string, Node>
  /** A file's content, or nothing. */
  readonly read: (name: string) => Uint8Array | undefined
  /** Writes into a file as a program does, with all directories above it. */
  readonly write: (name: string, content: string | Uint8Array) => void
  /** What there is; `follow` says whether of a link itself or of what it points at. */
  readonly find: (name: string, follow: boolean) => Found
  /** The names in a directory, in order. */
  readonly below: (at: string) => ReadonlyArray<string>
  /** Makes the directories that are missing above a name. */
  readonly parents: (at: string, now: number) => Code | undefined
  /** Puts it there, in place of what there is. `program`: as a program writes, not in one step. */
  readonly place: (at: string, node: Node, program?: boolean) => void
  /** Gives a directory its mode and time, which nobody is told. */
  readonly settle: (at: string, node: Node) => void
  /** Takes it away with all below. */
  readonly remove: (at: string) => void
  readonly rename: (from: string, to: string) => void
  /** Tells what happens from now on, until what it gives is called. */
  readonly watch: (listener: (happening: Happening) => void) => () => void
}

const home = "/home/user"

/** What the agent keeps there is nobody's change. */
export const agentsDirectory = "/var/lib/exec-sandbox"

/** What a link points at. */
export const targetOf = (link: Node): string => FileName.fromBytes(link.bytes)

/** Links that are followed in one path. */
const maxLinks = 40

const nothing = Buffer.alloc(0)

export const directory = (modified: number, mode = 0o755): Node => ({
  type: "directory",
  bytes: nothing,
  mode,
  modified
})

const standard = ["/", "/home", home, "/tmp", "/var", "/var/lib", agentsDirectory, `${agentsDirectory}/output`]

export const make = (): FakeDisk => over(new Map(standard.map((name) => [name, directory(0)])))

/** A path as it is meant, from the root on; links and `..` are as they were written. */
export const absolute = (name: string): string => (name.startsWith("/") ? name : `${home}/${name}`)

const over = (nodes: Map<string, Node>): FakeDisk => {
  const listeners = new Set<(happening: Happening) => void>()
  const tell = (happening: Happening): void => {
    for (const listener of listeners) listener(happening)
  }
  const below = (at: string): ReadonlyArray<string> =>
    [...nodes.keys()].filter((it) => it !== "/" && path.dirname(it) === at).sort()
  const within = (at: string): ReadonlyArray<string> =>
    [...nodes.keys()].filter((it) => it === at || it.startsWith(at === "/" ? at : `${at}/`))

  const find = (name: string, follow: boolean): Found => {
    let links = 0
    const waiting = absolute(name).split("/")
    if (waiting.some((part) => (FileName.toBytes(part)?.length ?? 0) > 255)) return "ENAMETOOLONG"
    let at = "/"
    for (;;) {
      const node = nodes.get(at)
      const part = waiting.shift()
      if (part === undefined) return { at, node }
      if (part === "" || part === ".") continue
      if (node === undefined) return "ENOENT"
      if (node.type !== "directory") return "ENOTDIR"
      if (part === "..") {
        at = path.dirname(at)
        continue
      }
      const next = path.join(at, part)
      const link = nodes.get(next)
      if (link?.type === "symlink" && (follow || waiting.some((it) => it !== ""))) {
        if (++links > maxLinks) return "ELOOP"
        const target = targetOf(link)
        if (target.startsWith("/")) at = "/"
        waiting.unshift(...target.split("/"))
      } else at = next
    }
  }

  const parents = (at: string, now: number): Code | undefined => {
    const above = path.dirname(at)
    const node = nodes.get(above)
    if (node !== undefined) return node.type === "directory" ? undefined : "ENOTDIR"
    const refused = parents(above, now)
    if (refused !== undefined) return refused
    nodes.set(above, directory(now))
    tell({ kind: "create", path: above })
    return undefined
  }

  const place: FakeDisk["place"] = (at, node, program = false) => {
    const before = nodes.has(at)
    nodes.set(at, node)
    if (!program) return tell({ kind: before ? "put" : "create", path: at })
    if (!before) tell({ kind: "create", path: at })
    tell({ kind: "modify", path: at })
  }

  return {
    copy: () => over(new Map(nodes)),
    all: () => new Map(nodes),
    read: (name) => {
      const found = find(name, true)
      return typeof found === "string" || found.node?.type !== "file" ? undefined : found.node.bytes
    },
    write: (name, content) => {
      const at = path.resolve(home, name)
      const refused = parents(at, 0)
      const found = find(at, true)
      if (refused !== undefined || typeof found === "string" || found.node?.type === "directory") {
        throw new Error(
          `${at}: a script cannot write there (${refused ?? (typeof found === "string" ? found : "EISDIR")})`
        )
      }
      const bytes = Buffer.from(content as string)
      place(found.at, { type: "file", bytes, mode: found.node?.mode ?? 0o644, modified: 0 }, true)
    },
    find,
    below,
    parents,
    place,
    settle: (at, node) => void nodes.set(at, node),
    remove: (at) => {
      // The deepest first, as a kernel would have it.
      for (const it of within(at).toSorted((a, b) => (a < b ? 1 : -1))) {
        nodes.delete(it)
        tell({ kind: "remove", path: it })
      }
    },
    rename: (from, to) => {
      const moving = within(from).map((it) => [it, nodes.get(it)] as const)
      for (const [it] of moving) nodes.delete(it)
      for (const [it, node] of moving) if (node !== undefined) nodes.set(`${to}${it.slice(from.length)}`, node)
      tell({ kind: "rename", path: to, from })
    },
    watch: (listener) => {
      listeners.add(listener)
      return () => void listeners.delete(listener)
    }
  }
}
