/** Copies a session: captures its VM into a directory, and starts clones from the captured files. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as fs from "node:fs"
import type { Capacity } from "../Capacity.ts"
import type { Language } from "../Execution.ts"
import type { Host } from "../Host.ts"
import { fail, SandboxError, SnapshotFailed } from "../SandboxError.ts"
import { makeOverlay, type ReservedClone, protectMemory } from "../Template.ts"
import type * as Vm from "../Vm.ts"
import { capture } from "../vm/Capture.ts"
import * as MachineStore from "../vm/MachineStore.ts"
import * as Start from "../vm/Start.ts"

/**
 * A session to copy.
 *
 * @since 0.1.0
 * @category models
 */
export interface Source {
  readonly vm: Vm.Vm
  readonly image: string
  /** See `machineKey`. */
  readonly machine: string
  readonly session: string
  readonly parent: string | null
  readonly limitMiB: number
  /** The interpreters that have executed code. */
  readonly languages: ReadonlyArray<Language>
}

/**
 * A captured session that clones can be started from.
 *
 * @since 0.1.0
 * @category models
 */
export interface CloneSource {
  /** The id of the snapshot, or of the session that was forked. */
  readonly from: string
  readonly snapshot: string | null
  readonly limitMiB: number
  readonly languages: ReadonlyArray<Language>
  /** Reserves capacity and starts a clone that has not been handed over; it lives as long as the scope. */
  readonly clone: Effect.Effect<ReservedClone, SandboxError, Scope.Scope>
}

/** The files that clones are started from. */
export interface CloneFiles {
  readonly shape: Vm.Shape
  readonly files: Vm.TemplateFiles
  readonly image: string
  readonly machine: string
  readonly from: string
}

/** Makes a `SnapshotFailed`. */
export const failed = (
  snapshot: string | null,
  kind: SnapshotFailed["kind"],
  problem: string,
  cause?: unknown
): SandboxError => fail(new SnapshotFailed({ snapshot, kind, problem, ...(cause === undefined ? {} : { cause }) }))

/** With fewer free bytes than this the disk counts as full: a QEMU that writes its memory to a full disk dies. */
const nearlyFull = 64 * 1024 * 1024

/** Copies sessions into directories of the store. */
export const make = (host: Host["Service"], capacity: Capacity["Service"], store: MachineStore.MachineStore) => {
  /** Copies a session into a new directory, which is removed when the scope closes. */
  const captured = Effect.fnUntraced(function* (source: Source, name: string | null) {
    const parts = source.vm.parts
    if (parts === undefined) return yield* failed(name, "unsupported", "this session's VM is not a clone")
    const explain = (error: { readonly message: string }): SandboxError => {
      const free = store.free() ?? Number.POSITIVE_INFINITY
      return free < nearlyFull || /ENOSPC|No space left/.test(error.message)
        ? failed(name, "store-full", `${error.message}; its disk is full (${free} bytes free)`, error)
        : failed(name, "capture", error.message, error)
    }
    const work = yield* Effect.mapError(store.workDirectory, explain)
    const files = MachineStore.filesIn(work)
    // A capture needs a second QEMU, which needs capacity like any other; the session runs while it waits for that.
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

  const clone = Effect.fn("Snapshot.clone")(function* ({
    files,
    from,
    image,
    machine,
    shape
  }: CloneFiles): Effect.fn.Return<ReservedClone, SandboxError, Scope.Scope> {
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
    return {
      from: session,
      snapshot: parent,
      limitMiB,
      languages,
      clone: clone({ shape, files, image, machine, from: session })
    }
  })

  return { captured, clone, hold }
}
