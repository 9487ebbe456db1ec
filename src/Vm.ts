/**
 * VM: one QEMU process with its monitor and its channel, as a scoped resource. A VM is either booted, to be sealed as a
 * template, or restored from one; closing its scope kills QEMU and waits until it is dead. `vm/Start` starts them.
 *
 * QEMU gets every file as an inherited descriptor. The disk of a clone is unlinked before QEMU starts, so a VM leaves
 * nothing in the file system however it ends.
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
export type Remains = Pick<Parts, "shape" | "overlay" | "disk" | "ram" | "state">

/** A request to a VM's agent that is under way. */
export type VmStream<M extends Method> = Agent.Stream<M, VmLost>

/** A booted machine with warm interpreters, which can be sealed. */
export interface Booted extends Vm {
  /** Has the agent settle, stops the machine and writes its device state to `state`. The machine is of no use afterwards. */
  readonly seal: (state: string, socketDirectory: string) => Effect.Effect<void, SandboxError>
}
