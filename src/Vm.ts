/**
 * VM: one QEMU process with its monitor and its channel, as a scoped resource. A VM is either booted, to be sealed as a
 * template, or restored from one; closing its scope kills QEMU and waits until it is dead.
 *
 * QEMU gets every file as an inherited descriptor. The disk of a clone is unlinked before QEMU starts, so a VM leaves
 * nothing in the file system however it ends.
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Clock from "effect/Clock"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { randomBytes } from "node:crypto"
import * as fs from "node:fs"
import * as net from "node:net"
import * as path from "node:path"
import { pipeline } from "node:stream"
import * as Channel from "./guest/Channel.ts"
import * as Agent from "./guest/Agent.ts"
import { type GuestHello, type Hello, type NetworkGrant, portName, protocol } from "./guest/Hello.ts"
import { type Method, seal as sealMethod } from "./guest/Methods.ts"
import type { Host, Qemu } from "./Host.ts"
import { diskShare } from "./vm/diskShare.ts"
import * as Observe from "./internal/Observe.ts"
import * as Counts from "./telemetry/Counts.ts"
import { sweep, temporaryName } from "./internal/Temporary.ts"
import { defaults, type Limits } from "./Limits.ts"
import { commandLine, Fd, type Input } from "./qemu/CommandLine.ts"
import * as Machine from "./qemu/Machine.ts"
import * as Telemetry from "./Telemetry.ts"
import type { Isolation } from "./Receipt.ts"
import { BootFailed, fail, NotStarted, ProtocolError, type SandboxError } from "./SandboxError.ts"

/** The VM is gone: its process ended, its guest fell silent or broke the channel's rules. */
export class VmLost extends Schema.TaggedError<VmLost>()("VmLost", {
  problem: Schema.String,
  /** The guest broke the rules of the channel. */
  violation: Schema.Boolean
}) {
  override get message(): string {
    return this.problem
  }
}

/** The image's files that a VM is made of; absolute paths. */
export interface ImageFiles {
  readonly arch: "amd64" | "arm64"
  readonly kernel: string
  readonly initrd: string
  readonly root: string
  readonly scratch: string
}

/** What a VM needs to know to start: which QEMU, how it is launched, which image and how much memory (MiB). */
export interface Shape {
  readonly qemu: Qemu
  readonly launcher: Host["Service"]["launcher"]
  readonly image: ImageFiles
  readonly memoryMiB: number
}

/** A template's files; absolute paths. */
export interface TemplateFiles {
  readonly ram: string
  readonly state: string
  readonly disk: string
  /** An empty overlay: each clone starts from a copy. */
  readonly overlay: string
}

/** What makes a clone different from every other, beside its entropy. */
export interface Identity {
  readonly hostname: string
  readonly env: Readonly<Record<string, string>>
  readonly limits: Required<Limits>
  readonly network: NetworkGrant | null
}

/**
 * A running machine.
 */
export interface Vm {
  readonly pid: number
  readonly isolation: Isolation
  /** Makes a request to the agent; see `guest/Agent`. */
  readonly open: Agent.Open<VmLost>
  /** Gives the guest its clock, entropy, identity and settings, and fails unless it acknowledges every one. */
  readonly handover: (identity: Identity, purpose?: Hello["purpose"]) => Effect.Effect<GuestHello, SandboxError>
  /** Stops the machine's time: it takes no CPU, and its guest notices nothing, until `resume`. */
  readonly pause: Effect.Effect<void, VmLost>
  /** Lets a paused machine run on. */
  readonly resume: Effect.Effect<void, VmLost>
  /** Waits for output of executions that have ended; see `guest/LateOutput`. `Cause.Done` when the VM is gone. */
  readonly lateOutput: Channel.Channel["lateOutput"]
  /** Names who takes the connections that the guest asks for; see `guest/Connections`. */
  readonly accept: Channel.Channel["accept"]
  /** How many of them are open. */
  readonly connected: Channel.Channel["connected"]
  /** Ends when the guest, asked for it, has given no sign of life within a second and a half; otherwise never. */
  readonly silence: Effect.Effect<void>
  /** Fails when the VM is lost; never succeeds. */
  readonly failure: Effect.Effect<never, VmLost>
  /** Ends the VM at once; done when the process's death is confirmed. */
  readonly destroy: Effect.Effect<void>
  /** Of a restored clone. */
  readonly parts: Parts | undefined
}

