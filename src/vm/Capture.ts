/**
 * Copies a running clone, memory, devices and disk of one moment, into the files of a template.
 *
 * The clone stands still only while its own pages are read, those that it has written since it was started; what it shares
 * with its template, and its disk if nothing is being written there, are copied before. A second QEMU, which never runs,
 * then loads the copy and saves it as any template is saved. So what is captured has proved that it loads, and starts as
 * quickly as a template.
 *
 * The host chooses the moment: it sends nothing more, and the guest has read all that was sent before. So the copy stands
 * between two frames of the channel, where the greeting of another host is understood.
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

/** How long the clone's guest stood still, by QEMU's clock, in ms, and how many bytes of memory were its own. */
export interface Captured {
  readonly pausedMs: number
  readonly ownBytes: number
}

/** How long all of it may take. */
const bound = "90 seconds"
/** How long the guest may take to read what it was sent; its agent comes first, so this says that it hangs. */
const settlesWithin = "10 seconds"
const failed = (problem: string, cause?: unknown): SandboxError =>
  fail(new SnapshotFailed({ snapshot: null, kind: "capture", problem, ...(cause === undefined ? {} : { cause }) }))

const explain =
  (what: string) =>
  (error: { readonly message: string }): SandboxError =>
    failed(`${what}: ${error.message}`, error)

export const attempt = <A>(what: string, work: () => A): Effect.Effect<A, SandboxError> =>
  Effect.try({
    try: work,
    catch: (error) => failed(`${what}: ${error instanceof Error ? error.message : String(error)}`, error)
  })

/** A copy of an open file, holes kept, sharing its blocks where the file system can. */
const copySparse = (file: number, target: string): Effect.Effect<void, SandboxError> =>
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
    // It must not write any more when its directory is removed.
    return Effect.callback<void>((gone) => {
      if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return gone(Effect.void)
      child.once("exit", () => gone(Effect.void))
      child.kill("SIGKILL")
    })
  })

/** A copy of an open disk; what it gives brings the copy up to date, at once where nothing was written in between. */
const copyDisk = Effect.fnUntraced(function* (disk: number, target: string) {
  const copy = (): void => fs.copyFileSync(`/proc/self/fd/${disk}`, target, fs.constants.COPYFILE_FICLONE)
  const writtenAt = (): bigint => fs.fstatSync(disk, { bigint: true }).mtimeNs
  const before = writtenAt()
  // Times of files go by ticks of the kernel: one that was written a moment ago may be written again without a trace.
  const quiet = BigInt(Date.now() - 50) * 1_000_000n > before
  yield* attempt("its disk cannot be copied", copy)
  return {
    refresh: attempt("its disk cannot be copied", () => {
      if (!quiet || writtenAt() !== before) copy()
    })
  }
})

/** Where QEMU's stream of saved state says which machine it is of; its first section follows. */
export const headOf = (state: number): Buffer => {
  const start = Buffer.alloc(4096)
  const read = fs.readSync(state, start, 0, start.length, 0)
  // A section begins with its kind, its number (4 bytes) and the length of its name; memory always is the first.
  const at = start.subarray(0, read).indexOf("\x03ram") - 5
  if (at < 8) throw new Error("its template's state is not understood")
  return start.subarray(0, at)
}

/** What `xen-save-devices-state` writes is a stream without the part that says which machine it is of; this is a whole one. */
export const wholeState = (head: Buffer, devices: Buffer): Buffer => {
  const description = Buffer.from("\x06\0\0\0\x02{}", "latin1")
  return Buffer.concat([head, devices.subarray(8), description])
}

/** A file for the state of a clone's devices, which QEMU opens by its name; gone with the scope. */
export const devicesFile = (
  { launcher }: Parts["shape"],
  directory: string
): Effect.Effect<string, SandboxError, Scope.Scope> =>
  Effect.acquireRelease(
    attempt("there is no place for its state", () => {
      const path = socketIn(directory)
      fs.writeFileSync(path, "", { mode: 0o600, flag: "wx" })
      if (launcher.uid !== null) fs.chownSync(path, launcher.uid, launcher.gid ?? -1)
      return path
    }),
    (path) => Effect.sync(() => fs.rmSync(path, { force: true }))
  )

/** A clone that stands still. */
export interface Standing {
  /** Lets it run on now. */
  readonly resume: Effect.Effect<void, SandboxError>
  /** It shall not run on: it is ended. */
  readonly abandon: () => void
}

/**
 * Has a clone stand still between two frames of the channel, with the state of its devices in a file, until the scope closes:
 * then it runs on, whatever has happened.
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

/** Reads what is a clone's own. It must be over before what it reads from is closed, so nothing interrupts it. */
export const readOwn = (own: OwnPages, write: (piece: Piece) => void) =>
  Effect.uninterruptible(
    Effect.tryPromise({
      try: () => own.read(write),
      catch: (error) =>
        failed(`its memory cannot be read: ${error instanceof Error ? error.message : String(error)}`, error)
    })
  )

/** What was read while the clone stood still. */
interface Still {
  readonly pausedMs: number
  readonly ownBytes: number
  readonly pieces: ReadonlyArray<Piece>
}

/** Stops the clone, reads what is its own and lets it run on, whatever happens meanwhile. */
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
    attempt("its memory cannot be kept", () => fs.openSync(ram, "r+")),
    (fd) => Effect.sync(() => fs.closeSync(fd))
  )
  const standing = yield* standStill(parts, devices)
  yield* refreshDisk
  const { bytes, pieces } = yield* readOwn(own, (it) => void fs.writeSync(file, it.bytes, 0, it.bytes.length, it.at))
  yield* standing.resume
  return { pausedMs: resumedAt - stoppedAt, ownBytes: bytes, pieces }
}, Effect.scoped)

/** Has a second QEMU load the copy, merge the clone's disk with what it lies on, and save the machine as a template. */
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
    // Since QEMU 10 the disks of what has not run yet are not its own to change.
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

/** Moves what the clone's disk had below it, down to the image's, into the clone's disk: every copy has the same depth. */
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

/** A clone's own pages, to be read; closed with the scope. `room`: see `OwnPages`. */
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
 * Captures a clone into `files`, all but the empty overlay. The clone runs on, whether this succeeds, fails or is
 * interrupted; what is in the files counts only when it has succeeded.
 */
export const capture = Effect.fn("Vm.capture")(
  function* (
    parts: Parts,
    files: TemplateFiles,
    socketDirectory: string
  ): Effect.fn.Return<Captured, SandboxError, Scope.Scope> {
    const { launcher } = parts.shape
    const own = yield* ownPages(parts)
    const head = yield* attempt("its state cannot be read", () => headOf(parts.state))
    const devices = yield* devicesFile(parts.shape, socketDirectory)
    const [copied] = yield* Effect.all([copyDisk(parts.overlay, files.disk), copySparse(parts.ram, files.ram)], {
      concurrency: 2
    })
    yield* attempt("its memory cannot be kept", () => {
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
        failed(`its memory cannot be kept: ${error instanceof Error ? error.message : String(error)}`, error)
    })
    yield* attempt("its state cannot be kept", () =>
      fs.writeFileSync(devices, wholeState(head, fs.readFileSync(devices)))
    )
    yield* settle(parts, files, devices, socketDirectory)
    return { pausedMs, ownBytes }
  },
  Effect.scoped,
  Effect.timeoutOrElse({ duration: bound, orElse: () => Effect.fail(failed(`not done after ${bound}`)) })
)
