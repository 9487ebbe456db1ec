/**
 * Snapshot: a session saved on purpose. Sessions are started from it, at once or another day, and go on from where it was
 * taken: variables, files, programs that run.
 *
 * A snapshot is made like a template (memory in a file that clones share, state, disk) and is never anybody's but its
 * owner's: no pool and no other session starts from it. Everything in it is as in that moment, but what must not be the same
 * twice is made fresh in each session that starts from it: the kernel's and the interpreters' randomness, clock, host name,
 * machine id.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { randomBytes } from "node:crypto"
import * as fs from "node:fs"
import * as path from "node:path"
import { Capacity } from "./Capacity.ts"
import { Language } from "./Execution.ts"
import { Host } from "./Host.ts"
import { Image } from "./Image.ts"
import { capture } from "./vm/Capture.ts"
import { hashSparse } from "./internal/hashFile.ts"
import { withLock } from "./internal/Lock.ts"
import * as Park from "./vm/Park.ts"
import * as MachineStore from "./vm/MachineStore.ts"
import { fail, SandboxError, SnapshotFailed } from "./SandboxError.ts"
import { machineKey, makeOverlay, type ReservedClone, protectMemory } from "./Template.ts"
import type * as Vm from "./Vm.ts"
import * as Start from "./vm/Start.ts"

/**
 * A snapshot's name: 1 to 64 letters, digits, `.`, `_` and `-`, the first a letter or a digit; not of the form of an id.
 *
 * @since 0.1.0
 * @category models
 */
