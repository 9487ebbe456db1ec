/**
 * A store of saved machines: templates and snapshots. Each is a directory named by its key, with a manifest that describes
 * every file.
 *
 * A machine is written to a directory with a temporary name, which is renamed when it is complete; to remove a machine, its
 * directory is renamed first. So a key names a complete machine or nothing, whenever a process is killed.
 */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as fs from "node:fs"
import * as path from "node:path"
import { Lock } from "../Packages.ts"
import { makeDirectory } from "../internal/Files.ts"
import { hashFile } from "../internal/hashFile.ts"
import * as Temporary from "../internal/Temporary.ts"

/** The version of the directory's layout and of the machine sealed in it; part of every key. */
export const format = 1

const fileNames = ["ram", "state", "disk.qcow2", "overlay.qcow2"] as const

const FileEntry = Schema.Struct({
  size: Schema.Finite,
  mtimeNs: Schema.String,
  ctimeNs: Schema.String,
  sha256: Schema.String
})

const Manifest = Schema.Struct({
  format: Schema.Literal(format),
  key: Schema.String,
  image: Schema.String,
  qemu: Schema.String,
  accelerator: Schema.String,
  memoryMiB: Schema.Int,
  createdAt: Schema.String,
  /** The packages that were installed in addition to the image. */
  packages: Schema.optionalKey(Lock),
  bytes: Schema.Finite,
  /** Further data of the store's owner. */
  details: Schema.optionalKey(Schema.Json),
  files: Schema.Record(Schema.Literals(fileNames), FileEntry)
})
type Manifest = typeof Manifest.Type

/** The store's files could not be written or read. */
export class StoreFailed extends Schema.TaggedError<StoreFailed>()("StoreFailed", {
  problem: Schema.String,
  cause: Schema.Defect()
}) {
  override get message(): string {
    return this.problem
  }
}

/** Runs file operations; an error of theirs becomes `StoreFailed`. */
export const fileWork = <A>(work: () => Promise<A> | A): Effect.Effect<A, StoreFailed> =>
  Effect.tryPromise({
    try: async () => await work(),
    catch: (cause) => new StoreFailed({ problem: cause instanceof Error ? cause.message : String(cause), cause })
  })

/** What the caller of `commit` says about a machine. */
export type Description = Omit<Manifest, "format" | "files" | "bytes">

/** A machine in the store; `usedAt` is when a clone was last started from it. */
export type Stored = Omit<Manifest, "format" | "files"> & { readonly usedAt: string }

const decodeManifest = Schema.decodeUnknownOption(Schema.fromJsonString(Manifest))

const readManifest = (directory: string): Option.Option<Manifest> => {
  try {
    return decodeManifest(fs.readFileSync(path.join(directory, "manifest.json"), "utf8"))
  } catch {
    return Option.none()
  }
}

/** How the files differ from what was sealed, by size and times; `undefined` if they do not. */
const damage = (directory: string, manifest: Manifest): string | undefined => {
  for (const name of fileNames) {
    const entry = manifest.files[name]
    const stat = fs.statSync(path.join(directory, name), { bigint: true, throwIfNoEntry: false })
    if (stat === undefined) return `${name} is missing`
    if (Number(stat.size) !== entry.size) return `${name} has ${stat.size} bytes; it was sealed with ${entry.size}`
    if (`${stat.mtimeNs}` !== entry.mtimeNs || `${stat.ctimeNs}` !== entry.ctimeNs) return `${name} was changed`
  }
  return undefined
}

const remove = (directory: string): Effect.Effect<void> =>
  Effect.ignore(Effect.tryPromise(() => fs.promises.rm(directory, { recursive: true, force: true })))

/** The paths of a machine's files in its directory. */
export const filesIn = (directory: string) => ({
  ram: path.join(directory, "ram"),
  state: path.join(directory, "state"),
  disk: path.join(directory, "disk.qcow2"),
  overlay: path.join(directory, "overlay.qcow2")
})

export interface MachineStore {
  readonly directoryOf: (key: string) => string
  readonly lockOf: (key: string) => string
  /** Why the machine cannot be used; `undefined` if it can. */
  readonly unusable: (key: string) => string | undefined
  /** Identifies the files that the machine has now; `undefined` when there are none. */
  readonly generation: (key: string) => string | undefined
  /** Why clones of an earlier generation are stale; `undefined` if they are not, also when the machine was only removed. */
  readonly changedSince: (key: string, generation: string | undefined) => string | undefined
  /** All machines, the one used last first. */
  readonly list: () => ReadonlyArray<Stored>
  /**
   * A directory to write a machine to; removed when the scope closes, unless `commit` took it. Also removes what killed
   * processes left behind.
   */
  readonly workDirectory: Effect.Effect<string, StoreFailed, Scope.Scope>
  /** Writes the manifest of the files in a work directory and stores them under the key, in place of what was there. */
  readonly commit: (work: string, description: Description) => Effect.Effect<void, StoreFailed>
  readonly discard: (key: string) => Effect.Effect<void>
  /** Removes the least recently used machines until the rest takes at most `keepBytes`. Returns the removed ones. */
  readonly prune: (keepBytes: number) => Effect.Effect<ReadonlyArray<Stored>>
  /** Compares the hash of every file with the manifest's. Returns the problem found, or `undefined`. */
  readonly verify: (key: string) => Effect.Effect<string | undefined>
  readonly markUsed: (key: string) => void
  /** Bytes free on the store's disk; `undefined` if unknown. */
  readonly free: () => number | undefined
}

