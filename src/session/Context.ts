/** What all modules that serve one session share. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { randomUUID } from "node:crypto"
import type { Egress } from "../egress/Egress.ts"
import type { Limits } from "../Limits.ts"
import * as PortLedger from "../ports/Ledger.ts"
import type { StartPath } from "../Receipt.ts"
import type { Publisher } from "../Receipts.ts"
import type { Vm } from "../Vm.ts"
import * as Deadlines from "./Deadlines.ts"
import type { Presence } from "./Parking.ts"

/** Where a session's VM came from, for its receipts. `acquireMs` and `handoverMs` are in ms. */
export interface Origin {
  readonly image: string
  /** The template's key; `null` when the VM was started from a snapshot. */
  readonly template: string | null
  readonly startPath: StartPath
  readonly acquireMs: number
  readonly handoverMs: number
  readonly languages: ReadonlyArray<string>
}

export interface Context {
  readonly id: string
  readonly vm: Vm
  readonly origin: Origin
  readonly limits: Required<Limits>
  readonly receipts: Publisher
  readonly ports: PortLedger.PortLedger
  readonly egress: Egress
  readonly deadlines: Deadlines.Deadlines
  /** Limits how many commands run at one time: too many would exceed their time limits only because they share the CPUs. */
  readonly running: Semaphore.Semaphore
  /** Counts uses, and waits for a parked VM to wake. */
  readonly presence: Presence
  /** How many attempts there have been so far. */
  sequence: number
  /** Why the session is closed, once it is. */
  closed: string | undefined
}

/** How many commands run at one time; more wait. */
const maxRunning = 128

export const make = (
  given: Pick<Context, "vm" | "origin" | "limits" | "receipts" | "egress" | "presence">
): Effect.Effect<Context, never, Scope.Scope> =>
  Effect.map(Deadlines.make, (deadlines) => ({
    ...given,
    id: newId("ses"),
    ports: PortLedger.make(),
    deadlines,
    running: Semaphore.makeUnsafe(maxRunning),
    sequence: 0,
    closed: undefined
  }))

/** A new id for a session or an execution: the prefix and 16 hex digits. */
export const newId = (kind: "ses" | "exe"): string => `${kind}-${randomUUID().replaceAll("-", "").slice(0, 16)}`
