/**
 * Pool: keeps clones ready before a caller needs one, and obtains a VM by the fastest path: a ready clone, else reserved
 * capacity and a restore, which builds the template if there is none.
 *
 * A pooled clone has its capacity reserved, has its own entropy, has run a line in every interpreter and is paused, so it costs
 * memory and no CPU. When it is claimed, it gets the claimer's clock, identity, environment and limits, and its kernel gets
 * fresh entropy again. Used VMs never return to the pool.
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
 * Which clones are kept ready. Absent options have their defaults.
 *
 * - `size`: clones to keep ready for each memory size, 0 to 1,000, default 0: no pool.
 * - `memoryMiB`: the memory limits (`Limits.memoryMiB`) to keep clones for, default only the default limit, 512. Limits that
 *   need the same machine share a pool.
 * - `maxParallelRestores`: clones restored at the same time for each pool, 1 to 64, default 2.
 * - `maxAgeMs`: how long a clone may wait before it is replaced, in ms, at least 1,000, default 600,000 (ten minutes).
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
 * The type of `PoolOptions`.
 *
 * @since 0.1.0
 * @category models
 */
export type PoolOptions = typeof PoolOptions.Type

/**
 * The options of `Pool.layer`, default none: no pool.
 *
 * @since 0.1.0
 * @category references
 */
export const Settings = Context.Reference<PoolOptions>("exec-sandbox/Pool/Settings", { defaultValue: () => ({}) })

/**
 * The state of a pool. `memoryMiB` is the memory of its machines, `size` how many clones it keeps ready. `ready` and `making`
 * count clones, `waiting` counts claims. `breaker` is `open` while restores are suspended after repeated failures, `half-open`
 * while one more is tried; `cause` is then the last failure, otherwise `null`.
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

/** Failures in a row after which restores are suspended, and the length of the first suspension in ms. */
const breakerAfter = 3
const breakerMs = 10_000
/**
 * How long after a claim no restore is started, in ms: most first runs have ended by then. A restore keeps both cores of a
 * small host busy for longer than a warm run takes.
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
 * Obtains a VM by the fastest path available.
 *
 * @since 0.1.0
 * @category services
 */
export class Pool extends Context.Service<
  Pool,
  {
    /**
     * Obtains a clone for this memory limit (MiB), runs `handover` with it and returns its value; the clone lives as long as the
     * scope. If the handover to a pooled clone fails, that clone is destroyed and a new one restored, as no code of the caller
     * has run in it. The clone's `startPath` says how it was obtained, and why each faster path was missed. A clone with
     * packages is never pooled. Fails as `Capacity.reserve`, `Template.clone` and `handover` do.
     */
    readonly clone: <A>(
      memoryMiB: number,
      handover: (clone: ReservedClone) => Effect.Effect<A, SandboxError>,
      packages?: Packages
    ) => Effect.Effect<A, SandboxError | PackageError, Scope.Scope>
    /** Changes how many clones every pool keeps ready, 0 to 1,000; fails with `InvalidInput` for another number. */
    readonly resize: (size: number) => Effect.Effect<void, SandboxError>
    /** The state of every pool. */
    readonly stats: Effect.Effect<ReadonlyArray<PoolStats>>
  }
>()("exec-sandbox/Pool") {
  /** Pools with the options in `Settings`. When the scope closes, all their clones are destroyed. */
  static readonly layer: Layer.Layer<Pool, SandboxError, Template | Capacity> = Layer.effect(
    this,
    Effect.gen(function* () {
      const templates = yield* Template
      const capacity = yield* Capacity
      const given = yield* decodeInput(PoolOptions, "pool options")(yield* Settings)
      const { maxAgeMs = 600_000, maxParallelRestores = 2, memoryMiB = [Limits.defaults.memoryMiB], size = 0 } = given

      /** Reserves capacity and restores a clone. The capacity is released when the clone is dead. */
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
                // A refill is not part of any caller's work, so its span has no parent.
                Effect.withSpan("Pool.refill", { root: true, attributes: { "exec_sandbox.memory_mib": machine } })
              ),
            death: ({ vm }) => Effect.catch(vm.failure, (error) => Effect.succeed(error.problem))
          })
          pools.set(machine, pool)
          yield* capacity.onWaiting(pool.shed)
        }
      }

      /** Claims a clone of the current template; clones of an older one are destroyed. */
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
            // HELLO is sent meanwhile and read when the guest runs, so nothing has to wait for QEMU's answer.
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
