/**
 * Template: the sealed memory of a machine that was booted and warmed once, and the place where clones come from.
 *
 * A template is a directory named by its key, made under another name and renamed when it is whole, so a half-written one
 * is never found. The key covers everything its bytes depend on: image, QEMU, accelerator, machine and memory. Before each
 * use the files are checked against the manifest; a template that has changed or does not load is made again once.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { execFile } from "node:child_process"
import { createHash, randomBytes } from "node:crypto"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { Host } from "./Host.ts"
import { Image } from "./Image.ts"
import { hashFile } from "./internal/hashFile.ts"
import { withLock } from "./internal/Lock.ts"
import { report } from "./internal/Progress.ts"
import { commandLine } from "./qemu/CommandLine.ts"
import type { StartPath } from "./Receipt.ts"
import { fail, type SandboxError, TemplateUnusable } from "./SandboxError.ts"
import * as Vm from "./Vm.ts"

const FileEntry = Schema.Struct({
  size: Schema.Finite,
  mtimeNs: Schema.String,
  ctimeNs: Schema.String,
  sha256: Schema.String
})

const fileNames = ["ram", "state", "disk.qcow2", "overlay.qcow2"] as const

/** The layout of a template's directory and of the machine sealed in it; part of every key. */
const format = 1

const Manifest = Schema.Struct({
  format: Schema.Literal(format),
  key: Schema.String,
  image: Schema.String,
  qemu: Schema.String,
  accelerator: Schema.String,
  memoryMiB: Schema.Int,
  createdAt: Schema.String,
  bytes: Schema.Finite,
  files: Schema.Record(Schema.Literals(fileNames), FileEntry)
})
const ManifestJson = Schema.fromJsonString(Manifest)

/**
 * A template on this host. `bytes` is what it takes on disk, `memoryMiB` the memory of its VMs, `usedAt` when a clone was
 * last made of it (ISO 8601).
 *
 * @since 0.1.0
 * @category models
 */
export interface Entry {
  readonly key: string
  readonly image: string
  readonly qemu: string
  readonly accelerator: string
  readonly memoryMiB: number
  readonly createdAt: string
  readonly usedAt: string
  readonly bytes: number
}

/** A clone that runs and waits to be handed over. */
export interface Clone {
  readonly vm: Vm.Vm
  readonly key: string
  readonly image: string
  readonly startPath: StartPath
}

/**
 * The bytes all templates together may take on disk; beyond it the ones not used for longest are removed after a build.
 * Default 8 GiB.
 *
 * @since 0.1.0
 * @category references
 */
export const StoreLimit = Context.Reference<number>("exec-sandbox/Template/StoreLimit", {
  defaultValue: () => 8 * 1024 ** 3
})

/** What the guest's kernel and agent take beside the task's own memory. */
const overheadMiB = 128

/** VMs come in few sizes, so that few templates serve every limit; unused memory costs nothing. */
const machineMemoryMiB = (limitMiB: number): number => 2 ** Math.ceil(Math.log2(Math.max(256, limitMiB))) + overheadMiB

/** The host CPU, where the guest sees it. */
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

const readManifest = (directory: string): Option.Option<typeof Manifest.Type> => {
  try {
    return Schema.decodeUnknownOption(ManifestJson)(fs.readFileSync(path.join(directory, "manifest.json"), "utf8"))
  } catch {
    return Option.none()
  }
}

/** Why a template cannot be used, or nothing when its files are as they were sealed. */
const damage = (directory: string, manifest: typeof Manifest.Type): string | undefined => {
  for (const name of fileNames) {
    const entry = manifest.files[name]
    const stat = fs.statSync(path.join(directory, name), { bigint: true, throwIfNoEntry: false })
    if (stat === undefined) return `${name} is missing`
    if (Number(stat.size) !== entry.size) return `${name} has ${stat.size} bytes, sealed with ${entry.size}`
    if (`${stat.mtimeNs}` !== entry.mtimeNs || `${stat.ctimeNs}` !== entry.ctimeNs) return `${name} was changed`
  }
  return undefined
}

const filesIn = (directory: string): Vm.TemplateFiles => ({
  ram: path.join(directory, "ram"),
  state: path.join(directory, "state"),
  disk: path.join(directory, "disk.qcow2"),
  overlay: path.join(directory, "overlay.qcow2")
})

