/**
 * Copies a running clone (memory, devices and disk at one moment) into the files of a template.
 *
 * The clone is paused only while its own pages, the ones written since its start, are read. The memory it shares with its
 * template is copied before, and so is its disk unless it is being written. A second QEMU, whose guest never runs, then loads
 * the copy and saves it like any template. So a captured machine is known to load, and starts as quickly as a template.
 *
 * The host chooses the moment: it stops sending, and waits until the guest has read everything. So the copy is taken between
 * two frames of the channel, where another host's HELLO is accepted.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import { Fd } from "../qemu/CommandLine.ts"
import type { Machine, MachineFailure } from "../qemu/Machine.ts"
import { fail, type SandboxError, SnapshotFailed } from "../SandboxError.ts"
import type { Parts, TemplateFiles } from "../Vm.ts"
import { withOpen } from "./Descriptors.ts"
import { launch } from "./Launch.ts"
import { capabilities, saveState, socketIn } from "./Migration.ts"
import { type OwnPages, openOwnPages, type Piece } from "./OwnPages.ts"

/** How long the clone's guest was paused, by QEMU's clock, in ms, and how many bytes of memory were its own. */
export interface Captured {
  readonly pausedMs: number
  readonly ownBytes: number
}

/** How long a capture may take. */
const bound = "90 seconds"
/** How long the guest may take to read what it was sent. Its agent has priority, so a guest that takes longer hangs. */
const settlesWithin = "10 seconds"
const failed = (problem: string, cause?: unknown): SandboxError =>
  fail(new SnapshotFailed({ snapshot: null, kind: "capture", problem, ...(cause === undefined ? {} : { cause }) }))

const explain =
  (what: string) =>
  (error: { readonly message: string }): SandboxError =>
    failed(`${what}: ${error.message}`, error)

/** Runs `work`; an error becomes `SnapshotFailed{capture}`, with `what` before its message. */
const captureWork = <A>(what: string, work: () => A): Effect.Effect<A, SandboxError> =>
  Effect.try({
    try: work,
    catch: (error) => failed(`${what}: ${error instanceof Error ? error.message : String(error)}`, error)
  })

/** Copies an open memory file; keeps its holes, and shares its blocks where the file system supports that. */
const copyMemory = (file: number, target: string): Effect.Effect<void, SandboxError> =>
  Effect.callback((resume) => {
    const child = spawn("cp", ["--sparse=auto", "--reflink=auto", "/proc/self/fd/3", target], {
      stdio: ["ignore", "ignore", "pipe", file]
    })
    let said = ""
    child.stderr?.on("data", (text: Buffer) => {
      said = (said + text.toString()).slice(-500)
    })
    const lost = (problem: string): void => resume(Effect.fail(failed(`its memory cannot be copied: ${problem}`)))
    child.once("error", (error) => lost(error.message))
    child.once("exit", (code) => (code === 0 ? resume(Effect.void) : lost(said.trim() || `cp ended with ${code}`)))
    // `cp` must have ended before the directory is removed.
    return Effect.callback<void>((gone) => {
      if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return gone(Effect.void)
      child.once("exit", () => gone(Effect.void))
      child.kill("SIGKILL")
    })
  })

/** Copies an open disk. `refresh` copies it again if it was written since. */
const copyDisk = Effect.fnUntraced(function* (disk: number, target: string) {
  const copy = (): void => fs.copyFileSync(`/proc/self/fd/${disk}`, target, fs.constants.COPYFILE_FICLONE)
  const writtenAt = (): bigint => fs.fstatSync(disk, { bigint: true }).mtimeNs
  const before = writtenAt()
  // The kernel sets file times by its tick, so a second write right after the first may not change the time.
  const quiet = BigInt(Date.now() - 50) * 1_000_000n > before
  yield* captureWork("its disk cannot be copied", copy)
  return {
    refresh: captureWork("its disk cannot be copied", () => {
      if (!quiet || writtenAt() !== before) copy()
    })
  }
})

/** The head of QEMU's stream of saved state, which identifies the machine; the first section follows it. */
export const headOf = (state: number): Buffer => {
  const start = Buffer.alloc(4096)
  const read = fs.readSync(state, start, 0, start.length, 0)
  // A section begins with its kind, its number (4 bytes) and the length of its name; memory is always the first section.
  const at = start.subarray(0, read).indexOf("\x03ram") - 5
  if (at < 8) throw new Error("its template's state has an unknown format")
  return start.subarray(0, at)
}