export const Name = Schema.String.check(
  Schema.isPattern(/^(?!snap-[0-9a-f]{16}$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/, {
    expected:
      "1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or a digit, unlike snap-<16 hex digits>"
  })
)

/**
 * How a snapshot is taken. `name`: something to find it by beside its id.
 *
 * @since 0.1.0
 * @category models
 */
export const SnapshotOptions = Schema.Struct({ name: Schema.optionalKey(Name) })
/**
 * @since 0.1.0
 * @category models
 */
export type SnapshotOptions = typeof SnapshotOptions.Type

/** What a snapshot is, beside what every saved machine is. */
const Details = Schema.Struct({
  name: Schema.NullOr(Schema.String),
  session: Schema.String,
  parent: Schema.NullOr(Schema.String),
  /** See `machineKey`. */
  machine: Schema.String,
  limitMiB: Schema.Int,
  languages: Schema.Array(Language),
  pausedMs: Schema.Finite
})
const decodeDetails = Schema.decodeUnknownOption(Details)

/**
 * What no snapshot has in it, for who wants to tell a user.
 *
 * @since 0.1.0
 * @category constants
 */
export const notCaptured: ReadonlyArray<string> = [
  "executions and file transfers under way: in what starts from it they have been interrupted at that moment",
  "handles: programs that were spawned run on, with nobody to read their output or write to them",
  "the session's env, secrets, limits, receipts and what it has not read of its output",
  "open ports and connections to outside the VM",
  "randomness, clock, host name and machine id: they are fresh in every session that starts from it"
]

/**
 * A snapshot, plain data. `bytes` is what it takes on disk. `session` is the session it was taken of and `parent` the
 * snapshot that one was started from. `memoryMiB` is that session's memory limit, which is also the most that a session
 * started from it can have. `pausedMs` is how long the session stood still, in ms. `createdAt` and `usedAt` (when a session
 * was last started from it) are ISO 8601.
 *
 * @since 0.1.0
 * @category models
 */
export const Snapshot = Schema.Struct({
  id: Schema.String,
  name: Schema.NullOr(Schema.String),
  createdAt: Schema.String,
  usedAt: Schema.String,
  bytes: Schema.Finite,
  memoryMiB: Schema.Int,
  session: Schema.String,
  parent: Schema.NullOr(Schema.String),
  image: Schema.String,
  qemu: Schema.String,
  accelerator: Schema.String,
  pausedMs: Schema.Finite,
  notCaptured: Schema.Array(Schema.String)
})
/**
 * @since 0.1.0
 * @category models
 */
export type Snapshot = typeof Snapshot.Type

/**
 * The bytes all snapshots together, and the sessions that this process has parked, may take on disk, default 16 GiB. Nothing
 * is removed to make room: a snapshot that finds none fails with `SnapshotFailed{store-full}`, and a session stays awake.
 *
 * @since 0.1.0
 * @category references
 */
export const StoreLimit = Context.Reference<number>("exec-sandbox/Snapshot/StoreLimit", {
  defaultValue: () => 16 * 1024 ** 3
})

/** A session as something to copy. */
export interface Source {
  readonly vm: Vm.Vm
  readonly image: string
  /** See `machineKey`. */
  readonly machine: string
  readonly session: string
  readonly parent: string | null
  readonly limitMiB: number
  /** The interpreters that have run something. */
  readonly languages: ReadonlyArray<Language>
}

/** Something captured that clones can be made of. */
export interface CloneSource {
  /** The snapshot, or the session that was forked. */
  readonly from: string
  readonly snapshot: string | null
  readonly limitMiB: number
  readonly languages: ReadonlyArray<Language>
  /** A clone, admitted by `Capacity`, that waits to be handed over and lives as long as the scope. */
  readonly clone: Effect.Effect<ReservedClone, SandboxError, Scope.Scope>
}

const failed = (
  snapshot: string | null,
  kind: SnapshotFailed["kind"],
  problem: string,
  cause?: unknown
): SandboxError => fail(new SnapshotFailed({ snapshot, kind, problem, ...(cause === undefined ? {} : { cause }) }))

/** The snapshot that a stored machine is, if it is one. */
const read = (stored: MachineStore.Stored): Option.Option<Snapshot> =>
  Option.map(decodeDetails(stored.details), ({ limitMiB, name, parent, pausedMs, session }) => {
    const { accelerator, bytes, createdAt, image, key, qemu, usedAt } = stored
    return {
      id: key,
      name,
      createdAt,
      usedAt,
      bytes,
      memoryMiB: limitMiB,
      session,
      parent,
      image,
      qemu,
      accelerator,
      pausedMs,
      notCaptured
    }
  })

/** The files that a clone is made of. */
interface Saved {
  readonly shape: Vm.Shape
  readonly files: Vm.TemplateFiles
  readonly image: string
  readonly machine: string
  readonly from: string
}

/** Less than this, in bytes, is a full disk: a QEMU that writes its memory there dies of it. */
const nearlyFull = 64 * 1024 * 1024

const bytesIn = (directory: string): number => {
  let bytes = 0
  for (const name of fs.readdirSync(directory)) bytes += fs.statSync(path.join(directory, name)).blocks * 512
  return bytes
}

/**
 * Takes, keeps and removes snapshots, and starts clones from them.
 *
 * @since 0.1.0
 * @category services
 */
export class Snapshots extends Context.Service<
  Snapshots,
  {
    /**
     * Stores what a session is now. Fails with `SnapshotFailed`, or with `CapacityExceeded` where the host has no room for the
     * QEMU that this takes; the session runs on in any case.
     */
    readonly take: (source: Source, options: SnapshotOptions) => Effect.Effect<Snapshot, SandboxError>
    /** The same for the time of the scope and for nobody else: nothing of it is listed, hashed or kept. */
    readonly hold: (source: Source) => Effect.Effect<CloneSource, SandboxError, Scope.Scope>
    /** A stored snapshot by its name or id, if its files are as they were stored and this host can run it. */
    readonly find: (from: string) => Effect.Effect<CloneSource, SandboxError>
    /** Parks sessions. */
    readonly parker: Park.Parker
    /** All snapshots, the newest first. */
    readonly list: Effect.Effect<ReadonlyArray<Snapshot>>
    /** Removes a snapshot by its name or id. Sessions that were started from it run on. */
    readonly remove: (from: string) => Effect.Effect<Snapshot, SandboxError>
    /** Compares the hash of every file with the one it was stored with; the problem found, or nothing. */
    readonly verify: (from: string) => Effect.Effect<string | undefined, SandboxError>
  }
>()("exec-sandbox/Snapshots") {
  /** For a sandbox whose sessions cannot be captured: everything fails with `SnapshotFailed{unsupported}`. */
  static readonly layerUnsupported: Layer.Layer<Snapshots> = Layer.sync(this, () => {
    const unsupported = Effect.fail(failed(null, "unsupported", "there are no snapshots in this sandbox"))
    return {
      take: () => unsupported,
      hold: () => unsupported,
      find: () => unsupported,
      parker: { prepare: () => unsupported },
      list: Effect.succeed([]),
      remove: () => unsupported,
      verify: () => unsupported
    }
  })

  /** Snapshots in the host's cache directory. */
  static readonly layer: Layer.Layer<Snapshots, never, Host | Image | Capacity> = Layer.effect(
    this,
    Effect.gen(function* () {
      const host = yield* Host
      const images = yield* Image
      const capacity = yield* Capacity
      const storeLimit = yield* StoreLimit
      const directory = path.join(host.cacheDirectory, "snapshots")
      const store = MachineStore.make(directory, hashSparse)

      const list = (): ReadonlyArray<Snapshot> =>
        store
          .list()
          .flatMap((stored) => Option.toArray(read(stored)))
          .sort((a, b) => (a.createdAt < b.createdAt ? 1 : -1))

      let parked = 0
      /** Bytes of all that is kept: by everybody, and parked by this process. */
      const kept = (): number => list().reduce((sum, it) => sum + it.bytes, parked)
      const parker = Park.make({
        capacity,
        directory,
        runDirectory: host.runDirectory,
        room: () => storeLimit - kept(),
        taken: (bytes) => {
          parked += bytes
        }
      })

      const byName = (from: string): Effect.Effect<Snapshot, SandboxError> =>
        Effect.suspend(() => {
          const found = list().find((it) => it.id === from || it.name === from)
          if (found !== undefined) return Effect.succeed(found)
          return /^snap-[0-9a-f]{16}$/.test(from) && fs.existsSync(store.directoryOf(from))
            ? Effect.fail(failed(from, "damaged", "its manifest cannot be read"))
            : Effect.fail(failed(from, "unknown", "there is no such snapshot"))
        })

      /** Copies a session into a new directory that goes with the scope. */
      const captured = Effect.fnUntraced(function* (source: Source, name: string | null) {
        const parts = source.vm.parts
        if (parts === undefined) return yield* failed(name, "unsupported", "this session's VM was not cloned")
        const explain = (error: { readonly message: string }): SandboxError => {
          const free = store.free() ?? Number.POSITIVE_INFINITY
          return free < nearlyFull || /ENOSPC|No space left/.test(error.message)
            ? failed(name, "store-full", `${error.message}; its disk is full (${free} bytes free)`, error)
            : failed(name, "capture", error.message, error)
        }
        const work = yield* Effect.mapError(store.workDirectory, explain)
        const files = MachineStore.filesIn(work)
        // The second QEMU that this takes has a place like any other; nothing stands still while it waits for that.
        const [{ pausedMs }] = yield* capacity.reserve({ memoryMiB: parts.shape.memoryMiB }).pipe(
          Effect.andThen(
            Effect.all(
              [
                capture(parts, files, host.runDirectory),
                Effect.uninterruptible(makeOverlay(parts.shape.qemu.path, files.overlay))
              ],
              { concurrency: 2 }
            )
          ),
          Effect.scoped,
          Effect.mapError((error) => {
            if (!(error instanceof SandboxError)) return explain(error)
            return error.reason._tag === "CapacityExceeded" ? error : explain(error.reason)
          })
        )
        yield* Effect.mapError(
          MachineStore.fileWork(() => protectMemory(parts.shape, files.ram)),
          explain
        )
        return { work, files, shape: parts.shape, pausedMs, explain }
      })

      const take = Effect.fn("Snapshot.take")(function* (
        source: Source,
        { name = null }: { readonly name?: string | null }
      ): Effect.fn.Return<Snapshot, SandboxError, Scope.Scope> {
        const id = `snap-${randomBytes(8).toString("hex")}`
        const room = (needed: number): Effect.Effect<void, SandboxError> =>
          Effect.suspend(() => {
            const bytes = kept() + needed
            if (name !== null && list().some((it) => it.name === name)) {
              return Effect.fail(failed(name, "exists", "there is a snapshot of that name"))
            }
            if (bytes < storeLimit) return Effect.void
            return Effect.fail(
              failed(name, "store-full", `all snapshots together would take ${bytes} of ${storeLimit} bytes`)
            )
          })
        yield* room(0)
        const { explain, pausedMs, shape, work } = yield* captured(source, name)
        const details = {
          name,
          session: source.session,
          parent: source.parent,
          machine: source.machine,
          limitMiB: source.limitMiB,
          languages: source.languages,
          pausedMs
        }
        const { memoryMiB, qemu } = shape
        const description = {
          key: id,
          image: source.image,
          qemu: qemu.version,
          accelerator: qemu.accelerator,
          memoryMiB
        }
        const createdAt = new Date().toISOString()
        const stored = yield* withLock(
          store.lockOf("names"),
          Effect.gen(function* () {
            yield* room(bytesIn(work))
            yield* Effect.mapError(store.keep(work, { ...description, createdAt, details }), explain)
            return store.list().find((it) => it.key === id)
          })
        ).pipe(Effect.catchTag("LockFailed", (error) => Effect.fail(explain(error))))
        const snapshot = stored === undefined ? Option.none() : read(stored)
        return Option.isSome(snapshot) ? snapshot.value : yield* failed(id, "unknown", "it was removed at once")
      }, Effect.scoped)

      const clone = Effect.fn("Snapshot.clone")(function* (
        saved: Saved
      ): Effect.fn.Return<ReservedClone, SandboxError, Scope.Scope> {
        const { files, from, image, machine, shape } = saved
        const place = yield* capacity.reserve({ memoryMiB: shape.memoryMiB })
        const vm = yield* Start.restore(shape, files).pipe(
          Effect.catchReason("SandboxError", "BootFailed", (reason) =>
            reason.stage === "launch" || reason.stage === "restore"
              ? Effect.fail(failed(from, fs.existsSync(files.ram) ? "damaged" : "unknown", reason.message, reason))
              : Effect.fail(fail(reason))
          )
        )
        place.usedBy(vm.pid)
        return {
          vm,
          place,
          key: machine,
          machine,
          image,
          startPath: { kind: "snapshot", from, missed: [] },
          stale: () => undefined
        }
      })

      const hold = Effect.fn("Snapshot.hold")(function* (
        source: Source
      ): Effect.fn.Return<CloneSource, SandboxError, Scope.Scope> {
        const { files, shape } = yield* captured(source, null)
        const { image, languages, limitMiB, machine, parent, session } = source
        const saved = { shape, files, image, machine, from: session }
        return { from: session, snapshot: parent, limitMiB, languages, clone: clone(saved) }
      })

      const find = Effect.fn("Snapshot.find")(function* (from: string): Effect.fn.Return<CloneSource, SandboxError> {
        const { id, image } = yield* byName(from)
        const stored = store.list().find((it) => it.key === id)
        const details = stored === undefined ? Option.none() : decodeDetails(stored.details)
        if (stored === undefined || Option.isNone(details)) return yield* failed(from, "unknown", "it was removed")
        const damage = store.unusable(id)
        if (damage !== undefined) return yield* failed(from, "damaged", damage)
        const { languages, limitMiB, machine } = details.value
        const qemu = yield* host.qemu(host.arch)
        const files = (yield* images.list).find((it) => it.id === image)?.files
        if (files === undefined) return yield* failed(from, "foreign", `its image ${image} is not here any more`)
        const shape: Vm.Shape = { qemu, launcher: host.launcher, image: files, memoryMiB: stored.memoryMiB }
        if (files.arch !== host.arch || machineKey(host.arch, shape, image) !== machine) {
          const here = `QEMU ${qemu.version} on ${qemu.accelerator}`
          const problem = `it was taken with QEMU ${stored.qemu} on ${stored.accelerator} and does not load in ${here} of this host`
          return yield* failed(from, "foreign", problem)
        }
        store.markUsed(id)
        const where = MachineStore.filesIn(store.directoryOf(id))
        const saved = { shape, files: where, image, machine, from: id }
        return { from: id, snapshot: id, limitMiB, languages, clone: clone(saved) }
      })

      return {
        take,
        hold,
        find,
        parker,
        list: Effect.sync(list),
        remove: Effect.fn("Snapshot.remove")(function* (from) {
          const snapshot = yield* byName(from).pipe(
            Effect.catchReason("SandboxError", "SnapshotFailed", (reason, error) =>
              // What cannot be read any more can still be removed.
              reason.kind === "damaged" ? Effect.andThen(store.discard(from), Effect.fail(error)) : Effect.fail(error)
            )
          )
          yield* store.discard(snapshot.id)
          return snapshot
        }),
        verify: Effect.fn("Snapshot.verify")(function* (from) {
          const { id } = yield* byName(from)
          return yield* store.verify(id)
        })
      }
    })
  )
}

export { type Forkable, promote, race, type Winner } from "./snapshot/Race.ts"

/**
 * The snapshots of this host's cache directory, with everything they need: to list, verify and remove them.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer: Layer.Layer<Snapshots> = Snapshots.layer.pipe(
  Layer.provide(Capacity.layer),
  Layer.provide(Image.layer),
  Layer.provide(Host.layer)
)