const markUsed = (directory: string): void => {
  try {
    const now = new Date()
    fs.utimesSync(path.join(directory, "used"), now, now)
  } catch {
    // It only orders the templates by use.
  }
}

const remove = (directory: string): Effect.Effect<void> =>
  Effect.ignore(Effect.tryPromise(() => fs.promises.rm(directory, { recursive: true, force: true })))

const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM"
  }
}

const qemuImg = (qemu: string, args: ReadonlyArray<string>): Effect.Effect<void, Error> =>
  Effect.callback((resume, signal) => {
    const beside = path.join(path.dirname(qemu), "qemu-img")
    execFile(fs.existsSync(beside) ? beside : "qemu-img", args, { signal }, (error, _, stderr) =>
      resume(error === null ? Effect.void : Effect.fail(new Error(stderr.trim() || error.message)))
    )
  })

/**
 * Makes, keeps and removes templates, and starts clones from them.
 *
 * @since 0.1.0
 * @category services
 */
export class Template extends Context.Service<
  Template,
  {
    /**
     * A clone whose VM lives as long as the scope. Builds the template first when there is none that can be used; callers
     * that need the same one, in this process or another, wait for one build.
     */
    readonly clone: (memoryMiB: number) => Effect.Effect<Clone, SandboxError, Scope.Scope>
    /** Makes sure that the template for this memory limit (MiB) exists. */
    readonly warm: (memoryMiB: number) => Effect.Effect<Entry, SandboxError>
    /** All templates, the one used last first. */
    readonly list: Effect.Effect<ReadonlyArray<Entry>, SandboxError>
    /** Compares the hash of every file with the manifest; the problem found, or nothing. */
    readonly verify: (key: string) => Effect.Effect<string | undefined, SandboxError>
    /** Removes the templates not used for longest until the rest takes at most so many bytes. Returns what was removed. */
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
      const store = path.join(host.cacheDirectory, "templates")
      const building = new Map<string, Semaphore.Semaphore>()

      const shapeFor = Effect.fnUntraced(function* (memoryLimitMiB: number) {
        const qemu = yield* host.qemu(host.arch)
        const image = yield* images.ensure(host.arch)
        const shape: Vm.Shape = {
          qemu,
          launcher: host.launcher,
          image: image.files,
          memoryMiB: machineMemoryMiB(memoryLimitMiB)
        }
        const machine = commandLine({
          arch: host.arch,
          accelerator: qemu.accelerator,
          memoryMiB: shape.memoryMiB,
          seccomp: qemu.seccomp,
          readonlyRam: qemu.atLeast(8, 2),
          start: { kind: "restore" }
        })
        const key = createHash("sha256")
          .update(JSON.stringify([format, image.id, qemu.identity, cpuIdentity(qemu.accelerator), machine]))
          .digest("hex")
          .slice(0, 32)
        return { shape, key, image: image.id, directory: path.join(store, key) }
      })
      type Target = Effect.Success<ReturnType<typeof shapeFor>>

      /** The reason why a template cannot be used, or nothing. */
      const unusable = ({ directory }: Target): string | undefined => {
        const manifest = readManifest(directory)
        if (Option.isNone(manifest)) return fs.existsSync(directory) ? "its manifest is damaged" : "no template yet"
        return damage(directory, manifest.value)
      }

      const entries = Effect.sync(() => {
        const found: Array<Entry> = []
        for (const name of fs.existsSync(store) ? fs.readdirSync(store) : []) {
          const directory = path.join(store, name)
          const manifest = name.startsWith(".") ? Option.none() : readManifest(directory)
          if (Option.isNone(manifest)) continue
          const { files: _, format: __, ...rest } = manifest.value
          const used = fs.statSync(path.join(directory, "used"), { throwIfNoEntry: false })
          found.push({ ...rest, usedAt: used?.mtime.toISOString() ?? rest.createdAt })
        }
        return found.sort((a, b) => (a.usedAt < b.usedAt ? 1 : -1))
      })

      /** Removes a template in two steps, so that nobody finds half of one. */
      const discard = Effect.fnUntraced(function* (directory: string) {
        const aside = path.join(store, `.removed-${process.pid}-${randomBytes(6).toString("hex")}`)
        yield* Effect.ignore(Effect.try(() => fs.renameSync(directory, aside)))
        yield* remove(aside)
      })

      const prune = Effect.fn("Template.prune")(function* (keepBytes: number) {
        const removed: Array<Entry> = []
        let bytes = 0
        for (const entry of yield* entries) {
          bytes += entry.bytes
          if (bytes <= keepBytes) continue
          yield* discard(path.join(store, entry.key))
          removed.push(entry)
        }
        return removed
      })

      /** What killed processes left behind. */
      const sweep = Effect.sync(() => {
        for (const name of fs.readdirSync(store)) {
          const owner = /^\.(?:building|removed)-(?:[0-9a-f]+-)?(\d+)-/.exec(name)?.[1]
          if (owner === undefined || isAlive(Number(owner))) continue
          fs.rmSync(path.join(store, name), { recursive: true, force: true })
        }
      })

      const build = Effect.fn("Template.build")(function* (
        target: Target
      ): Effect.fn.Return<void, SandboxError, Scope.Scope> {
        const { directory, image, key, shape } = target
        const { launcher, qemu } = shape
        const failed = (problem: string, cause?: unknown): SandboxError =>
          fail(new TemplateUnusable({ key, problem, ...(cause === undefined ? {} : { cause }) }))
        const step = <A>(what: string, run: () => Promise<A> | A): Effect.Effect<A, SandboxError> =>
          Effect.tryPromise({
            try: async () => await run(),
            catch: (error) => failed(`${what}: ${error instanceof Error ? error.message : String(error)}`, error)
          })

        yield* step("cannot use the cache directory", () => fs.mkdirSync(store, { recursive: true, mode: 0o700 }))
        yield* sweep
        const work = yield* Effect.acquireRelease(
          step("cannot use the cache directory", () => {
            const made = path.join(store, `.building-${process.pid}-${randomBytes(6).toString("hex")}`)
            fs.mkdirSync(made, { mode: 0o700 })
            return made
          }),
          remove
        )
        const files = filesIn(work)
        yield* step("cannot make its files", () => {
          fs.writeFileSync(files.ram, "", { mode: 0o600 })
          fs.truncateSync(files.ram, shape.memoryMiB * 1024 * 1024)
          if (launcher.uid !== null) fs.chownSync(files.ram, launcher.uid, launcher.gid ?? -1)
        })
        yield* qemuImg(qemu.path, [
          "create",
          "-q",
          "-f",
          "qcow2",
          "-u",
          "-b",
          "base",
          "-F",
          "qcow2",
          files.overlay,
          "8G"
        ]).pipe(Effect.mapError((error) => failed(`cannot make its disk: ${error.message}`, error)))
        yield* step("cannot make its disk", () => fs.copyFileSync(files.overlay, files.disk))

        yield* report({
          stage: "template",
          message: `booting a machine with ${shape.memoryMiB} MiB and warming its interpreters`
        })
        yield* Effect.gen(function* () {
          const vm = yield* Vm.boot(shape, { ram: files.ram, disk: files.disk }, yield* host.tscKhz)
          yield* report({ stage: "template", message: "sealing its memory" })
          yield* vm.seal(files.state, host.runDirectory)
        }).pipe(
          Effect.scoped,
          Effect.catchReason("SandboxError", "BootFailed", (reason) => {
            const free = freeBytes(store)
            const full = free !== undefined && free < 64 * 1024 * 1024 ? `; the disk is full (${free} bytes free)` : ""
            return Effect.fail(failed(`it could not be made: ${reason.message}${full}`, reason))
          })
        )
        yield* step("cannot keep its files", async () => {
          // A QEMU that can map it read-only has no need to own the memory any more.
          if (qemu.atLeast(8, 2)) {
            if (launcher.uid !== null) fs.chownSync(files.ram, process.getuid?.() ?? 0, process.getgid?.() ?? 0)
            fs.chmodSync(files.ram, 0o444)
          }
          const described: Record<string, typeof FileEntry.Type> = {}
          let bytes = 0
          for (const name of fileNames) {
            const file = path.join(work, name)
            const handle = await fs.promises.open(file, "r")
            await handle.sync()
            await handle.close()
            const stat = fs.statSync(file, { bigint: true })
            bytes += Number(stat.blocks) * 512
            described[name] = {
              size: Number(stat.size),
              mtimeNs: `${stat.mtimeNs}`,
              ctimeNs: `${stat.ctimeNs}`,
              sha256: (await hashFile(file)).sha256
            }
          }
          const manifest = {
            format,
            key,
            image,
            qemu: qemu.version,
            accelerator: qemu.accelerator,
            memoryMiB: shape.memoryMiB,
            createdAt: new Date().toISOString(),
            bytes,
            files: described
          }
          fs.writeFileSync(path.join(work, "used"), "")
          fs.writeFileSync(path.join(work, "manifest.json"), JSON.stringify(manifest, null, 2), { flush: true })
        })
        yield* discard(directory)
        yield* step("cannot keep its files", () => fs.renameSync(work, directory))
        yield* prune(storeLimit)
      }, Effect.scoped)

      /** Makes sure the template exists; the reason why it had to be made, or nothing when it was there. */
      const ensure = Effect.fnUntraced(function* (target: Target) {
        if (unusable(target) === undefined) return undefined
        let semaphore = building.get(target.key)
        if (semaphore === undefined) {
          semaphore = yield* Semaphore.make(1)
          building.set(target.key, semaphore)
        }
        return yield* Effect.gen(function* () {
          return yield* withLock(
            path.join(store, `.lock-${target.key}`),
            Effect.gen(function* () {
              // Whoever had the lock before may have made it.
              const reason = unusable(target)
              if (reason !== undefined) yield* build(target)
              return reason
            }),
            { waiting: report({ stage: "template", message: "another process is making it" }) }
          ).pipe(
            Effect.catchTag("LockFailed", (error) =>
              Effect.fail(fail(new TemplateUnusable({ key: target.key, problem: error.message, cause: error })))
            )
          )
        }).pipe(semaphore.withPermits(1))
      })

      const clone = Effect.fn("Template.clone")(function* (
        memoryLimitMiB: number
      ): Effect.fn.Return<Clone, SandboxError, Scope.Scope> {
        const target = yield* shapeFor(memoryLimitMiB)
        const restore = Vm.restore(target.shape, filesIn(target.directory))
        const pool = { kind: "pool", reason: "there is no pool" } as const
        let made = yield* ensure(target)
        const vm = yield* restore.pipe(
          Effect.catchReason("SandboxError", "BootFailed", (reason) =>
            Effect.gen(function* () {
              // It looked right and does not load: make it again, once.
              made = reason.problem
              yield* discard(target.directory)
              yield* ensure(target)
              return yield* restore
            }).pipe(
              Effect.catchReason("SandboxError", "BootFailed", (again) =>
                Effect.fail(
                  fail(
                    new TemplateUnusable({
                      key: target.key,
                      problem: `it does not load: ${again.message}`,
                      cause: again
                    })
                  )
                )
              )
            )
          )
        )
        markUsed(target.directory)
        return {
          vm,
          key: target.key,
          image: target.image,
          startPath:
            made === undefined
              ? { kind: "restore", missed: [pool] }
              : { kind: "boot", missed: [pool, { kind: "restore", reason: made }] }
        }
      })

      return {
        clone,
        warm: Effect.fn("Template.warm")(function* (memoryLimitMiB) {
          const target = yield* shapeFor(memoryLimitMiB)
          yield* ensure(target)
          const entry = (yield* entries).find((it) => it.key === target.key)
          if (entry === undefined)
            return yield* fail(new TemplateUnusable({ key: target.key, problem: "it was removed" }))
          return entry
        }),
        list: entries,
        prune,
        verify: Effect.fn("Template.verify")(function* (key) {
          const directory = path.join(store, key)
          const manifest = readManifest(directory)
          if (Option.isNone(manifest)) return "there is no such template"
          const changed = damage(directory, manifest.value)
          if (changed !== undefined) return changed
          for (const name of fileNames) {
            const { sha256 } = yield* Effect.promise(() => hashFile(path.join(directory, name)))
            if (sha256 !== manifest.value.files[name].sha256) return `${name} is not what was sealed`
          }
          return undefined
        })
      }
    })
  )
}

const freeBytes = (directory: string): number | undefined => {
  try {
    const stat = fs.statfsSync(directory)
    return stat.bavail * stat.bsize
  } catch {
    return undefined
  }
}