/** Completes what `xen-save-devices-state` writes, which is a stream without the head that identifies the machine. */
export const wholeState = (head: Buffer, devices: Buffer): Buffer => {
  const description = Buffer.from("\x06\0\0\0\x02{}", "latin1")
  return Buffer.concat([head, devices.subarray(8), description])
}

/** A file for the state of a clone's devices, which QEMU opens by name; removed when the scope closes. */
export const devicesFile = (
  { launcher }: Parts["shape"],
  directory: string
): Effect.Effect<string, SandboxError, Scope.Scope> =>
  Effect.acquireRelease(
    captureWork("the file for its state cannot be created", () => {
      const path = socketIn(directory)
      fs.writeFileSync(path, "", { mode: 0o600, flag: "wx" })
      if (launcher.uid !== null) fs.chownSync(path, launcher.uid, launcher.gid ?? -1)
      return path
    }),
    (path) => Effect.sync(() => fs.rmSync(path, { force: true }))
  )

/** A paused clone. */
export interface Standing {
  /** Continues the clone now. */
  readonly resume: Effect.Effect<void, SandboxError>
  /** Leaves the clone paused when the scope closes: the caller ends it. */
  readonly abandon: () => void
}

/**
 * Pauses a clone between two frames of the channel and writes the state of its devices to a file. The clone continues when
 * the scope closes, whatever has happened.
 */
export const standStill = Effect.fnUntraced(function* (
  { channel, machine }: Parts,
  devices: string
): Effect.fn.Return<Standing, SandboxError, Scope.Scope> {
  const lost = explain("the VM was lost")
  const observer = yield* channel.observe
  while (!observer.isSettled()) {
    yield* observer.settled.pipe(
      Effect.mapError(lost),
      Effect.timeoutOrElse({ duration: settlesWithin, orElse: () => Effect.fail(failed("the guest does not answer")) })
    )
  }
  observer.hold()
  const run = Effect.mapError(machine.commands({ execute: "cont" }), lost)
  let stands = true
  yield* Effect.addFinalizer(() => Effect.suspend(() => (stands ? Effect.ignore(run) : Effect.void)))
  yield* machine
    .commands({ execute: "stop" }, { execute: "xen-save-devices-state", arguments: { filename: devices, live: false } })
    .pipe(Effect.mapError(lost))
  const abandon = (): void => {
    stands = false
  }
  return { resume: Effect.andThen(run, Effect.sync(abandon)), abandon }
})

/** Reads a clone's own pages. Uninterruptible, because the files it reads must not be closed before it has ended. */
export const readOwn = (own: OwnPages, write: (piece: Piece) => void) =>
  Effect.uninterruptible(
    Effect.tryPromise({
      try: () => own.read(write),
      catch: (error) =>
        failed(`its memory cannot be read: ${error instanceof Error ? error.message : String(error)}`, error)
    })
  )

/** What was read while the clone was paused. */
interface Still {
  readonly pausedMs: number
  readonly ownBytes: number
  readonly pieces: ReadonlyArray<Piece>
}

/** Pauses the clone, reads its own pages and continues it, whatever happens meanwhile. */
const readStill = Effect.fnUntraced(function* (
  parts: Parts,
  own: OwnPages,
  ram: string,
  devices: string,
  refreshDisk: Effect.Effect<void, SandboxError>
): Effect.fn.Return<Still, SandboxError, Scope.Scope> {
  let stoppedAt = 0
  let resumedAt = 0
  yield* parts.machine.onEvent(({ atMs, name }) => {
    if (name === "STOP") stoppedAt = atMs
    else if (name === "RESUME") resumedAt = atMs
  })
  const file = yield* Effect.acquireRelease(
    captureWork("its memory cannot be saved", () => fs.openSync(ram, "r+")),
    (fd) => Effect.sync(() => fs.closeSync(fd))
  )
  const standing = yield* standStill(parts, devices)
  yield* refreshDisk
  const { bytes, pieces } = yield* readOwn(own, (it) => void fs.writeSync(file, it.bytes, 0, it.bytes.length, it.at))
  yield* standing.resume
  return { pausedMs: resumedAt - stoppedAt, ownBytes: bytes, pieces }
}, Effect.scoped)

