/**
 * The directory of images, and everything that changes it.
 *
 * An image is prepared in `tmp/<name>/` under the lock `locks/<name>.lock` and renamed into `images/<id>/`; nothing in there
 * is ever written again. `current/<arch>-<inputs>` holds the id of the image that belongs to those sources. A directory in
 * `tmp` whose lock is free was left by a process that died, and is removed.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { lstat, mkdir, open, readdir, readFile, rename, rm, stat, utimes, writeFile } from "node:fs/promises"
import { join } from "node:path"
import { ensureCacheDirectory } from "../host/CacheDirectory.ts"
import { hashFile } from "../internal/hashFile.ts"
import { epoch, fileNames, imageId, type Manifest, ManifestJson, type Part, parts } from "./Manifest.ts"
import { io, type IoFailed } from "../internal/io.ts"
import { type LockFailed, withLock, withLockIfFree } from "../internal/Lock.ts"
import { report } from "../internal/Progress.ts"
import type { SandboxError } from "../SandboxError.ts"

/** An image in its directory. `files` are absolute paths. */
export interface Stored {
  readonly id: string
  readonly manifest: Manifest
  readonly directory: string
  readonly files: { readonly arch: Manifest["arch"] } & Readonly<Record<Part, string>>
}

/** Interrupted downloads and images that were not used for this long (ms) are removed: 14 days. */
const unusedFor = 14 * 24 * 3600 * 1000
/** At most this many of the images used within that time are kept: a developer builds one with every change. */
const keptImages = 8
/** How often (ms) the use of an image is recorded in its directory's time, so that one in use is never removed. */
const noteEvery = 30 * 60 * 1000

/** The part of a snapshot's manifest that is needed here. */
const decodeSnapshot = Schema.decodeUnknownOption(Schema.fromJsonString(Schema.Struct({ image: Schema.String })))

const namesIn = (directory: string): Effect.Effect<ReadonlyArray<string>> =>
  Effect.promise(() => readdir(directory).catch(() => []))

/** The image with this manifest in this directory. */
export const imageAt = (directory: string, manifest: Manifest): Stored => ({
  id: manifest.id,
  manifest,
  directory,
  files: {
    arch: manifest.arch,
    kernel: join(directory, fileNames.kernel),
    initrd: join(directory, fileNames.initrd),
    root: join(directory, fileNames.root),
    scratch: join(directory, fileNames.scratch)
  }
})

/** Reads an image's manifest. */
export const readManifest = (directory: string): Effect.Effect<Manifest, IoFailed | Schema.SchemaError> =>
  Effect.flatMap(
    io(() => readFile(join(directory, "manifest.json"), "utf8")),
    (text) => Schema.decodeEffect(ManifestJson)(text)
  )

/** Compares every byte of an image with its manifest; returns the problem found, or nothing. */
export const compare = (image: Stored): Effect.Effect<string | undefined, IoFailed> =>
  io(async () => {
    if (imageId(image.manifest) !== image.id) return "the manifest does not belong to this image"
    for (const part of parts) {
      if (!(await lstat(image.files[part])).isFile()) return `${fileNames[part]} is not a regular file`
      const found = await hashFile(image.files[part])
      const wanted = image.manifest.files[part]
      if (found.size !== wanted.size || found.sha256 !== wanted.sha256) return `${fileNames[part]} is damaged`
    }
    return diskProblem(image.files.scratch)
  })

/** A qcow2 header can name other files of the host (backing file, external data): that of an image must not. */
const diskProblem = async (path: string): Promise<string | undefined> => {
  const file = await open(path, "r")
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(104), 0, 104, 0)
    if (bytesRead < 104 || buffer.toString("latin1", 0, 4) !== "QFI\xfb") return "the scratch disk is no qcow2 file"
    const backing = buffer.readBigUInt64BE(8)
    const external = (buffer.readBigUInt64BE(72) & 4n) !== 0n
    return backing !== 0n || external ? "the scratch disk refers to another file" : undefined
  } finally {
    await file.close()
  }
}

/** Flushes a file to the disk, before its directory gets its final name. */
const sync = async (path: string): Promise<void> => {
  const file = await open(path, "r")
  try {
    await file.sync()
  } finally {
    await file.close()
  }
}

