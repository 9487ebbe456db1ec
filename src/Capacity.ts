/**
 * Capacity: limits how many VMs run at the same time, by the host's memory and CPU.
 *
 * Every VM reserves capacity before it starts, and releases it when its death is confirmed. A VM is admitted by the memory that
 * is *really free* at the time, less what VMs of this process have reserved and not touched yet; so several processes on one
 * host, which do not know each other, do not overcommit it together. A request that does not fit waits in line, for a bounded
 * time.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import * as Admission from "./capacity/Admission.ts"
import { type HostResources, privateMemoryMiB, readHostResources } from "./capacity/HostResources.ts"
import * as Observe from "./internal/Observe.ts"
import { CapacityExceeded, fail, type SandboxError } from "./SandboxError.ts"
import * as Telemetry from "./Telemetry.ts"

/**
 * How much of the host's capacity VMs may reserve.
 *
 * - `memoryOvercommit`: a VM is charged its memory divided by this. Default 4: a VM of 768 MiB is charged 192 MiB. Measured
 *   under TCG, its QEMU holds 22 to 42 MiB of its own after a restore and 95 to 105 MiB when every interpreter has run
 *   (most of it the emulator's translated code); the rest is for memory that tasks touch, and is counted as soon as they do. 1
 *   means no overcommitment.
 * - `cpuOvercommit`: VM slots per core, default 8: a task has at least an eighth of a core when all slots are busy. Most
 *   sessions are idle most of the time.
 * - `keepFreeMiB`: memory of the host that is never reserved, in MiB, default 256.
 * - `maxWaitMs`: how long a caller waits for its turn, in ms, default 60,000.
 * - `maxMemoryPressure`: no VM is admitted while the kernel reports (PSI, `full avg10`) that all tasks waited for memory for
 *   more than this percentage of the time; default 10. Ignored on kernels without PSI.
 *
 * @since 0.1.0
 * @category models
 */
export interface CapacityOptions {
  readonly memoryOvercommit: number
  readonly cpuOvercommit: number
  readonly keepFreeMiB: number
  readonly maxWaitMs: number
  readonly maxMemoryPressure: number
}

/**
 * The defaults of `Settings`.
 *
 * @since 0.1.0
 * @category constants
 */
export const defaults: CapacityOptions = {
  memoryOvercommit: 4,
  cpuOvercommit: 8,
  keepFreeMiB: 256,
  maxWaitMs: 60_000,
  maxMemoryPressure: 10
}

/**
 * The options of `Capacity.layer`; absent ones are those of `defaults`.
 *
 * @since 0.1.0
 * @category references
 */
export const Settings = Context.Reference<Partial<CapacityOptions>>("exec-sandbox/Capacity/Settings", {
  defaultValue: () => ({})
})

/**
 * What a VM needs: the memory of the machine in MiB, and how many CPUs (default 1).
 *
 * @since 0.1.0
 * @category models
 */
export interface Need {
  readonly memoryMiB: number
  readonly cpus?: number
}

/**
 * Capacity for one VM, reserved until the scope that it was made in has closed.
 *
 * @since 0.1.0
 * @category models
 */
export interface Reservation {
  /** Sets the id of the process that uses the capacity, so that memory which it has touched is not counted twice. */
  readonly usedBy: (pid: number) => void
  /** Releases the capacity now; a second call does nothing. */
  readonly giveBack: Effect.Effect<void>
}

/**
 * What is reserved (`held`; memory in MiB as charged), and how many requests wait: `waiting` are callers, and `spare` are the
 * refills of pools, which wait behind all callers.
 *
 * @since 0.1.0
 * @category models
 */
export interface CapacityStats {
  readonly held: { readonly vms: number; readonly memoryMiB: number; readonly cpus: number }
  readonly waiting: number
  readonly spare: number
}

/** How often the first request in line checks whether the host has room now. */
const pollEvery = "250 millis"

/**
 * Reads the state of the host; replaced in tests.
 *
 * @internal
 */
export interface Probe {
  readonly host: () => HostResources
  readonly privateMemoryMiB: (pid: number) => number
}

const probe: Probe = { host: readHostResources, privateMemoryMiB }

/**
 * Admits VMs.
 *
 * @since 0.1.0
 * @category services
 */
export class Capacity extends Context.Service<
  Capacity,
  {
    /**
     * Reserves capacity for one VM until the scope closes; open that scope before the VM's, so that it closes when the VM is
     * dead. Waits in line, and fails with `CapacityExceeded` after `maxWaitMs`, or at once if the host can never provide it.
     * With `spare` it waits behind all callers and without a bound.
     */
    readonly reserve: (
      need: Need,
      options?: { readonly spare?: boolean }
    ) => Effect.Effect<Reservation, SandboxError, Scope.Scope>
    /** What is reserved, and how many requests wait. */
    readonly stats: Effect.Effect<CapacityStats>
    /** Calls `listener` whenever a caller has to wait, until the scope closes, so that an owner of idle VMs can end one of them. */
    readonly onWaiting: (listener: () => void) => Effect.Effect<void, never, Scope.Scope>
  }
>()("exec-sandbox/Capacity") {
  /** For this host, with the options in `Settings`. */
  static readonly layer: Layer.Layer<Capacity> = Layer.effect(
    this,
    Effect.map(Settings, (settings) => make({ ...defaults, ...settings }, probe))
  )
}