/** Makes a second QEMU load the copy, merge the clone's disk with the disk below it, and save the machine as a template. */
const settle = Effect.fnUntraced(function* (
  { disk, shape }: Parts,
  files: TemplateFiles,
  state: string,
  socketDirectory: string
): Effect.fn.Return<void, SandboxError, Scope.Scope> {
  const { image, launcher } = shape
  const machine = yield* withOpen(
    [[files.ram, "r+"], [image.root, "r"], [image.scratch, "r"], [files.disk, "r+"], disk, [state, "r"]],
    (open) => launch(shape, { kind: "receive" }, open)
  )
  yield* Effect.gen(function* () {
    yield* machine.commands({ execute: "qmp_capabilities" }, capabilities, {
      execute: "migrate-incoming",
      arguments: { uri: `fd:${Fd.state}` }
    })
    yield* machine.migrated
    // Since QEMU 10 the disks of a machine that has not run yet are inactive and cannot be changed.
    if (shape.qemu.atLeast(10, 0)) {
      yield* machine.commands({ execute: "blockdev-set-active", arguments: { active: true } })
    }
    yield* mergeDisk(machine)
    yield* saveState(machine, files.state, socketDirectory, launcher.uid)
  }).pipe(
    Effect.mapError((error) => (error._tag === "SandboxError" ? error : explain("the copy does not load")(error))),
    Effect.onExit(() => machine.kill)
  )
}, Effect.scoped)

/** Merges the template's disk into the clone's, so that the stack of disks does not grow with each copy of a copy. */
const mergeDisk = Effect.fnUntraced(function* (
  machine: Machine
): Effect.fn.Return<void, MachineFailure | SandboxError, Scope.Scope> {
  const over = yield* Deferred.make<void, SandboxError>()
  yield* machine.onEvent(({ name, status }) => {
    if (name !== "JOB_STATUS_CHANGE") return
    if (status === "aborting") Deferred.doneUnsafe(over, Effect.fail(failed("its disk cannot be merged")))
    if (status === "concluded") Deferred.doneUnsafe(over, Effect.void)
  })
  yield* machine.commands({
    execute: "block-stream",
    arguments: { "job-id": "merge", device: "scratch", "base-node": "scratch-base", "backing-file": "base" }
  })
  yield* Effect.raceFirst(Deferred.await(over), machine.failure)
}, Effect.scoped)

/** Opens a clone's own pages for reading; closed with the scope. `room`: see `OwnPages`. */
export const ownPages = (
  { machine, ram, shape }: Parts,
  room?: number
): Effect.Effect<OwnPages, SandboxError, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.try({
      try: () => openOwnPages(machine.pid, ram, shape.memoryMiB * 1024 * 1024, room),
      catch: (error) =>
        fail(
          new SnapshotFailed({
            snapshot: null,
            kind: "unsupported",
            problem: `this host does not let us read QEMU's memory: ${error instanceof Error ? error.message : String(error)}`
          })
        )
    }),
    (it) => Effect.sync(it.close)
  )

/**
 * Captures a clone into `files`, all except the empty overlay. The clone continues whether this succeeds, fails or is
 * interrupted; the files are valid only when it has succeeded.
 */
export const capture = Effect.fn("Vm.capture")(
  function* (
    parts: Parts,
    files: TemplateFiles,
    socketDirectory: string
  ): Effect.fn.Return<Captured, SandboxError, Scope.Scope> {
    const { launcher } = parts.shape
    const own = yield* ownPages(parts)
    const head = yield* captureWork("its state cannot be read", () => headOf(parts.state))
    const devices = yield* devicesFile(parts.shape, socketDirectory)
    const [copied] = yield* Effect.all([copyDisk(parts.overlay, files.disk), copyMemory(parts.ram, files.ram)], {
      concurrency: 2
    })
    yield* captureWork("its memory cannot be saved", () => {
      fs.chmodSync(files.ram, 0o600)
      if (launcher.uid !== null) fs.chownSync(files.ram, launcher.uid, launcher.gid ?? -1)
    })
    const { ownBytes, pausedMs, pieces } = yield* readStill(parts, own, files.ram, devices, copied.refresh)
    yield* Effect.tryPromise({
      try: async () => {
        const ram = await fs.promises.open(files.ram, "r+")
        try {
          for (const { at, bytes } of pieces) await ram.write(bytes, 0, bytes.length, at)
        } finally {
          await ram.close()
        }
      },
      catch: (error) =>
        failed(`its memory cannot be saved: ${error instanceof Error ? error.message : String(error)}`, error)
    })
    yield* captureWork("its state cannot be saved", () =>
      fs.writeFileSync(devices, wholeState(head, fs.readFileSync(devices)))
    )
    yield* settle(parts, files, devices, socketDirectory)
    return { pausedMs, ownBytes }
  },
  Effect.scoped,
  Effect.timeoutOrElse({ duration: bound, orElse: () => Effect.fail(failed(`not done after ${bound}`)) })
)