/** The store in a cache directory, which is created at the first write. */
export const makeStore = (cache: string) => {
  const images = join(cache, "images")
  const current = join(cache, "current")
  const downloads = join(cache, "downloads")
  const temporary = join(cache, "tmp")
  const lock = (name: string): string => join(cache, "locks", `${name}.lock`)
  const pointer = (arch: string, inputs: string): string => join(current, `${arch}-${inputs}`)

  /** Images that this process has read, so that using one again costs four `stat`s; and when their use was recorded. */
  const known = new Map<string, { readonly image: Stored; readonly noted: number }>()

  const load = (id: string): Effect.Effect<Option.Option<Stored>> =>
    Effect.gen(function* () {
      const directory = join(images, id)
      const before = known.get(id)
      const image = before?.image ?? imageAt(directory, yield* readManifest(directory))
      for (const part of parts) {
        const found = yield* io(() => lstat(image.files[part]))
        if (!found.isFile() || found.size !== image.manifest.files[part].size || found.mtimeMs !== epoch * 1000)
          return yield* Effect.fail(`${part} was changed`)
      }
      if (image.id !== id) return yield* Effect.fail("its manifest names another image")
      const now = yield* Clock.currentTimeMillis
      if (before === undefined || before.noted < now - noteEvery) {
        known.set(id, { image, noted: now })
        yield* Effect.ignore(io(() => utimes(directory, new Date(now), new Date(now))))
      }
      return image
    }).pipe(
      Effect.tapError(() => Effect.sync(() => known.delete(id))),
      Effect.option
    )

  const ids = Effect.map(namesIn(images), (names) => names.filter((name) => /^[0-9a-f]{32}$/.test(name)))

  /** The images of this cache's snapshots. */
  const snapshotted = Effect.map(
    Effect.flatMap(namesIn(join(cache, "snapshots")), (names) =>
      Effect.forEach(names, (name) =>
        Effect.option(io(() => readFile(join(cache, "snapshots", name, "manifest.json"), "utf8")))
      )
    ),
    (texts) =>
      new Set(texts.flatMap((text) => Option.toArray(Option.flatMap(text, decodeSnapshot))).map(({ image }) => image))
  )

  const removeNow = (id: string): Effect.Effect<void, IoFailed> =>
    io(async () => {
      known.delete(id)
      for (const name of await readdir(current).catch(() => [])) {
        const path = join(current, name)
        if ((await readFile(path, "utf8").catch(() => "")) === id) await rm(path, { force: true })
      }
      await rm(join(images, id), { recursive: true, force: true })
    })

  return {
    cache,

    /** Where the file with this hash is downloaded to; it stays until it is complete. */
    downloadPath: (sha256: string): string => join(downloads, `${sha256}.part`),

    /** The image, if the sizes and times of its files are right. */
    load,

    /** The image that belongs to these sources. */
    current: (arch: string, inputs: string): Effect.Effect<Option.Option<Stored>> =>
      Effect.gen(function* () {
        const id = yield* Effect.promise(() => readFile(pointer(arch, inputs), "utf8").catch(() => ""))
        const image = id === "" ? Option.none<Stored>() : yield* load(id)
        return Option.filter(image, (it) => it.manifest.arch === arch)
      }),

    /** All complete images, newest first. */
    list: Effect.gen(function* () {
      const found = yield* Effect.forEach(yield* ids, load)
      return found
        .flatMap((image) => Option.toArray(image))
        .sort((a, b) => b.manifest.created.localeCompare(a.manifest.created))
    }),

    /** Runs work in an empty directory, which is removed afterwards; one at a time per name, over all processes. */
    exclusively: <A, E>(
      name: string,
      work: (directory: string) => Effect.Effect<A, E>
    ): Effect.Effect<A, E | SandboxError | IoFailed | LockFailed> =>
      Effect.gen(function* () {
        yield* ensureCacheDirectory(cache)
        const directory = join(temporary, name)
        const clear = io(() => rm(directory, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 }))
        return yield* withLock(
          lock(name),
          clear.pipe(
            Effect.andThen(io(() => mkdir(directory, { recursive: true }))),
            Effect.andThen(Effect.suspend(() => work(directory))),
            Effect.ensuring(Effect.ignore(clear))
          ),
          { waiting: report({ stage: "image", message: "waiting for another process that works on the same image" }) }
        )
      }),

    /** Removes what dead processes left, and downloads that were not continued. */
    sweep: Effect.gen(function* () {
      for (const name of yield* namesIn(temporary)) {
        yield* withLockIfFree(
          lock(name),
          io(() => rm(join(temporary, name), { recursive: true, force: true }))
        )
      }
      const old = (yield* Clock.currentTimeMillis) - unusedFor
      for (const name of yield* namesIn(downloads)) {
        const path = join(downloads, name)
        if ((yield* io(() => stat(path))).mtimeMs < old) yield* io(() => rm(path, { force: true }))
      }
    }).pipe(Effect.ignore),

    /** Moves a prepared image into its place and makes it the one for these inputs. */
    install: (
      prepared: string,
      manifest: Manifest,
      inputs: string
    ): Effect.Effect<Stored, IoFailed | LockFailed | Schema.SchemaError> =>
      Effect.gen(function* () {
        const text = yield* Schema.encodeEffect(ManifestJson)(manifest)
        yield* io(async () => {
          await writeFile(join(prepared, "manifest.json"), text)
          await sync(join(prepared, "manifest.json"))
          for (const part of parts) {
            await utimes(join(prepared, fileNames[part]), epoch, epoch)
            await sync(join(prepared, fileNames[part]))
          }
        })
        const directory = join(images, manifest.id)
        const present = yield* load(manifest.id)
        const path = pointer(manifest.arch, inputs)
        yield* Effect.uninterruptible(
          withLock(
            lock("install"),
            io(async () => {
              await mkdir(images, { recursive: true })
              await mkdir(current, { recursive: true })
              if (Option.isNone(present)) {
                await rm(directory, { recursive: true, force: true })
                await rename(prepared, directory)
              }
              await writeFile(`${path}.new`, manifest.id)
              await rename(`${path}.new`, path)
            })
          )
        )
        return imageAt(directory, manifest)
      }),

    /** Removes an image and the pointers to it. */
    remove: (id: string): Effect.Effect<void, IoFailed | LockFailed> => withLock(lock("install"), removeNow(id)),

    /** Removes images that are no longer used, except for `keep` and those that snapshots need. */
    removeUnused: (keep: string): Effect.Effect<void> =>
      Effect.gen(function* () {
        const now = yield* Clock.currentTimeMillis
        const used = yield* Effect.forEach(yield* ids, (id) =>
          io(async () => ({ id, at: (await stat(join(images, id))).mtimeMs }))
        )
        const needed = yield* snapshotted
        const rest = used.filter(({ id }) => id !== keep && !needed.has(id)).sort((a, b) => b.at - a.at)
        for (const [rank, { at, id }] of rest.entries()) {
          const superseded = rank >= keptImages && at < now - 2 * noteEvery
          if (superseded || at < now - unusedFor) yield* withLock(lock("install"), removeNow(id))
        }
      }).pipe(Effect.ignore)
  }
}
