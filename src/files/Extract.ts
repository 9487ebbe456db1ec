/**
 * Unpacks an archive that a hostile guest may have made into a new directory of the host.
 *
 * Nothing is written outside of that directory, by construction: the host has just made it; every file and directory is
 * created exclusively, in a directory that this archive made before; symbolic links come last, when nothing is written any
 * more, and only those that stay inside.
 */
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import * as Tar from "effect/encoding/Tar"
import { constants, promises as fs } from "node:fs"
import * as FileName from "../internal/FileName.ts"
import { attempt, type Count, HostFailed, join, paxLink, paxPath } from "./HostTree.ts"

/** The archive could write outside of its target, or is not one that the agent would make. */
export class Unsafe extends Data.TaggedError("Unsafe")<{ readonly entry: string; readonly problem: string }> {}

/** The archive exceeds a bound. */
export class Excess extends Data.TaggedError("Excess")<{
  readonly allowed: number
  readonly unit: "bytes" | "entries"
}> {}

export interface Bounds {
  readonly maxBytes: number
  readonly maxEntries: number
  readonly outsideLinks: "refuse" | "skip"
}

/** The most bytes of headers, padding and records between two entries or pieces of content; the agent sends far fewer. */
const maxOverhead = 4 * 1024 * 1024

interface Directory {
  readonly mode: number
  readonly mtime: Date
}

type Parts = ReadonlyArray<string>

const key = (parts: Parts): string => parts.join("/")

/** The exact name of an entry; when its bytes are not UTF-8, it is in hex in a PAX record of this project. */
const exact = (header: Tar.Header, record: string, plain: string): string => {
  const hex = header.pax[record]
  return hex === undefined ? plain : FileName.fromBytes(Buffer.from(hex, "hex"))
}

/** The parts of an entry's path; empty for the tree itself. */
const partsOf = (name: string): Parts | Unsafe => {
  if (name.startsWith("/")) return new Unsafe({ entry: name, problem: "has an absolute name" })
  if (name.includes("\0")) return new Unsafe({ entry: name, problem: "has a name with a NUL character" })
  const parts = name.split("/").filter((part) => part !== "" && part !== ".")
  return parts.includes("..") ? new Unsafe({ entry: name, problem: "has a name with .." }) : parts
}

/**
 * Whether a link stays inside: resolves it as the kernel would, over what the archive made. `..` may only leave a path known
 * to be a directory: on a file system that ignores case, an unknown name may be that of a link.
 */
const staysInside = (
  at: Parts,
  target: string,
  directories: ReadonlyMap<string, unknown>,
  links: ReadonlyMap<string, string>
): boolean => {
  let hops = 0
  const walk = (from: Parts, path: string): Parts | undefined => {
    if (path.startsWith("/") || ++hops > 40) return undefined
    let where = from
    for (const part of path.split("/")) {
      if (part === "" || part === ".") continue
      if (part === "..") {
        if (where.length === 0 || !directories.has(key(where))) return undefined
        where = where.slice(0, -1)
        continue
      }
      const next = [...where, part]
      const link = links.get(key(next))
      const followed = link === undefined ? next : walk(where, link)
      if (followed === undefined) return undefined
      where = followed
    }
    return where
  }
  return walk(at.slice(0, -1), target) !== undefined
}