/** What a running clone is made of, for who copies it; see `vm/Capture`. */
export interface Parts {
  readonly shape: Shape
  readonly machine: Machine.Machine
  readonly channel: Channel.Channel
  /** The clone's own disk, the one below it, and what it was restored from; open for reading as long as the VM lives. */
  readonly overlay: number
  readonly disk: number
  readonly ram: number
  readonly state: number
  /** Ends the process of a machine that was saved. */
  readonly end: Effect.Effect<void>
}

/** Of it, what stays when its process is gone. */
export type Kept = Pick<Parts, "shape" | "overlay" | "disk" | "ram" | "state">

/** A request to a VM's agent that is under way. */
export type VmStream<M extends Method> = Agent.Stream<M, VmLost>

/** A booted machine with warm interpreters, which can be sealed. */
export interface Booted extends Vm {
  /** Has the agent settle, stops the machine and writes its device state to `state`. The machine is of no use afterwards. */
  readonly seal: (state: string, socketDirectory: string) => Effect.Effect<void, SandboxError>
}

const problemOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

/** A file for QEMU: a path to open, with flags, or what is open already and stays so. */
export type Opening = readonly [path: string, flags: string] | number

/** A private copy of an empty overlay, open and already unlinked. */
const privateOverlay = (source: string): number => {
  const copy = path.join(path.dirname(source), temporaryName("clone"))
  try {
    fs.copyFileSync(source, copy, fs.constants.COPYFILE_FICLONE)
    return fs.openSync(copy, "r+")
  } finally {
    fs.rmSync(copy, { force: true })
  }
}

const launchFailed = (error: unknown): SandboxError =>
  fail(new BootFailed({ stage: "launch", problem: problemOf(error), console: "" }))

/** All of them or none. */
const openAll = (openers: ReadonlyArray<() => number>): ReadonlyArray<number> => {
  const opened: Array<number> = []
  try {
    for (const open of openers) opened.push(open())
    return opened
  } catch (error) {
    closeAll(opened)
    throw error
  }
}

/** What a clone keeps open of its own and of its template; closed with the scope. */
const openParts = (template: TemplateFiles): Effect.Effect<Omit<Kept, "shape">, SandboxError, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.try({
      try: () => {
        const paths = [template.disk, template.ram, template.state]
        const [overlay = -1, disk = -1, ram = -1, state = -1] = openAll([
          () => privateOverlay(template.overlay),
          ...paths.map((path) => () => fs.openSync(path, "r"))
        ])
        return { overlay, disk, ram, state }
      },
      catch: launchFailed
    }),
    (opened) => Effect.sync(() => closeAll(Object.values(opened)))
  )

/** Opens files, uses them and closes what it opened: QEMU has inherited its own by then. */
export const withOpen = <A, E, R>(
  openings: ReadonlyArray<Opening>,
  use: (files: ReadonlyArray<number>) => Effect.Effect<A, E, R>
): Effect.Effect<A, E | SandboxError, R> =>
  Effect.acquireUseRelease(
    Effect.try({
      try: () => {
        const paths = openings.filter((it) => typeof it !== "number")
        const opened = openAll(paths.map((it) => () => fs.openSync(...it)))
        let next = 0
        return { opened, files: openings.map((it) => (typeof it === "number" ? it : (opened[next++] ?? -1))) }
      },
      catch: launchFailed
    }),
    ({ files }) => use(files),
    ({ opened }) => Effect.sync(() => closeAll(opened))
  )

const closeAll = (opened: ReadonlyArray<number>): void => {
  for (const fd of opened) fs.closeSync(fd)
}

const isolationOf = (shape: Shape): Isolation => ({
  accelerator: shape.qemu.accelerator,
  boundary: shape.qemu.accelerator === "tcg" ? "emulated" : "hardware",
  seccomp: shape.qemu.seccomp,
  user: shape.launcher.user,
  parentDeath: shape.launcher.parentDeath,
  cgroup: null
})

const bootFailed =
  (stage: BootFailed["stage"], machine: Machine.Machine | undefined) =>
  (error: Error): SandboxError =>
    fail(new BootFailed({ stage, problem: error.message, console: machine?.console().trim() ?? "" }))

