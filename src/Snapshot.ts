/**
 * Snapshot: a saved session. Sessions can be started from it, at once or another day, and continue from the moment when it was
 * taken, with its variables, files and running programs.
 *
 * A snapshot has the same files as a template: memory, which clones share, device state and disk. Only sessions that ask for it
 * start from it. What must be unique is replaced in each of these sessions: the kernel's and the interpreters' randomness,
 * clock, host name and machine id.
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
import { hashSparse } from "./internal/hashFile.ts"
import { withLock } from "./internal/Lock.ts"
import * as Park from "./vm/Park.ts"
import * as MachineStore from "./vm/MachineStore.ts"
import type { SandboxError } from "./SandboxError.ts"
import * as Copy from "./snapshot/Copy.ts"
import { type CloneSource, failed, type Source } from "./snapshot/Copy.ts"
import { machineKey } from "./Template.ts"
import type * as Vm from "./Vm.ts"

/**
 * A snapshot's name: 1 to 64 letters, digits, `.`, `_` and `-`, the first a letter or a digit; it must not look like an id.
 *
 * @since 0.1.0
 * @category models
 */
export const Name = Schema.String.check(
  Schema.isPattern(/^(?!snap-[0-9a-f]{16}$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/, {
    expected:
      "1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or a digit, and not of the form snap-<16 hex digits>"
  })
)

/**
 * How a snapshot is taken. `name`: a name by which it can be found, in addition to its id.
 *
 * @since 0.1.0
 * @category models
 */
export const SnapshotOptions = Schema.Struct({ name: Schema.optionalKey(Name) })
/**
 * The type of `SnapshotOptions`.
 *
 * @since 0.1.0
 * @category models
 */
export type SnapshotOptions = typeof SnapshotOptions.Type

/** The data of a snapshot in addition to those of every stored machine. */
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
 * What no snapshot contains, as sentences to show to a user.
 *
 * @since 0.1.0
 * @category constants
 */
export const notCaptured: ReadonlyArray<string> = [
  "executions and file transfers in progress: in sessions started from it they have been interrupted at that moment",
  "handles: spawned programs continue to run, but their output cannot be read and they cannot be written to",
  "the session's env, secrets, limits, receipts and output that was not read",
  "open ports and connections to outside the VM",
  "randomness, clock, host name and machine id: they are new in every session started from it"
]

/**
 * A snapshot, as plain data. `bytes` is its size on disk. `session` is the id of the session it was taken of, and `parent` the
 * id of the snapshot which that session was started from. `memoryMiB` is that session's memory limit, which is also the maximum
 * for a session started from it. `pausedMs` is how long the session was paused, in ms. `createdAt` and `usedAt` (when a session
 * was last started from it) are ISO 8601. `notCaptured` is the constant of that name.
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
 * The type of `Snapshot`.
 *
 * @since 0.1.0
 * @category models
 */
export type Snapshot = typeof Snapshot.Type

/**
 * The bytes that all snapshots and the parked sessions of this process together may take on disk, default 16 GiB. Nothing is
 * removed to make room: a snapshot that does not fit fails with `SnapshotFailed{store-full}`, and a session stays awake.
 *
 * @since 0.1.0
 * @category references
 */
export const StoreLimit = Context.Reference<number>("exec-sandbox/Snapshot/StoreLimit", {
  defaultValue: () => 16 * 1024 ** 3
})

/** The snapshot in a stored machine, if its data can be decoded. */
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

const bytesIn = (directory: string): number => {
  let bytes = 0
  for (const name of fs.readdirSync(directory)) bytes += fs.statSync(path.join(directory, name)).blocks * 512
  return bytes
}

/**
 * Takes, stores and removes snapshots, and starts clones from them.
 *
 * @since 0.1.0
 * @category services
 */
export class Snapshots extends Context.Service<
  Snapshots,
  {
    /**
     * Takes a snapshot of a session. Fails with `SnapshotFailed`, or with `CapacityExceeded` if the host has no capacity for the
     * second QEMU that this needs; the session continues in any case.
     */
    readonly take: (source: Source, options: SnapshotOptions) => Effect.Effect<Snapshot, SandboxError>
    /** Captures a session until the scope closes, to fork it: the copy is not stored, listed or hashed. */
    readonly hold: (source: Source) => Effect.Effect<CloneSource, SandboxError, Scope.Scope>
    /** Finds a snapshot by its name or id; fails with `SnapshotFailed` if it is damaged or this host cannot run it. */
    readonly find: (from: string) => Effect.Effect<CloneSource, SandboxError>
    /** Parks sessions. */
    readonly parker: Park.Parker
    /** All snapshots, the newest first. */
    readonly list: Effect.Effect<ReadonlyArray<Snapshot>>
    /** Removes a snapshot by its name or id. Sessions that were started from it continue. */
    readonly remove: (from: string) => Effect.Effect<Snapshot, SandboxError>
    /** Compares the hash of every file with the stored one. Returns the problem found, or `undefined`. */
    readonly verify: (from: string) => Effect.Effect<string | undefined, SandboxError>
  }
>()("exec-sandbox/Snapshots") {
  /** For a sandbox whose sessions cannot be captured: all but `list` fails with `SnapshotFailed{unsupported}`. */
  static readonly layerUnsupported: Layer.Layer<Snapshots> = Layer.sync(this, () => {
    const unsupported = Effect.fail(failed(null, "unsupported", "this sandbox does not support snapshots"))
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
      /** The bytes of all snapshots, and of the sessions that this process has parked. */
      const stored = (): number => list().reduce((sum, it) => sum + it.bytes, parked)
      const parker = Park.make({
        capacity,
        directory,
        runDirectory: host.runDirectory,
        room: () => storeLimit - stored(),
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

      const { captured, clone, hold } = Copy.make(host, capacity, store)

      const take = Effect.fn("Snapshot.take")(function* (
        source: Source,
        { name = null }: { readonly name?: string | null }
      ): Effect.fn.Return<Snapshot, SandboxError, Scope.Scope> {
        const id = `snap-${randomBytes(8).toString("hex")}`
        const room = (needed: number): Effect.Effect<void, SandboxError> =>
          Effect.suspend(() => {
            const bytes = stored() + needed
            if (name !== null && list().some((it) => it.name === name)) {
              return Effect.fail(failed(name, "exists", "there is a snapshot of that name"))
            }
            if (bytes < storeLimit) return Effect.void
            return Effect.fail(
              failed(
                name,
                "store-full",
                `snapshots and parked sessions would take ${bytes} bytes; the limit is ${storeLimit}`
              )
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
        const machine = yield* withLock(
          store.lockOf("names"),
          Effect.gen(function* () {
            yield* room(bytesIn(work))
            yield* Effect.mapError(store.commit(work, { ...description, createdAt, details }), explain)
            return store.list().find((it) => it.key === id)
          })
        ).pipe(Effect.catchTag("LockFailed", (error) => Effect.fail(explain(error))))
        const snapshot = machine === undefined ? Option.none() : read(machine)
        return Option.isSome(snapshot) ? snapshot.value : yield* failed(id, "unknown", "it was removed right after")
      }, Effect.scoped)

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
        if (files === undefined) return yield* failed(from, "foreign", `its image ${image} is no longer on this host`)
        const shape: Vm.Shape = { qemu, launcher: host.launcher, image: files, memoryMiB: stored.memoryMiB }
        if (files.arch !== host.arch || machineKey(host.arch, shape, image) !== machine) {
          const here = `QEMU ${qemu.version} on ${qemu.accelerator}`
          const problem = `it was taken with QEMU ${stored.qemu} on ${stored.accelerator} and does not load in this host's ${here}`
          return yield* failed(from, "foreign", problem)
        }
        store.markUsed(id)
        const paths = MachineStore.filesIn(store.directoryOf(id))
        return {
          from: id,
          snapshot: id,
          limitMiB,
          languages,
          clone: clone({ shape, files: paths, image, machine, from: id })
        }
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
              // A snapshot whose manifest is damaged can still be removed.
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

export type { CloneSource, Source } from "./snapshot/Copy.ts"
export { type Forkable, promote, race, type Winner } from "./snapshot/Race.ts"

/**
 * The snapshots in this host's cache directory, with all services they need: to list, verify and remove them.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer: Layer.Layer<Snapshots> = Snapshots.layer.pipe(
  Layer.provide(Capacity.layer),
  Layer.provide(Image.layer),
  Layer.provide(Host.layer)
)