/** Unpacks into `root`, a new and empty directory, and counts what it made. */
export const extract = <E>(
  archive: Stream.Stream<Uint8Array, E>,
  root: Buffer,
  bounds: Bounds
): Effect.Effect<Count, E | HostFailed | Unsafe | Excess> =>
  Effect.gen(function* () {
    const count: Count = { entries: 0, bytes: 0, skipped: 0 }
    const directories = new Map<string, Directory>([["", { mode: 0o755, mtime: new Date() }]])
    const links = new Map<string, string>()
    let overhead = 0

    const pathOf = (parts: Parts): Effect.Effect<Buffer, Unsafe> => {
      let path = root
      for (const part of parts) {
        const bytes = FileName.toBytes(part)
        if (bytes === undefined)
          return Effect.fail(new Unsafe({ entry: key(parts), problem: "has a name that is not a valid file name" }))
        path = join(path, bytes)
      }
      return Effect.succeed(path)
    }

    /** Makes the missing directories above an entry. Fails at a link: only directories that this archive made are entered. */
    const enter = Effect.fnUntraced(function* (parts: Parts) {
      for (let depth = 1; depth < parts.length; depth++) {
        const above = parts.slice(0, depth)
        if (directories.has(key(above))) continue
        if (links.has(key(above))) return yield* new Unsafe({ entry: key(parts), problem: "leads through a link" })
        yield* makeDirectory(above, { mode: 0o755, mtime: new Date() })
      }
    })

    const makeDirectory = Effect.fnUntraced(function* (parts: Parts, directory: Directory) {
      if (++count.entries > bounds.maxEntries) return yield* new Excess({ allowed: bounds.maxEntries, unit: "entries" })
      const path = yield* pathOf(parts)
      yield* attempt(path, () => fs.mkdir(path, 0o700))
      directories.set(key(parts), directory)
    })

    const makeFile = Effect.fnUntraced(function* (parts: Parts, entry: Tar.Entry<Tar.TarError | Unsafe | E>) {
      const path = yield* pathOf(parts)
      const { header } = entry
      if (count.bytes + header.size > bounds.maxBytes)
        return yield* new Excess({ allowed: bounds.maxBytes, unit: "bytes" })
      count.bytes += header.size
      const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW
      const handle = yield* Effect.acquireRelease(
        attempt(path, () => fs.open(path, flags, 0o600)),
        (it) => Effect.promise(() => it.close())
      )
      yield* Stream.runForEach(entry.body, (bytes) => {
        overhead = 0
        return attempt(path, () => handle.writeFile(bytes))
      })
      yield* attempt(path, async () => {
        await handle.chmod(header.mode & 0o777)
        await handle.utimes(header.mtime, header.mtime)
      })
    }, Effect.scoped)

    const add = Effect.fnUntraced(function* (entry: Tar.Entry<Tar.TarError | Unsafe | E>) {
      const { header } = entry
      overhead = 0
      const name = exact(header, paxPath, header.path)
      // Unknown records are refused, because the decoder would keep any number of them.
      if (Object.keys(header.pax).some((it) => it !== paxPath && it !== paxLink)) {
        return yield* new Unsafe({ entry: name, problem: "has unknown PAX records" })
      }
      const parts = partsOf(name)
      if (parts instanceof Unsafe) return yield* parts
      const directory = { mode: header.mode & 0o777, mtime: header.mtime }
      if (parts.length === 0) {
        if (header.type !== "Directory")
          return yield* new Unsafe({ entry: name, problem: "would replace the tree itself" })
        directories.set("", directory)
        count.entries++
        return
      }
      if (directories.has(key(parts)) || links.has(key(parts))) {
        return yield* new Unsafe({ entry: name, problem: "is in the archive twice" })
      }
      yield* enter(parts)
      switch (header.type) {
        case "Directory":
          return yield* makeDirectory(parts, directory)
        case "File":
          if (++count.entries > bounds.maxEntries)
            return yield* new Excess({ allowed: bounds.maxEntries, unit: "entries" })
          return yield* makeFile(parts, entry)
        case "Symlink":
          if (++count.entries > bounds.maxEntries)
            return yield* new Excess({ allowed: bounds.maxEntries, unit: "entries" })
          links.set(key(parts), exact(header, paxLink, header.linkTarget ?? ""))
          return
        default:
          return yield* new Unsafe({ entry: name, problem: `is a ${header.type}, which is never copied` })
      }
    })

    yield* archive.pipe(
      Stream.mapEffect((bytes) => {
        overhead += bytes.length
        return overhead > maxOverhead
          ? Effect.fail(new Unsafe({ entry: "", problem: "is an archive with too little content for its size" }))
          : Effect.succeed(bytes)
      }),
      Stream.pipeThroughChannelOrFail(Tar.decode<E | Unsafe, unknown>()),
      Stream.runForEach(add),
      Effect.catchIf(Tar.isTarError, (error) =>
        Effect.fail(new Unsafe({ entry: "", problem: `is not a valid archive: ${error.message}` }))
      )
    )

    for (const [name, target] of links) {
      const parts = name.split("/")
      const path = yield* pathOf(parts)
      const bytes = FileName.toBytes(target)
      if (bytes === undefined || bytes.length === 0 || !staysInside(parts, target, directories, links)) {
        if (bounds.outsideLinks === "refuse")
          return yield* new Unsafe({ entry: name, problem: "is a link that leads outside" })
        count.entries--
        count.skipped++
        continue
      }
      yield* attempt(path, () => fs.symlink(bytes, path))
    }
    // The deepest first: below a directory whose mode forbids entering it, nothing could be changed any more.
    for (const [name, { mode, mtime }] of [...directories].toReversed()) {
      const path = yield* pathOf(name === "" ? [] : name.split("/"))
      yield* attempt(path, async () => {
        await fs.utimes(path, mtime, mtime)
        await fs.chmod(path, mode)
      })
    }
    return count
  })
