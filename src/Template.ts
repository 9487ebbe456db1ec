/**
 * Template: the saved memory, device state and disk of a machine that was booted and warmed once; clones are started from it.
 *
 * A template is a directory named by its key. It is written under another name and renamed when it is complete, so a
 * half-written one is never used. The key covers everything its bytes depend on: image, QEMU, accelerator, machine, memory and
 * packages. Before each use the files are checked against the manifest; a template that has changed or does not load is built
 * again, once.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { execFile } from "node:child_process"
import { createHash } from "node:crypto"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { promisify } from "node:util"
import type { Reservation } from "./Capacity.ts"
import { portName } from "./guest/Hello.ts"
import { Host } from "./Host.ts"
import { Image } from "./Image.ts"
import { withLock } from "./internal/Lock.ts"
import * as PackageInstall from "./packages/Install.ts"
import { copySparse } from "./vm/copySparse.ts"
import { decodeInput } from "./internal/decodeInput.ts"
import * as Observe from "./internal/Observe.ts"
import { report } from "./internal/Progress.ts"
import * as MachineStore from "./vm/MachineStore.ts"
import { sweep } from "./internal/Temporary.ts"
import { type PackageError, Packages, parsed, Policy, refused } from "./Packages.ts"
import { commandLine, kernelCommandLine } from "./qemu/CommandLine.ts"
import type { StartPath } from "./Receipt.ts"
import { type BootFailed, fail, type SandboxError, TemplateUnusable } from "./SandboxError.ts"
import * as Telemetry from "./Telemetry.ts"
import type * as Vm from "./Vm.ts"
import * as Start from "./vm/Start.ts"

/**
 * A template on this host. `bytes` is its size on disk, `memoryMiB` the memory of its VMs, `createdAt` when it was built and
 * `usedAt` when a clone was last started from it (both ISO 8601). `packages` are those it contains besides the image.
 *
 * @since 0.1.0
 * @category models
 */
export type Entry = MachineStore.Stored

/**
 * A clone with the capacity that is reserved for it.
 *
 * @since 0.1.0
 * @category models
 */
export interface ReservedClone extends Clone {
  readonly place: Reservation
}

/**
 * A running clone that has not been handed over to a caller yet.
 *
 * @since 0.1.0
 * @category models
 */
export interface Clone {
  readonly vm: Vm.Vm
  readonly key: string
  /** See `machineKey`. */
  readonly machine: string
  readonly image: string
  readonly startPath: StartPath
  /** Why it must not be handed over: its template has changed since. `undefined` if it has not. */
  readonly stale: () => string | undefined
}

/**
 * The bytes that all templates together may take on disk, default 8 GiB. After a build the least recently used templates are
 * removed until the rest fits.
 *
 * @since 0.1.0
 * @category references
 */
export const StoreLimit = Context.Reference<number>("exec-sandbox/Template/StoreLimit", {
  defaultValue: () => 8 * 1024 ** 3
})

/**
 * Memory for the guest's kernel, its agent, idle interpreters and the page cache of programs, in addition to the task's limit.
 * It must be enough: if a task uses up the machine's memory before it reaches its own limit, the kernel evicts pages of running
 * programs and reads them again and again, for seconds or for ever.
 */
const overheadMiB = 256

/**
 * The memory of the machine for this memory limit, in MiB: a power of two from 256, and the overhead. There are few sizes, so
 * that few templates serve every limit; unused memory costs nothing.
 *
 * @internal
 */
export const machineMemoryMiB = (limitMiB: number): number =>
  2 ** Math.ceil(Math.log2(Math.max(256, limitMiB))) + overheadMiB

/** Identifies the host's CPU if the guest sees it. */
const cpuIdentity = (accelerator: string): string => {
  if (accelerator === "tcg") return "emulated"
  const model = os.cpus()[0]?.model ?? "unknown"
  try {
    const flags = /^(?:flags|Features)\s*:\s*(.*)$/m.exec(fs.readFileSync("/proc/cpuinfo", "utf8"))?.[1]
    return `${model} ${flags ?? ""}`
  } catch {
    return model
  }
}

