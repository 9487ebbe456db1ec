/** Reads a file or a directory of the host as a stream, to copy it into a guest. */
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import * as Tar from "effect/encoding/Tar"
import { constants, promises as fs, type Stats } from "node:fs"
import * as FileName from "../internal/FileName.ts"

/** Names of PAX records for paths and link targets that are not UTF-8, in hex. */
export const paxPath = "EXECSANDBOX.path"
export const paxLink = "EXECSANDBOX.linkpath"

const slash = Buffer.from("/")
const unit = 128 * 1024

/** The path of a directory's entry, as bytes. */
export const join = (directory: Buffer, name: Buffer): Buffer => Buffer.concat([directory, slash, name])

/** A file operation on the host failed at `path`. */
export class HostFailed extends Data.TaggedError("HostFailed")<{ readonly path: Buffer; readonly error: unknown }> {}

export const attempt = <A>(path: Buffer, work: () => Promise<A>): Effect.Effect<A, HostFailed> =>
  Effect.tryPromise({ try: work, catch: (error) => new HostFailed({ path, error }) })

const changed = (path: Buffer) => new HostFailed({ path, error: Object.assign(new Error(), { code: "CHANGED" }) })

/**
 * The content of a file that had `size` bytes: exactly so many, or `HostFailed` with `CHANGED` when it has become shorter. It
 * does not wait for a FIFO that has replaced the file.
 */
export const content = (path: Buffer, size: number): Stream.Stream<Uint8Array, HostFailed> =>
  Stream.unwrap(
    Effect.gen(function* () {
      const handle = yield* Effect.acquireRelease(
        attempt(path, () => fs.open(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOFOLLOW)),
        (it) => Effect.promise(() => it.close())
      )
      const { isFile } = yield* attempt(path, async () => ({ isFile: (await handle.stat()).isFile() }))
      if (!isFile) return yield* changed(path)
      return Stream.paginate(0, (at: number) =>
        Effect.gen(function* () {
          if (at === size) return [[], Option.none<number>()] as const
          const buffer = Buffer.allocUnsafe(Math.min(unit, size - at))
          const { bytesRead } = yield* attempt(path, () => handle.read(buffer, 0, buffer.length, at))
          if (bytesRead === 0) return yield* changed(path)
          return [[new Uint8Array(buffer.buffer, buffer.byteOffset, bytesRead)], Option.some(at + bytesRead)] as const
        })
      )
    })
  )

/** What has been copied so far: entries, bytes of content, and entries left out. */
export interface Count {
  entries: number
  bytes: number
  skipped: number
}

const named = (name: Buffer, link: Buffer | undefined, stats: Stats): Tar.EntryOptions => {
  const pax: Record<string, string> = {}
  if (!FileName.fromBytes(name).isWellFormed()) pax[paxPath] = name.toString("hex")
  if (link !== undefined && !FileName.fromBytes(link).isWellFormed()) pax[paxLink] = link.toString("hex")
  return { mode: stats.mode & 0o777, mtime: new Date(Math.max(0, Math.floor(stats.mtimeMs))), pax }
}

/** A directory and everything in it, itself first. Links stay links; what is neither file, directory nor link is left out. */
export const tree = (root: Buffer, count: Count): Stream.Stream<Tar.Entry<HostFailed>, HostFailed> => {
  const entry = (name: Buffer, path: Buffer): Stream.Stream<Tar.Entry<HostFailed>, HostFailed> =>
    Stream.unwrap(
      Effect.gen(function* () {
        const stats = yield* attempt(path, () => (name.length === 0 ? fs.stat(path) : fs.lstat(path)))
        count.entries++
        if (stats.isSymbolicLink()) {
          const target = yield* attempt(path, () => fs.readlink(path, { encoding: "buffer" }))
          return Stream.make(Tar.symlink(name.toString(), target.toString(), named(name, target, stats)))
        }
        if (stats.isFile()) {
          count.bytes += stats.size
          const options = named(name, undefined, stats)
          return Stream.make(Tar.fileStream(name.toString(), stats.size, content(path, stats.size), options))
        }
        if (!stats.isDirectory()) {
          count.entries--
          count.skipped++
          return Stream.empty
        }
        const children = yield* attempt(path, () => fs.readdir(path, { encoding: "buffer" }))
        const itself = Tar.directory(name.length === 0 ? "./" : name.toString(), named(name, undefined, stats))
        return Stream.make(itself).pipe(
          Stream.concat(
            Stream.fromIterable(children.sort(Buffer.compare)).pipe(
              Stream.flatMap((child) => entry(name.length === 0 ? child : join(name, child), join(path, child)))
            )
          )
        )
      })
    )
  return entry(Buffer.alloc(0), root)
}