/** A machine, and the reasons for which its VM ends it. */
interface Launched extends Machine.Machine {
  /** Kills it for this reason; the first one counts. */
  readonly killFor: (cause: Counts.DeathCause) => Effect.Effect<void>
  /** Kills it because its start has failed, or because nobody waits for it any more. */
  readonly notStarted: <E>(cause: Cause.Cause<E>) => Effect.Effect<void>
}

/** Starts a machine that is counted while it lives; `ended` is for it to call, once. */
const counted = Effect.fnUntraced(function* <E>(
  start: (ended: (end: Machine.End) => void) => Effect.Effect<Machine.Machine, E, Scope.Scope>
): Effect.fn.Return<Launched, E, Scope.Scope> {
  const life = yield* Counts.life
  let cause: Counts.DeathCause | undefined
  const machine = yield* start((end) => life.ended(end === "ours" ? (cause ?? "destroyed") : end))
  life.began()
  const killFor: Launched["killFor"] = (why) =>
    Effect.suspend(() => {
      cause ??= why
      return machine.kill
    })
  return {
    ...machine,
    killFor,
    notStarted: (why) => killFor(Cause.hasInterruptsOnly(why) ? "destroyed" : "start-failed")
  }
})

/** Starts QEMU in this shape with its files from descriptor 5 on. */
export const launch = (shape: Shape, start: Input["start"], files: ReadonlyArray<number>) => {
  const { image, launcher, memoryMiB, qemu } = shape
  const args = commandLine({
    arch: image.arch,
    accelerator: qemu.accelerator,
    memoryMiB,
    seccomp: qemu.seccomp,
    portName,
    readonlyRam: qemu.atLeast(8, 2),
    start
  })
  const [command, ...rest] = [...launcher.argv, qemu.path, ...args]
  return counted((ended) => Machine.launch({ argv: [command ?? qemu.path, ...rest], files, ended })).pipe(
    Effect.mapError(bootFailed("launch", undefined))
  )
}

const toLost = (error: Channel.ChannelFailure | Machine.MachineFailure): VmLost =>
  new VmLost({ problem: error.message, violation: error._tag === "ChannelViolation" })

/** How long a process that is ending may take until its end is known. */
const endSaidWithin = "200 millis"

/** Ties machine and channel into one VM. */
const join = Effect.fnUntraced(function* (
  isolation: Isolation,
  machine: Launched,
  kept?: Kept,
  firstStream?: number
): Effect.fn.Return<Vm & { readonly greeting: Effect.Effect<GuestHello, VmLost> }, never, Scope.Scope> {
  const channel = yield* Channel.make(machine.channel, firstStream)
  // The process's end says more than the connection's, which it causes: let it speak first where both happen.
  const explain = (error: Channel.ChannelFailure): Effect.Effect<never, VmLost> =>
    error._tag === "ChannelViolation"
      ? Effect.fail(toLost(error))
      : machine.failure.pipe(
          Effect.timeoutOrElse({ duration: endSaidWithin, orElse: () => Effect.fail(error) }),
          Effect.mapError(toLost)
        )
  const failure = Effect.raceFirst(channel.failure, machine.failure).pipe(
    Effect.catch((error) => (error._tag === "MachineFailure" ? Effect.fail(toLost(error)) : explain(error)))
  )
  // A guest that breaks the rules or falls silent has no claim to run on.
  yield* channel.failure.pipe(
    Effect.catch((error) =>
      error._tag === "ChannelViolation"
        ? machine.killFor("violation")
        : // A QEMU that is ending by itself closes the connection first: let it end, its exit says why.
          machine.failure.pipe(
            Effect.ignore,
            Effect.timeoutOrElse({ duration: "1 second", orElse: () => machine.killFor("silent") })
          )
    ),
    Effect.forkScoped
  )
  return {
    pid: machine.pid,
    isolation,
    parts: kept === undefined ? undefined : { ...kept, machine, channel, end: machine.killFor("parked") },
    failure,
    pause: Effect.asVoid(Effect.mapError(machine.commands({ execute: "stop" }), toLost)),
    resume: Effect.asVoid(Effect.mapError(machine.commands({ execute: "cont" }), toLost)),
    destroy: machine.kill,
    lateOutput: channel.lateOutput,
    accept: channel.accept,
    connected: channel.connected,
    silence: channel.silence,
    greeting: channel.greeting.pipe(Effect.catch(explain)),
    open: Agent.over(channel, explain),
    handover: (identity, purpose = "session") =>
      handover(machine, channel, identity, purpose).pipe(
        Observe.timed(Telemetry.handoverDuration),
        Effect.onError(machine.notStarted),
        Effect.withSpan("Vm.handover", { attributes: { "exec_sandbox.purpose": purpose } })
      )
  }
})