/**
 * A hash of everything that the bytes of a saved machine depend on: a machine with another key does not load.
 *
 * @internal
 */
export const machineKey = (arch: Vm.ImageFiles["arch"], { memoryMiB, qemu }: Vm.Shape, image: string): string => {
  const input = {
    arch,
    accelerator: qemu.accelerator,
    memoryMiB,
    seccomp: qemu.seccomp,
    portName,
    readonlyRam: qemu.atLeast(8, 2)
  }
  const machine = commandLine({ ...input, start: { kind: "restore" } })
  // The kernel keeps its command line in memory. The TSC's frequency is left out, because it is measured at each start.
  const kernel = kernelCommandLine({ ...input, start: { kind: "boot", tscKhz: null } })
  return createHash("sha256")
    .update(JSON.stringify([MachineStore.format, image, qemu.identity, cpuIdentity(qemu.accelerator), machine, kernel]))
    .digest("hex")
    .slice(0, 32)
}

const decodePackages = decodeInput(Packages, "packages")

const unusable = (key: string, problem: string, cause?: unknown): SandboxError =>
  fail(new TemplateUnusable({ key, problem, ...(cause === undefined ? {} : { cause }) }))

/**
 * Creates an empty overlay of the image's scratch disk; QEMU's command line names the disk below it.
 *
 * @internal
 */
export const makeOverlay = (qemu: string, file: string): Effect.Effect<unknown, MachineStore.StoreFailed> => {
  const sibling = path.join(path.dirname(qemu), "qemu-img")
  const args = ["create", "-q", "-f", "qcow2", "-u", "-b", "base", "-F", "qcow2", file, "8G"]
  return MachineStore.fileWork(() => promisify(execFile)(fs.existsSync(sibling) ? sibling : "qemu-img", args))
}

/**
 * Makes a memory file read-only, where QEMU can map it read-only.
 *
 * @internal
 */
export const protectMemory = ({ launcher, qemu }: Vm.Shape, ram: string): void => {
  if (!qemu.atLeast(8, 2)) return
  if (launcher.uid !== null) fs.chownSync(ram, process.getuid?.() ?? 0, process.getgid?.() ?? 0)
  fs.chmodSync(ram, 0o444)
}

/**
 * Builds, stores and removes templates, and starts clones from them.
 *
 * @since 0.1.0
 * @category services
 */
export class Template extends Context.Service<
  Template,
  {
    /**
     * Starts a clone for this memory limit (MiB); its VM lives as long as the scope. Builds the template first if there is none
     * that can be used; callers that need the same template, in this process or another, share one build. Each set of packages
     * has its own template. Fails with `PackageError` if packages cannot be installed or `Packages.Policy` does not allow them.
     */
    readonly clone: (
      memoryMiB: number,
      packages?: Packages
    ) => Effect.Effect<Clone, SandboxError | PackageError, Scope.Scope>
    /** Builds the template for this memory limit (MiB), with these packages, unless it exists. */
    readonly warm: (memoryMiB: number, packages?: Packages) => Effect.Effect<Entry, SandboxError | PackageError>
    /** All templates, the one used last first. */
    readonly list: Effect.Effect<ReadonlyArray<Entry>, SandboxError>
    /** Compares the hash of every file with the manifest. Returns the problem found, or `undefined`. */
    readonly verify: (key: string) => Effect.Effect<string | undefined, SandboxError>
    /** Removes the least recently used templates until the rest takes at most `keepBytes`. Returns the removed ones. */
    readonly prune: (keepBytes: number) => Effect.Effect<ReadonlyArray<Entry>, SandboxError>
  }