/**
 * Makes the service from functions that read the host's state.
 *
 * @internal
 */
export const make = (options: CapacityOptions, probe: Probe): Capacity["Service"] => {
  let state = Admission.empty
  let nextId = 1
  const users = new Map<number, number>()
  const admitted = new Map<number, Deferred.Deferred<void>>()
  const listeners = new Set<() => void>()

  const slots = (host: HostResources): number => Math.max(1, Math.floor(host.cores * options.cpuOvercommit))

  /** Memory that VMs of this process have reserved and not touched yet. */
  const untouched = (): number => {
    let total = 0
    for (const [id, { memoryMiB }] of state.held) {
      const pid = users.get(id)
      total += pid === undefined ? memoryMiB : Math.max(0, memoryMiB - probe.privateMemoryMiB(pid))
    }
    return total
  }

  /** The memory that may be reserved now. Processes are read only if they change the answer. */
  const freeMemory = (host: HostResources, wanted: number): number => {
    if ((host.memoryPressure ?? 0) > options.maxMemoryPressure) return 0
    const free = host.freeMemoryMiB - options.keepFreeMiB
    const atLeast = free - Admission.sum(state.held.values()).memoryMiB
    return atLeast >= wanted ? atLeast : Math.max(0, free - untouched())
  }

  /** Admits all requests that fit now. */
  const advance = (): void => {
    if (Admission.head(state) === undefined) return
    const host = probe.host()
    const wanted = Admission.sum([...state.callers, ...state.spares]).memoryMiB
    const [next, ids] = Admission.admit(state, { memoryMiB: freeMemory(host, wanted), cpus: slots(host) })
    state = next
    for (const id of ids) {
      const turn = admitted.get(id)
      if (turn !== undefined) Deferred.doneUnsafe(turn, Effect.void)
    }
    if (state.callers.length > 0) for (const listener of listeners) listener()
  }

  const leave = (id: number): void => {
    state = Admission.leave(state, id)
    admitted.delete(id)
    users.delete(id)
    advance()
  }

  const exceeded = (id: number, asked: Admission.Charge, waitedMs: number): SandboxError => {
    const host = probe.host()
    return fail(
      new CapacityExceeded({
        asked,
        free: {
          memoryMiB: freeMemory(host, Number.POSITIVE_INFINITY),
          cpus: slots(host) - Admission.sum(state.held.values()).cpus
        },
        total: { memoryMiB: Math.max(0, host.totalMemoryMiB - options.keepFreeMiB), cpus: slots(host) },
        waiting: state.callers.filter((it) => it.id !== id).length,
        waitedMs
      })
    )
  }

  const reserve: Capacity["Service"]["reserve"] = Effect.fn("Capacity.reserve")(function* (
    { cpus = 1, memoryMiB },
    { spare = false } = {}
  ) {
    const id = nextId++
    const charge = { memoryMiB: Math.ceil(memoryMiB / options.memoryOvercommit), cpus }
    const host = probe.host()
    if (charge.memoryMiB > host.totalMemoryMiB - options.keepFreeMiB || cpus > slots(host)) {
      yield* Metric.update(Telemetry.capacityRefused, 1)
      return yield* exceeded(id, charge, 0)
    }
    yield* Observe.annotate({ memory_mib: memoryMiB, spare })
    const started = yield* Clock.currentTimeMillis
    const turn = yield* Deferred.make<void>()
    // Only the first in line checks again; the others are woken when one before them leaves.
    const poll = Effect.sync(() => {
      if (Admission.head(state)?.id === id) advance()
    }).pipe(Effect.repeat(Schedule.spaced(pollEvery)), Effect.andThen(Effect.never))
    const wait = Effect.raceFirst(Deferred.await(turn), poll)
    const bounded = Effect.timeoutOrElse(wait, {
      duration: options.maxWaitMs,
      orElse: () =>
        Effect.gen(function* () {
          yield* Metric.update(Telemetry.capacityRefused, 1)
          return yield* exceeded(id, charge, (yield* Clock.currentTimeMillis) - started)
        })
    })
    yield* Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        state = Admission.ask(state, { id, ...charge, spare })
        admitted.set(id, turn)
        advance()
        if (!state.held.has(id)) {
          yield* Observe.annotate({ waited: true })
          yield* restore(spare ? wait : Observe.during(Telemetry.capacityWaiting)(bounded)).pipe(
            Effect.onError(() => Effect.sync(() => leave(id)))
          )
        }
        yield* Effect.addFinalizer(() => Effect.sync(() => leave(id)))
      })
    )
    return {
      giveBack: Effect.sync(() => leave(id)),
      usedBy: (pid) => {
        if (state.held.has(id)) users.set(id, pid)
      }
    }
  })

  return {
    reserve,
    stats: Effect.sync(() => ({
      held: { vms: state.held.size, ...Admission.sum(state.held.values()) },
      waiting: state.callers.length,
      spare: state.spares.length
    })),
    onWaiting: (listener) =>
      Effect.acquireRelease(
        Effect.sync(() => void listeners.add(listener)),
        () => Effect.sync(() => void listeners.delete(listener))
      )
  }
}
