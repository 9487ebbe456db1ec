/** The fake VMs as a service, for tests to look at and to break. */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type { Task } from "./Script.ts"

/**
 * The fake VMs, for tests to look at and to break.
 *
 * @since 0.1.0
 * @category services
 */
export class Machines extends Context.Service<
  Machines,
  {
    /** The numbers of those that live. */
    readonly live: Effect.Effect<ReadonlyArray<number>>
    /** How many have been started. */
    readonly started: Effect.Effect<number>
    /** Kills one from outside, as a signal would; nothing happens to one that is dead. */
    readonly kill: (vm: number) => Effect.Effect<void>
    /** Makes the template anew, so that clones made before are clones of it no longer. */
    readonly remakeTemplate: Effect.Effect<void>
    /** The first 10,000 tasks that the guests were asked to run, oldest first. */
    readonly tasks: Effect.Effect<ReadonlyArray<Task>>
  }
>()("exec-sandbox/Testing/Machines") {}
