/** A disk in memory: files, directories and links by their absolute names, and listeners for their changes. */
import * as path from "node:path/posix"
import * as FileName from "../internal/FileName.ts"

/** A file, directory or link. It does not change: a write makes another. The bytes of a link are its target. */
export interface Node {
  readonly type: "file" | "directory" | "symlink"
  readonly bytes: Buffer
  readonly mode: number
  readonly modified: number
}

/** A change of one name; `put` replaces a file with new content in one step. */
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

/** Where a path leads, whether or not a file is there; or the errno why it leads nowhere. */
export type Found = { readonly at: string; readonly node: Node | undefined } | Code

export interface FakeDisk {
  /** A copy of the disk. */
  readonly copy: () => FakeDisk
  /** All files now, by their absolute names. */
  readonly all: () => ReadonlyMap<string, Node>
  /** A file's content, or `undefined`. */
  readonly read: (name: string) => Uint8Array | undefined
  /** Writes a file as a program does, and makes the directories above it. */
  readonly write: (name: string, content: string | Uint8Array) => void
  /** Finds a file; `follow` says whether a link at the end is followed. */
  readonly find: (name: string, follow: boolean) => Found
  /** The names in a directory, in order. */
  readonly below: (at: string) => ReadonlyArray<string>
  /** Makes the missing directories above a name. */
  readonly parents: (at: string, now: number) => Code | undefined
  /** Puts a file there and replaces what is there: in one step, or with `program` as a program writes. */
  readonly place: (at: string, node: Node, program?: boolean) => void
  /** Gives a directory its mode and time, without telling the listeners. */
  readonly settle: (at: string, node: Node) => void
  /** Removes a file or a whole directory. */
  readonly remove: (at: string) => void
  readonly rename: (from: string, to: string) => void
  /** Calls `listener` for each change from now on, until the function that it returns is called. */
  readonly watch: (listener: (happening: Happening) => void) => () => void
}

const home = "/home/user"

/** The agent's own directory; its files are not reported as changes. */
export const agentsDirectory = "/var/lib/exec-sandbox"

/** The target of a link. */
export const targetOf = (link: Node): string => FileName.fromBytes(link.bytes)

/** The most links that are followed in one path. */
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

/** An absolute path; links and `..` stay as they were written. */
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
      // The deepest first, as a kernel would report it.
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