/** How long a guest may take to answer HELLO; the answer needs no user code. */
const handoverBound = "15 seconds"

const handover = Effect.fnUntraced(function* (
  machine: Machine.Machine,
  channel: Channel.Channel,
  identity: Identity,
  purpose: Hello["purpose"]
): Effect.fn.Return<GuestHello, SandboxError> {
  const now = yield* Clock.currentTimeNanos
  const failed = bootFailed("handover", machine)
  const reply = yield* channel
    .handshake({
      protocol,
      purpose,
      clock: `${now}`,
      entropy: randomBytes(64).toString("hex"),
      hostname: identity.hostname,
      machineId: randomBytes(16).toString("hex"),
      env: identity.env,
      limits: {
        memoryBytes: identity.limits.memoryMiB * 1024 * 1024,
        processes: identity.limits.processes,
        diskBytes: diskShare(identity.limits.diskMiB),
        fileSizeBytes: diskShare(identity.limits.fileSizeMiB)
      },
      network: identity.network
    })
    .pipe(
      Effect.mapError((error) =>
        error._tag === "ChannelViolation" ? fail(new ProtocolError({ problem: error.problem })) : failed(error)
      ),
      Effect.timeoutOrElse({
        duration: handoverBound,
        orElse: () => Effect.fail(failed(new Error("the guest did not answer HELLO")))
      })
    )
  const refused = Object.entries(reply.acknowledged ?? { everything: false })
    .filter(([, done]) => !done)
    .map(([name]) => name)
  if (refused.length > 0) {
    return yield* failed(new Error(`the guest did not take over ${refused.join(", ")}`))
  }
  return reply
})

/** RAM is a file of its own and stays out of the stream; the end of a migration comes as an event. */
export const capabilities = {
  execute: "migrate-set-capabilities",
  arguments: {
    capabilities: ["events", "x-ignore-shared"].map((capability) => ({ capability, state: true }))
  }
}

/** How long a boot may take until the interpreters are warm; emulation on busy cores is slow. */
const bootBound = "180 seconds"
/** How long loading a template's state may take. */
const restoreBound = "30 seconds"
/** How long the guest may take to settle before it is sealed, and QEMU to write the state. */
const sealBound = "60 seconds"

const bounded =
  (duration: string, stage: BootFailed["stage"], machine: Machine.Machine) =>
  <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E | SandboxError, R> =>
    Effect.timeoutOrElse(effect, {
      duration: duration as `${number} seconds`,
      orElse: () => Effect.fail(bootFailed(stage, machine)(new Error(`not done after ${duration}`)))
    })

/** What is told to a machine that will be a template. */
const handoverToBuild = (vm: Vm) =>
  vm.handover({ hostname: "template", env: {}, limits: defaults, network: null }, "build")

const sealable = (shape: Shape, vm: Vm, machine: Launched): Booted => ({
  ...vm,
  seal: (state, socketDirectory) => seal(shape, vm, machine, state, socketDirectory)
})

/**
 * Boots a machine from the image onto new RAM and disk files, and waits until its interpreters are warm. `ram` must have
 * its full size already; `disk` is an empty overlay.
 */
