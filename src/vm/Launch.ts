/** Starts QEMU, and joins its process and its channel into one VM. */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Agent from "../guest/Agent.ts"
import * as Channel from "../guest/Channel.ts"
import { type GuestHello, portName } from "../guest/Hello.ts"
import * as Observe from "../internal/Observe.ts"
import { commandLine, type Input } from "../qemu/CommandLine.ts"
import * as Machine from "../qemu/Machine.ts"
import type { Isolation } from "../Receipt.ts"
import * as Telemetry from "../Telemetry.ts"
import * as Counts from "../telemetry/Counts.ts"
import { type Remains, type Shape, type Vm, VmLost } from "../Vm.ts"
import { bootFailed, handover } from "./Handover.ts"

export const isolationOf = (shape: Shape): Isolation => ({
  accelerator: shape.qemu.accelerator,
  boundary: shape.qemu.accelerator === "tcg" ? "emulated" : "hardware",
  seccomp: shape.qemu.seccomp,
  user: shape.launcher.user,
  parentDeath: shape.launcher.parentDeath,
  cgroup: null
})

/** A machine whose death is counted with its cause. */
export interface Launched extends Machine.Machine {
  /** Kills the machine; the first cause given is the one that is counted. */
  readonly killFor: (cause: Counts.DeathCause) => Effect.Effect<void>
  /** Kills the machine because its start has failed or was interrupted. */
  readonly notStarted: <E>(cause: Cause.Cause<E>) => Effect.Effect<void>
}

/** Starts a machine and counts it in the metrics; `start` calls `ended` once, when the process has ended. */
export const counted = Effect.fnUntraced(function* <E>(
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

/** Starts QEMU in this shape; it inherits `files` as its descriptors from 5 on. */
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

/** After a connection is lost, how long to wait for the end of its process, which explains the loss better. */
export const exitKnownWithin = "200 millis"

/** Joins machine and channel into one VM. */
export const join = Effect.fnUntraced(function* (
  isolation: Isolation,
  machine: Launched,
  remains?: Remains,
  firstStream?: number
): Effect.fn.Return<Vm & { readonly greeting: Effect.Effect<GuestHello, VmLost> }, never, Scope.Scope> {
  const channel = yield* Channel.make(machine.channel, firstStream)
  // QEMU's exit causes the loss of the connection and explains it better, so it is reported where both happen.
  const explain = (error: Channel.ChannelFailure): Effect.Effect<never, VmLost> =>
    error._tag === "ChannelViolation"
      ? Effect.fail(toLost(error))
      : machine.failure.pipe(
          Effect.timeoutOrElse({ duration: exitKnownWithin, orElse: () => Effect.fail(error) }),
          Effect.mapError(toLost)
        )
  const failure = Effect.raceFirst(channel.failure, machine.failure).pipe(
    Effect.catch((error) => (error._tag === "MachineFailure" ? Effect.fail(toLost(error)) : explain(error)))
  )
  // A guest that breaks the protocol or stops answering is killed.
  yield* channel.failure.pipe(
    Effect.catch((error) =>
      error._tag === "ChannelViolation"
        ? machine.killFor("violation")
        : // A QEMU that ends by itself closes the connection first; its exit code says why it ended.
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
    parts: remains === undefined ? undefined : { ...remains, machine, channel, end: machine.killFor("parked") },
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