>()("exec-sandbox/Template") {
  /** Templates in the host's cache directory. */
  static readonly layer: Layer.Layer<Template, never, Host | Image> = Layer.effect(
    this,
    Effect.gen(function* () {
      const host = yield* Host
      const images = yield* Image
      const storeLimit = yield* StoreLimit
      const policy = yield* Policy
      const store = MachineStore.make(path.join(host.cacheDirectory, "templates"))
      const building = new Map<string, Semaphore.Semaphore>()
      sweep(host.runDirectory)

      /** The machine that this memory limit needs on this host now, and the key of its template. */
      const targetFor = Effect.fnUntraced(function* (memoryLimitMiB: number, packages: Packages = {}) {
        const denied = refused(policy, packages)
        if (denied !== undefined) return yield* denied
        const qemu = yield* host.qemu(host.arch)
        const image = yield* images.ensure(host.arch)
        const shape: Vm.Shape = {
          qemu,
          launcher: host.launcher,
          image: image.files,
          memoryMiB: machineMemoryMiB(memoryLimitMiB)
        }
        const machine = machineKey(host.arch, shape, image.id)
        const plain = parsed(packages).length === 0
        const key = plain ? machine : yield* PackageInstall.key(machine, packages)
        return { shape, machine, key, image: image.id, packages: plain ? undefined : packages }
      })
      type Target = Effect.Success<ReturnType<typeof targetFor>>

      const build = Effect.fn("Template.build")(function* ({
        image,
        key,
        machine,
        packages,
        shape
      }: Target): Effect.fn.Return<void, SandboxError | PackageError, Scope.Scope> {
        yield* Observe.annotate({ template: key, memory_mib: shape.memoryMiB })
        const { launcher, qemu } = shape
        const failed =
          (what: string) =>
          (error: MachineStore.StoreFailed): SandboxError =>
            unusable(key, `${what}: ${error.problem}`, error.cause)
        const step = (what: string, run: () => void): Effect.Effect<void, SandboxError> =>
          Effect.mapError(MachineStore.fileWork(run), failed(what))

        const base =
          packages === undefined
            ? undefined
            : yield* plainOf({ image, key: machine, machine, shape, packages: undefined })
        const work = yield* store.workDirectory.pipe(Effect.mapError(failed("cannot use the cache directory")))
        const files = MachineStore.filesIn(work)
        yield* step("cannot create its memory file", () => {
          fs.writeFileSync(files.ram, "", { mode: 0o600 })
          fs.truncateSync(files.ram, shape.memoryMiB * 1024 * 1024)
          if (launcher.uid !== null) fs.chownSync(files.ram, launcher.uid, launcher.gid ?? -1)
        })
        yield* makeOverlay(qemu.path, files.overlay).pipe(Effect.mapError(failed("cannot create its disk")))
        if (base === undefined) {
          yield* step("cannot create its disk", () => fs.copyFileSync(files.overlay, files.disk))
          yield* report({
            stage: "template",
            message: `booting a machine with ${shape.memoryMiB} MiB and warming its interpreters`
          })
        } else {
          yield* MachineStore.fileWork(async () => {
            await copySparse(base.ram, files.ram)
            fs.copyFileSync(base.disk, files.disk)
          }).pipe(Effect.mapError(failed("cannot copy the template without packages")))
        }
        const lock = yield* Effect.gen(function* () {
          const vm =
            base === undefined
              ? yield* Start.boot(shape, { ram: files.ram, disk: files.disk }, yield* host.tscKhz)
              : yield* Start.extend(shape, { ram: files.ram, disk: files.disk, state: base.state })
          const lock = packages === undefined ? undefined : yield* PackageInstall.install(vm, packages, shape.memoryMiB)
          yield* report({ stage: "template", message: "sealing its memory" })
          yield* vm.seal(files.state, host.runDirectory)
          return lock
        }).pipe(
          Effect.scoped,
          Effect.catchReason("SandboxError", "BootFailed", (reason) => {
            // On a full disk QEMU dies when it writes its memory, so report the free space.
            const free = store.free() ?? Number.POSITIVE_INFINITY
            const full = free < 64 * 1024 * 1024 ? `; its disk is full (${free} bytes free)` : ""
            return Effect.fail(unusable(key, `it could not be built: ${reason.message}${full}`, reason))
          })
        )
        yield* step("cannot protect its memory", () => protectMemory(shape, files.ram))
        const createdAt = new Date().toISOString()
        const { accelerator, version } = qemu
        yield* store
          .commit(work, {
            key,
            image,
            qemu: version,
            accelerator,
            memoryMiB: shape.memoryMiB,
            createdAt,
            ...(lock !== undefined && { packages: lock })
          })
          .pipe(Effect.mapError(failed("cannot store its files")))
        yield* store.prune(storeLimit)
      }, Effect.scoped)

      /** The files of the template without packages, from which a template with packages is built. */
      const plainOf = (target: Target): Effect.Effect<Vm.TemplateFiles, SandboxError | PackageError> =>
        Effect.map(ensure(target), () => {
          store.markUsed(target.key)
          return MachineStore.filesIn(store.directoryOf(target.key))
        })

      /** Builds the template unless it exists. Returns why it had to be built, or `undefined`. */
      const ensure = Effect.fnUntraced(function* (target: Target) {
        const { key } = target
        if (store.unusable(key) === undefined) return undefined
        const semaphore = building.get(key) ?? Semaphore.makeUnsafe(1)
        building.set(key, semaphore)
        return yield* withLock(
          store.lockOf(key),
          Effect.gen(function* () {
            // The previous holder of the lock may have built it.
            const reason = store.unusable(key)
            if (reason !== undefined) yield* Observe.timed(Telemetry.templateBuildDuration)(build(target))
            return reason
          }),
          { waiting: report({ stage: "template", message: "waiting for another process that builds it" }) }
        ).pipe(
          Effect.catchTag("LockFailed", (error) => Effect.fail(unusable(key, error.message, error))),
          semaphore.withPermits(1)
        )
      })

      const clone = Effect.fn("Template.clone")(function* (
        memoryLimitMiB: number,
        packages?: Packages
      ): Effect.fn.Return<Clone, SandboxError | PackageError, Scope.Scope> {
        const target = yield* targetFor(memoryLimitMiB, packages)
        const { image, key, shape } = target
        yield* Observe.annotate({ template: key })
        const restore = Effect.suspend(() => Start.restore(shape, MachineStore.filesIn(store.directoryOf(key))))
        let missed = yield* ensure(target)
        let generation = store.generation(key)
        const vm = yield* restore.pipe(
          Effect.catchReason("SandboxError", "BootFailed", (reason, error) => {
            // It was removed by another process just now, or it looked right and does not load: build it again, once.
            if (reason.stage !== "restore" && store.unusable(key) === undefined) return Effect.fail(error)
            missed = reason.problem
            return store.discard(key).pipe(
              Effect.andThen(ensure(target)),
              Effect.andThen(
                Effect.suspend(() => {
                  generation = store.generation(key)
                  return restore
                })
              ),
              Effect.catchReason("SandboxError", "BootFailed", (again: BootFailed) =>
                Effect.fail(unusable(key, `it does not load: ${again.message}`, again))
              )
            )
          })
        )
        store.markUsed(key)
        const pool = { kind: "pool", reason: "there is no pool" } as const
        const startPath: StartPath =
          missed === undefined
            ? { kind: "restore", missed: [pool] }
            : { kind: "boot", missed: [pool, { kind: "restore", reason: missed }] }
        return { vm, key, machine: target.machine, image, startPath, stale: () => store.changedSince(key, generation) }
      })

      return {
        clone,
        warm: Effect.fn("Template.warm")(function* (memoryLimitMiB, packages) {
          const target = yield* targetFor(memoryLimitMiB, yield* decodePackages(packages ?? {}))
          yield* ensure(target)
          const entry = store.list().find((it) => it.key === target.key)
          return entry ?? (yield* unusable(target.key, "it was removed"))
        }),
        list: Effect.sync(store.list),
        prune: store.prune,
        verify: store.verify
      }
    })
  )
}
