/**
 * Pool: clones that are ready before anybody asks, and the walk to a VM: a ready clone, else a place on the host and a
 * restore, which builds the template if there is none.
 *
 * A pooled clone has its place in `Capacity`, has entropy of its own, has run a line in every interpreter and is paused, so
 * that it costs memory and no CPU. It becomes somebody's at the claim: clock, identity, environment and limits are the
 * claimer's, and the kernel gets fresh entropy once more. Used VMs never come back.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { Capacity } from "./Capacity.ts"
import { decodeInput } from "./internal/decodeInput.ts"
import * as Observe from "./internal/Observe.ts"
import * as PoolActor from "./pool/Actor.ts"
import { warmUp } from "./pool/WarmUp.ts"
import * as Limits from "./Limits.ts"
import { type PackageError, type Packages, parsed } from "./Packages.ts"
import type { SandboxError } from "./SandboxError.ts"
import * as Telemetry from "./Telemetry.ts"
import { machineMemoryMiB, type ReservedClone, Template } from "./Template.ts"

const count = (minimum: number, maximum: number) =>
  Schema.Int.check(Schema.isBetween({ minimum, maximum }, { expected: `a whole number from ${minimum} to ${maximum}` }))

/**
 * What is kept ready; what is absent has its default.
 *
 * - `size`: clones to keep ready for each memory size, 0 to 1,000, default 0: no pool.
 * - `memoryMiB`: the memory limits (`Limits.memoryMiB`) to keep clones for, default only the default limit's 512. Limits that
 *   need the same machine share a pool.
 * - `maxParallelRestores`: clones made at once for each pool, 1 to 64, default 2.
 * - `maxAgeMs`: how long a clone may wait until it is replaced, in ms, at least 1,000, default 600,000 (ten minutes).
 *
 * @since 0.1.0
 * @category models
 */
export const PoolOptions = Schema.Struct({
  size: Schema.optionalKey(count(0, 1000)),
  memoryMiB: Schema.optionalKey(Schema.Array(Limits.Limits.fields.memoryMiB.schema)),
  maxParallelRestores: Schema.optionalKey(count(1, 64)),
  maxAgeMs: Schema.optionalKey(count(1000, Number.MAX_SAFE_INTEGER))
})
/**
 * @since 0.1.0
 * @category models
 */
export type PoolOptions = typeof PoolOptions.Type

/**
 * The options of `Pool.layer`.
 *
 * @since 0.1.0
 * @category references
 */
export const Settings = Context.Reference<PoolOptions>("exec-sandbox/Pool/Settings", { defaultValue: () => ({}) })

/**
 * A pool at this moment. `memoryMiB` is the memory of its machines, `ready` and `making` count clones, `waiting` claims.
 * `breaker` is `open` while nothing is made because it kept failing, `half-open` while one more is tried; `cause` is then
 * the last failure, `null` otherwise.
 *
 * @since 0.1.0
 * @category models
 */
export interface PoolStats {
  readonly memoryMiB: number
  readonly size: number
  readonly ready: number
  readonly making: number
  readonly waiting: number
  readonly breaker: "closed" | "open" | "half-open"
  readonly cause: string | null
}

/** Failures in a row after which no more clones are made for a while, and how long the first while is. */
const breakerAfter = 3
const breakerMs = 10_000
/**
 * How long after a claim no clone is begun, in ms: most first runs are over by then. A restore takes both cores of a small
 * host for longer than a warm run takes.
 */
const quietMs = 100

const missing = {
  noPool: { kind: "no-pool", reason: "there is no pool" },
  noPoolForSize: { kind: "no-pool-for-size", reason: "there is no pool for this memory size" },
  noPoolForPackages: { kind: "no-pool-for-packages", reason: "there is no pool for packages" }
}

const counted = (attributes: Readonly<Record<string, string>>): Effect.Effect<void> =>
  Metric.update(Metric.withAttributes(Telemetry.poolClaims, attributes), 1)

const refilled = (result: "ready" | "failed"): Effect.Effect<void> =>
  Metric.update(Metric.withAttributes(Telemetry.poolRefills, { result }), 1)

/**
 * Finds a VM by the fastest path there is.
 *
 * @since 0.1.0
 * @category services
 */
export class Pool extends Context.Service<
  Pool,
  {
    /**
     * A clone for this memory limit (MiB) that `handover` has made the caller's; it lives as long as the scope. A pooled
     * clone that does not take over is destroyed and a new one restored: nothing has run in it. `startPath` says which path
     * it was, and why not a faster one. With packages it is never pooled, and fails as `Template.clone` does.
     */
    readonly clone: <A>(
      memoryMiB: number,
      handover: (clone: ReservedClone) => Effect.Effect<A, SandboxError>,
      packages?: Packages
    ) => Effect.Effect<A, SandboxError | PackageError, Scope.Scope>
    /** Changes how many clones every pool keeps ready. */
    readonly resize: (size: number) => Effect.Effect<void, SandboxError>
    /** Every pool there is. */
    readonly stats: Effect.Effect<ReadonlyArray<PoolStats>>
  }
