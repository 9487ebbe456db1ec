/** The fake VMs as a service: tests inspect and kill them. */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { Task } from "./Script.ts"

/**
 * The fake VMs: a test can list, count and kill them. VMs are numbered from 1 in the order in which they start.
 *
 * @since 0.1.0
 * @category services
 */
export class Machines extends Context.Service<
  Machines,
  {
    /** The numbers of the VMs that are alive. */
    readonly live: Effect.Effect<ReadonlyArray<number>>
    /** How many VMs have been started so far. */
    readonly started: Effect.Effect<number>
    /** Kills a VM from outside, as a signal would; does nothing to a dead one. */
    readonly kill: (vm: number) => Effect.Effect<void>
    /** Builds the template again, so that clones made before are stale. */
    readonly remakeTemplate: Effect.Effect<void>
    /** The first 10,000 tasks that the guests were asked to run, oldest first. */
    readonly tasks: Effect.Effect<ReadonlyArray<Task>>
  }
>()("exec-sandbox/Testing/Machines") {}