export const boot = Effect.fn("Vm.boot")(function* (
  shape: Shape,
  files: { readonly ram: string; readonly disk: string },
  tscKhz: number | null
): Effect.fn.Return<Booted, SandboxError, Scope.Scope> {
  const { image } = shape
  const machine = yield* withOpen(
    [
      [files.ram, "r+"],
      [image.root, "r"],
      [image.scratch, "r"],
      [files.disk, "r+"],
      [image.kernel, "r"],
      [image.initrd, "r"]
    ],
    (fds) => launch(shape, { kind: "boot", tscKhz }, fds)
  )
  const vm = yield* join(isolationOf(shape), machine)
  yield* machine
    .commands({ execute: "qmp_capabilities" })
    .pipe(
      Effect.mapError(bootFailed("monitor", machine)),
      bounded(restoreBound, "monitor", machine),
      Effect.andThen(
        vm.greeting.pipe(Effect.mapError(bootFailed("boot", machine)), bounded(bootBound, "boot", machine))
      ),
      Effect.andThen(handoverToBuild(vm)),
      Effect.onError(machine.notStarted)
    )
  return sealable(shape, vm, machine)
})

/**
 * Goes on with copies of a template's memory and disk, to be sealed as another template: what is in the first one need not be
 * booted and warmed again.
 */
export const extend = Effect.fn("Vm.extend")(function* (
  shape: Shape,
  files: { readonly ram: string; readonly disk: string; readonly state: string }
): Effect.fn.Return<Booted, SandboxError, Scope.Scope> {
  const { image } = shape
  const machine = yield* withOpen(
    [
      [files.ram, "r+"],
      [image.root, "r"],
      [image.scratch, "r"],
      [files.disk, "r+"],
      [files.state, "r"]
    ],
    (fds) => launch(shape, { kind: "extend" }, fds)
  )
  const vm = yield* join(isolationOf(shape), machine)
  yield* load(machine, Fd.extended).pipe(Effect.andThen(handoverToBuild(vm)), Effect.onError(machine.notStarted))
  return sealable(shape, vm, machine)
})

/** Loads a template's state from a descriptor and lets its guest run. */
const load = (machine: Machine.Machine, fd: number, steps?: Steps) => {
  const failed = (error: Machine.MachineFailure): SandboxError =>
    error.killed ? fail(new NotStarted({ problem: error.problem })) : bootFailed("restore", machine)(error)
  const begin = [{ execute: "qmp_capabilities" }, capabilities]
  const incoming = { execute: "migrate-incoming", arguments: { uri: `fd:${fd}` } }
  const loading =
    steps === undefined
      ? machine.commands(...begin, incoming)
      : Effect.mapError(machine.commands(...begin), failed).pipe(
          Effect.andThen(
            Effect.catchTag(steps.fill(machine.pid), "VmLost", (error) =>
              machine.failure.pipe(
                Effect.mapError(failed),
                Effect.timeoutOrElse({
                  duration: endSaidWithin,
                  orElse: () => Effect.fail(bootFailed("restore", machine)(error))
                })
              )
            )
          ),
          Effect.andThen(machine.commands(incoming))
        )
  return loading.pipe(
    Effect.andThen(machine.migrated),
    Effect.tap(() => Effect.sync(() => steps?.running())),
    Effect.andThen(machine.commands({ execute: "cont" })),
    Effect.mapError((error) => (error._tag === "MachineFailure" ? failed(error) : error)),
    bounded(restoreBound, "restore", machine)
  )
}

const seal = Effect.fn("Vm.seal")(function* (
  shape: Shape,
  vm: Vm,
  machine: Machine.Machine,
  state: string,
  socketDirectory: string
): Effect.fn.Return<void, SandboxError> {
  const failed = bootFailed("seal", machine)
  yield* Effect.gen(function* () {
    yield* Agent.call(vm.open, sealMethod, {})
    yield* saveState(machine, state, socketDirectory, shape.launcher.uid)
  }).pipe(Effect.scoped, Effect.mapError(failed), bounded(sealBound, "seal", machine))
})

/** Names of sockets in the run directory; removes what killed processes left there. */
export const socketIn = (directory: string): string => {
  sweep(directory)
  return path.join(directory, temporaryName("seal"))
}