>()("exec-sandbox/Pool") {
  /** Pools as `Settings` says; the scope's end destroys all their clones. */
  static readonly layer: Layer.Layer<Pool, SandboxError, Template | Capacity> = Layer.effect(
    this,
    Effect.gen(function* () {
      const templates = yield* Template
      const capacity = yield* Capacity
      const given = yield* decodeInput(PoolOptions, "pool options")(yield* Settings)
      const { maxAgeMs = 600_000, maxParallelRestores = 2, memoryMiB = [Limits.defaults.memoryMiB], size = 0 } = given

      /** A restored clone in a place of its own, from which it goes when it is dead. */
      const restore = Effect.fnUntraced(function* (
        limitMiB: number,
        spare: boolean,
        started: Effect.Effect<void>,
        packages?: Packages
      ) {
        const place = yield* capacity.reserve({ memoryMiB: machineMemoryMiB(limitMiB) }, { spare })
        yield* started
        const clone = yield* templates.clone(limitMiB, packages)
        place.usedBy(clone.vm.pid)
        return { ...clone, place }
      })

      const pools = new Map<number, PoolActor.PoolActor<ReservedClone>>()
      if (size > 0) {
        for (const limitMiB of memoryMiB) {
          const machine = machineMemoryMiB(limitMiB)
          if (pools.has(machine)) continue
          const pool = yield* PoolActor.make({
            settings: { size, maxParallel: maxParallelRestores, maxAgeMs, quietMs, breakerAfter, breakerMs },
            create: (started) =>
              restore(limitMiB, true, started).pipe(
                Effect.tap(({ vm }) => warmUp(vm)),
                Effect.onExit((exit) => refilled(Exit.isSuccess(exit) ? "ready" : "failed")),
                // Nobody waits for it: it is part of no caller's work.
                Effect.withSpan("Pool.refill", { root: true, attributes: { "exec_sandbox.memory_mib": machine } })
              ),
            death: ({ vm }) => Effect.catch(vm.failure, (error) => Effect.succeed(error.problem))
          })
          pools.set(machine, pool)
          yield* capacity.onWaiting(pool.shed)
        }
      }

      /** A clone of the template as it is now; others are destroyed. */
      const claim = Effect.fn("Pool.claim")(function* (pool: PoolActor.PoolActor<ReservedClone>) {
        for (;;) {
          const answer = yield* pool.claim
          const stale = answer._tag === "Given" ? answer.clone.stale() : undefined
          if (answer._tag === "Missed" || stale === undefined) {
            const hit = answer._tag === "Given"
            yield* Observe.annotate(hit ? { hit } : { hit, miss: answer.kind })
            return answer
          }
          yield* answer.discard
          yield* counted({ result: "miss", reason: "stale" })
        }
      })

      const clone = Effect.fn("Pool.clone")(function* <A>(
        limitMiB: number,
        handover: (clone: ReservedClone) => Effect.Effect<A, SandboxError>,
        packages: Packages = {}
      ): Effect.fn.Return<A, SandboxError | PackageError, Scope.Scope> {
        yield* Observe.annotate({ memory_mib: machineMemoryMiB(limitMiB) })
        const plain = parsed(packages).length === 0
        const pool = plain ? pools.get(machineMemoryMiB(limitMiB)) : undefined
        let miss = pools.size === 0 ? missing.noPool : plain ? missing.noPoolForSize : missing.noPoolForPackages
        if (pool !== undefined) {
          const answer = yield* claim(pool)
          if (answer._tag === "Given") {
            const { clone } = answer
            // Its HELLO is there when it runs on: nobody waits for QEMU to say that it does.
            yield* Effect.forkChild(Effect.ignore(clone.vm.resume), { startImmediately: true })
            const took = yield* Effect.result(handover({ ...clone, startPath: { kind: "pool", missed: [] } }))
            if (Result.isSuccess(took)) {
              yield* counted({ result: "hit" })
              yield* Observe.annotate({ start_path: "pool" })
              return took.success
            }
            yield* answer.discard
            miss = { kind: "not-taken-over", reason: `its clone did not take over: ${took.failure.message}` }
          } else {
            miss = answer
          }
        }
        const { kind, reason } = miss
        yield* counted({ result: "miss", reason: kind })
        const restored = yield* restore(limitMiB, false, Effect.void, packages)
        const missed = restored.startPath.missed.map((it) => (it.kind === "pool" ? { ...it, reason } : it))
        const startPath = { ...restored.startPath, missed }
        yield* Observe.annotate({ start_path: startPath.kind, missed: missed.map((it) => `${it.kind}: ${it.reason}`) })
        return yield* handover({ ...restored, startPath })
      })

      return {
        clone,
        resize: Effect.fnUntraced(function* (size) {
          const decoded = yield* decodeInput(PoolOptions, "pool options")({ size })
          for (const pool of pools.values()) pool.resize(decoded.size ?? 0)
        }),
        stats: Effect.forEach(pools, ([memoryMiB, pool]) =>
          Effect.map(pool.state, ({ breaker, state }) => ({
            memoryMiB,
            size: state.settings.size,
            ready: state.ready.length,
            making: state.making.length,
            waiting: state.waiting.length,
            breaker,
            cause: breaker === "closed" ? null : state.cause
          }))
        )
      }
    })
  )
}
