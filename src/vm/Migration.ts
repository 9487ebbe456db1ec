/** Loads a machine's state into QEMU and saves it from QEMU, which both calls of QEMU's name migration. */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import * as fs from "node:fs"
import * as net from "node:net"
import * as path from "node:path"
import { pipeline } from "node:stream"
import * as Agent from "../guest/Agent.ts"
import { seal as sealMethod } from "../guest/Methods.ts"
import { sweep, temporaryName } from "../internal/Temporary.ts"
import type * as Machine from "../qemu/Machine.ts"
import { type BootFailed, fail, NotStarted, type SandboxError } from "../SandboxError.ts"
import { type Shape, type Vm, VmLost } from "../Vm.ts"
import { bootFailed } from "./Handover.ts"
import { exitKnownWithin } from "./Launch.ts"

/** RAM is a separate file and not part of the stream; the end of a migration is reported by an event. */
export const capabilities = {
  execute: "migrate-set-capabilities",
  arguments: {
    capabilities: ["events", "x-ignore-shared"].map((capability) => ({ capability, state: true }))
  }
}

/** How long loading a template's state may take. */
export const restoreBound = "30 seconds"
/** How long the guest may take to become idle, and QEMU to write the state, when a template is sealed. */
const sealBound = "60 seconds"

/** Limits how long a stage of a start may take. */
export const bounded =
  (duration: string, stage: BootFailed["stage"], machine: Machine.Machine) =>
  <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E | SandboxError, R> =>
    Effect.timeoutOrElse(effect, {
      duration: duration as `${number} seconds`,
      orElse: () => Effect.fail(bootFailed(stage, machine)(new Error(`not done after ${duration}`)))
    })

/** What else is done when a QEMU continues a parked machine. */
export interface Steps {
  /**
   * Fills in the memory of this process, before the devices' state is loaded, which depends on it. `VmLost` means that the
   * process could not be written; if it has ended, its exit is reported instead.
   */
  readonly fill: (pid: number) => Effect.Effect<void, SandboxError | VmLost>
  /** Called when the state is loaded, just before the guest runs. */
  readonly running: () => void
  /** The number of the channel's first stream; see `guest/Channel`. */
  readonly firstStream: number
}

/** Loads a machine's state from a descriptor and continues its guest. */
export const load = (machine: Machine.Machine, fd: number, steps?: Steps) => {
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
                  duration: exitKnownWithin,
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

/** Waits until the agent is idle, then stops the machine and saves its state. */
export const seal = Effect.fn("Vm.seal")(function* (
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

/** A new name for a socket in the run directory. Also removes what killed processes left there. */
export const socketIn = (directory: string): string => {
  sweep(directory)
  return path.join(directory, temporaryName("seal"))
}

/** Stops a machine whose memory is a file, and writes its devices' state to another file. */
export const saveState = Effect.fnUntraced(function* (
  machine: Machine.Machine,
  state: string,
  socketDirectory: string,
  uid: number | null
): Effect.fn.Return<void, Machine.MachineFailure | VmLost, Scope.Scope> {
  // QEMU 7.2 can save to a socket or to a program, and it may not start programs; so it saves to a socket of ours.
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

const lost = (error: Error): Effect.Effect<never, VmLost> =>
  Effect.fail(new VmLost({ problem: `its state cannot be saved: ${error.message}`, violation: false }))

/** Listens on a socket; `written` completes when all bytes of one connection are in the file and on the disk. */
const receiveFile = Effect.fnUntraced(function* (
  socket: string,
  file: string,
  uid: number | null
): Effect.fn.Return<{ readonly written: Effect.Effect<void, VmLost> }, VmLost, Scope.Scope> {
  const server = yield* Effect.acquireRelease(
    Effect.sync(() => net.createServer()),
    (it) => Effect.sync(() => it.close())
  )
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