/** Stops a machine whose memory is a file of its own and writes the rest of it, its devices' state, to another file. */
export const saveState = Effect.fnUntraced(function* (
  machine: Machine.Machine,
  state: string,
  socketDirectory: string,
  uid: number | null
): Effect.fn.Return<void, Machine.MachineFailure | VmLost, Scope.Scope> {
  // QEMU 7.2 saves to a socket or a program, and programs are denied to it: so a socket of ours writes the file.
  const socket = socketIn(socketDirectory)
  const received = yield* receiveFile(socket, state, uid)
  yield* machine.commands(
    { execute: "stop" },
    capabilities,
    { execute: "migrate-set-parameters", arguments: { "max-bandwidth": 1024 ** 4 } },
    { execute: "migrate", arguments: { uri: `unix:${socket}` } }
  )
  yield* machine.migrated
  yield* received.written
})

/** Listens on a socket of that name; `written` ends when one connection's bytes are in the file and on the disk. */
const receiveFile = Effect.fnUntraced(function* (
  socket: string,
  file: string,
  uid: number | null
): Effect.fn.Return<{ readonly written: Effect.Effect<void, VmLost> }, VmLost, Scope.Scope> {
  const server = yield* Effect.acquireRelease(
    Effect.sync(() => net.createServer()),
    (it) => Effect.sync(() => it.close())
  )
  const lost = (error: Error): Effect.Effect<never, VmLost> =>
    Effect.fail(new VmLost({ problem: `its state cannot be kept: ${error.message}`, violation: false }))
  const received = Effect.callback<void, VmLost>((resume) => {
    server.once("connection", (connection) => {
      const sink = fs.createWriteStream(file, { flush: true })
      pipeline(connection, sink, (error) => resume(error ? lost(error) : Effect.void))
    })
  })
  const fiber = yield* Effect.forkScoped(received, { startImmediately: true })
  yield* Effect.callback<void, VmLost>((resume) => {
    server.once("error", (error) => resume(lost(error)))
    server.listen(socket, () => {
      if (uid !== null) fs.chownSync(socket, uid, -1)
      resume(Effect.void)
    })
  })
  return { written: Fiber.join(fiber) }
})

/** Starts a clone from a template, up to the point where its guest runs; `handover` makes it somebody's. */
export const restore = Effect.fn("Vm.restore")(function* (
  shape: Shape,
  template: TemplateFiles
): Effect.fn.Return<Vm, SandboxError, Scope.Scope> {
  const { image, qemu } = shape
  const parts = yield* openParts(template)
  const files: ReadonlyArray<Opening> = [
    [template.ram, qemu.atLeast(8, 2) ? "r" : "r+"],
    [image.root, "r"],
    [image.scratch, "r"],
    parts.overlay,
    parts.disk,
    // Reading moves the place in the file, so QEMU has its own.
    [template.state, "r"]
  ]
  return yield* start({ shape, ...parts }, files, "restore")
}, Observe.timed(Telemetry.restoreDuration))

/** What else is done when a QEMU goes on with what was saved. */
export interface Steps {
  /**
   * Completes the memory of this process, on which the devices' state bears when it is loaded. `VmLost` means the process:
   * its end, where there is one, says more.
   */
  readonly fill: (pid: number) => Effect.Effect<void, SandboxError | VmLost>
  /** Its guest will run from now on. */
  readonly running: () => void
  /** See `guest/Channel`. */
  readonly firstStream: number
}

/** Starts a QEMU with these files, from descriptor 5 on, loads the state in the last of them and lets its guest run. */
export const start = Effect.fnUntraced(function* (
  kept: Kept,
  files: ReadonlyArray<Opening>,
  kind: "restore" | "wake",
  steps?: Steps
): Effect.fn.Return<Vm, SandboxError, Scope.Scope> {
  const { shape } = kept
  const machine = yield* withOpen(files, (fds) => launch(shape, { kind }, fds))
  const vm = yield* join(isolationOf(shape), machine, kept, steps?.firstStream)
  // It is of no use to anybody, however long the scope stays open.
  yield* load(machine, Fd.state, steps).pipe(Effect.onError(machine.notStarted))
  return vm
})

/** A VM over a machine that somebody else makes, and whose guest runs: what the test kit is made of. */
export const over = Effect.fn("Vm.restore")(function* (
  isolation: Isolation,
  start: (ended: (end: Machine.End) => void) => Effect.Effect<Machine.Machine, SandboxError, Scope.Scope>
): Effect.fn.Return<Vm, SandboxError, Scope.Scope> {
  return yield* join(isolation, yield* counted(start))
}, Observe.timed(Telemetry.restoreDuration))