/** `hash` hashes the store's files; one store must always use the same function. */
export const make = (store: string, hash: typeof hashFile = hashFile): MachineStore => {
  const directoryOf = (key: string): string => path.join(store, key)

  const list = (): ReadonlyArray<Stored> => {
    const found: Array<Stored> = []
    for (const name of fs.existsSync(store) ? fs.readdirSync(store) : []) {
      const manifest = name.startsWith(".") ? Option.none() : readManifest(directoryOf(name))
      if (Option.isNone(manifest)) continue
      const { files: _, format: __, ...rest } = manifest.value
      const used = fs.statSync(path.join(directoryOf(name), "used"), { throwIfNoEntry: false })
      found.push({ ...rest, usedAt: used?.mtime.toISOString() ?? rest.createdAt })
    }
    return found.sort((a, b) => (a.usedAt < b.usedAt ? 1 : -1))
  }

  const discard = (key: string): Effect.Effect<void> =>
    Effect.suspend(() => {
      const aside = path.join(store, Temporary.temporaryName("removed"))
      return Effect.ignore(Effect.try(() => fs.renameSync(directoryOf(key), aside))).pipe(Effect.andThen(remove(aside)))
    })

  const sweep = (): void => {
    Temporary.sweep(store)
    for (const name of fs.existsSync(store) ? fs.readdirSync(store) : []) {
      if (!name.startsWith(".")) Temporary.sweep(path.join(store, name))
    }
  }

  const generation = (key: string): string | undefined => {
    const ram = fs.statSync(filesIn(directoryOf(key)).ram, { bigint: true, throwIfNoEntry: false })
    return ram === undefined ? undefined : [ram.ino, ram.size, ram.mtimeNs, ram.ctimeNs].join(":")
  }

  // A process that was killed could not clean up.
  sweep()
  return {
    generation,
    changedSince: (key, then) => {
      const now = generation(key)
      return now === undefined || now === then ? undefined : "its template was changed or built again"
    },
    directoryOf,
    lockOf: (key) => path.join(store, `.lock-${key}`),
    unusable: (key) => {
      const directory = directoryOf(key)
      const manifest = readManifest(directory)
      if (Option.isNone(manifest)) return fs.existsSync(directory) ? "its manifest is damaged" : "no template yet"
      return damage(directory, manifest.value)
    },
    list,
    workDirectory: Effect.acquireRelease(
      fileWork(() => {
        makeDirectory(store, 0o700)
        sweep()
        const made = path.join(store, Temporary.temporaryName("building"))
        fs.mkdirSync(made, { mode: 0o700 })
        return made
      }),
      remove
    ),
    commit: Effect.fnUntraced(function* (work, description) {
      yield* fileWork(async () => {
        const files: Partial<Record<(typeof fileNames)[number], typeof FileEntry.Type>> = {}
        let bytes = 0
        for (const name of fileNames) {
          const file = path.join(work, name)
          const handle = await fs.promises.open(file, "r")
          await handle.sync()
          await handle.close()
          const { sha256, size } = await hash(file)
          const stat = fs.statSync(file, { bigint: true })
          bytes += Number(stat.blocks) * 512
          files[name] = { size, mtimeNs: `${stat.mtimeNs}`, ctimeNs: `${stat.ctimeNs}`, sha256 }
        }
        fs.writeFileSync(path.join(work, "used"), "")
        const manifest = JSON.stringify({ format, ...description, bytes, files }, null, 2)
        fs.writeFileSync(path.join(work, "manifest.json"), manifest, { flush: true })
      })
      yield* discard(description.key)
      yield* fileWork(() => fs.renameSync(work, directoryOf(description.key)))
    }),
    discard,
    prune: Effect.fnUntraced(function* (keepBytes) {
      const removed: Array<Stored> = []
      let bytes = 0
      for (const stored of list()) {
        bytes += stored.bytes
        if (bytes <= keepBytes) continue
        yield* discard(stored.key)
        removed.push(stored)
      }
      return removed
    }),
    verify: Effect.fnUntraced(function* (key) {
      // A key may come from a command line, and must not lead out of the store.
      const directory = directoryOf(path.basename(key))
      const manifest = readManifest(directory)
      if (Option.isNone(manifest) || manifest.value.key !== key) return "there is no such template"
      const changed = damage(directory, manifest.value)
      if (changed !== undefined) return changed
      for (const name of fileNames) {
        const found = yield* Effect.option(Effect.tryPromise(() => hash(path.join(directory, name))))
        if (Option.isNone(found)) return `${name} cannot be read`
        if (found.value.sha256 !== manifest.value.files[name].sha256) return `${name} does not match its hash`
      }
      return undefined
    }),
    markUsed: (key) => {
      try {
        const now = new Date()
        fs.utimesSync(path.join(directoryOf(key), "used"), now, now)
      } catch {
        // The time only orders machines by use.
      }
    },
    free: () => {
      try {
        const stat = fs.statfsSync(store)
        return stat.bavail * stat.bsize
      } catch {
        return undefined
      }
    }
  }
}
