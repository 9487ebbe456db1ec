/**
 * VM: one QEMU process with its monitor and its channel, as a scoped resource. A VM is either booted, to be sealed as a
 * template, or restored from one; closing its scope kills QEMU and waits until it is dead. `vm/Start` starts VMs.
 *
 * QEMU gets every file as an inherited descriptor. A clone's disk is unlinked before QEMU starts, so a VM leaves nothing in
 * the file system, however it ends.
 */
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as Agent from "./guest/Agent.ts"
import type * as Channel from "./guest/Channel.ts"
import type { GuestHello, Hello, NetworkGrant } from "./guest/Hello.ts"
import type { Method } from "./guest/Methods.ts"
import type { Host, Qemu } from "./Host.ts"
import type { Limits } from "./Limits.ts"
import type * as Machine from "./qemu/Machine.ts"
import type { Isolation } from "./Receipt.ts"
import type { SandboxError } from "./SandboxError.ts"

/** The VM is lost: its process ended, or its guest stopped answering or broke the protocol. */
export class VmLost extends Schema.TaggedError<VmLost>()("VmLost", {
  problem: Schema.String,
  /** The guest broke the protocol. */
  violation: Schema.Boolean
}) {
  override get message(): string {
    return this.problem
  }
}

/** The image's files that a VM uses; absolute paths. */
export interface ImageFiles {
  readonly arch: "amd64" | "arm64"
  readonly kernel: string
  readonly initrd: string
  readonly root: string
  readonly scratch: string
}

/** What is needed to start a VM: which QEMU, how it is launched, which image and how much memory (MiB). */
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
  /** An empty overlay. Each clone gets a copy of it as its disk. */
  readonly overlay: string
}

/** What distinguishes a clone from every other one, in addition to its entropy. */
export interface Identity {
  readonly hostname: string
  readonly env: Readonly<Record<string, string>>
  readonly limits: Required<Limits>
  readonly network: NetworkGrant | null
}

/** A running machine. */
export interface Vm {
  readonly pid: number
  readonly isolation: Isolation
  /** Sends a request to the agent; see `guest/Agent`. */
  readonly open: Agent.Open<VmLost>
  /** Sends the guest its clock, entropy, identity and settings, and fails unless it acknowledges each of them. */
  readonly handover: (identity: Identity, purpose?: Hello["purpose"]) => Effect.Effect<GuestHello, SandboxError>
  /** Pauses the machine: until `resume` it uses no CPU, and its guest notices nothing. */
  readonly pause: Effect.Effect<void, VmLost>
  /** Continues a paused machine. */
  readonly resume: Effect.Effect<void, VmLost>
  /** Waits for output of executions that have ended; see `guest/LateOutput`. Fails with `Cause.Done` when the VM is gone. */
  readonly lateOutput: Channel.Channel["lateOutput"]
  /** Sets the function that accepts the connections that the guest asks for; see `guest/Connections`. */
  readonly accept: Channel.Channel["accept"]
  /** How many of these connections are open. */
  readonly connected: Channel.Channel["connected"]
  /** Pings the guest. Completes if no frame comes from it within 1.5 s; otherwise never completes. */
  readonly silence: Effect.Effect<void>
  /** Fails when the VM is lost; never succeeds. */
  readonly failure: Effect.Effect<never, VmLost>
  /** Kills the VM at once; completes when the process's death is confirmed. */
  readonly destroy: Effect.Effect<void>
  /** Set only for a restored clone. */
  readonly parts: Parts | undefined
}

/** The parts of a running clone, from which it can be copied (`vm/Capture`) or parked (`vm/Park`). */
export interface Parts {
  readonly shape: Shape
  readonly machine: Machine.Machine
  readonly channel: Channel.Channel
  /**
   * Descriptors, open for reading as long as the VM lives: the clone's own disk, the disk below it, and the memory and state
   * files that it was restored from.
   */
  readonly overlay: number
  readonly disk: number
  readonly ram: number
  readonly state: number
  /** Kills the process of a machine that has been saved. */
  readonly end: Effect.Effect<void>
}

/** The parts that remain when the process has ended. */
export type Remains = Pick<Parts, "shape" | "overlay" | "disk" | "ram" | "state">

/** A request in progress to a VM's agent. */
export type VmStream<M extends Method> = Agent.Stream<M, VmLost>

/** A booted machine with warm interpreters, which can be sealed as a template. */
export interface Booted extends Vm {
  /**
   * Waits until the agent is idle, stops the machine and writes its device state to the file `state`. The machine cannot be
   * used afterwards.
   */
  readonly seal: (state: string, socketDirectory: string) => Effect.Effect<void, SandboxError>
}
