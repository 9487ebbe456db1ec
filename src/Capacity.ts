/**
 * Capacity: the admission of VMs against the host's memory and CPU.
 *
 * Every VM reserves before it starts, and gives back when its death is confirmed. Memory is accounted by what is *really
 * free* at the moment of admission, less what VMs of this process have been promised and not touched yet; so several
 * processes on one host, which know nothing of each other, do not overcommit it together. Whoever does not fit waits in
 * line, for a bounded time.
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
 * How much is promised of what there is.
 *
 * - `memoryOvercommit`: a VM is charged its memory divided by this. Default 4: a VM of 768 MiB is charged 192 MiB. Measured
 *   under TCG, its QEMU holds 22 to 42 MiB of its own after a restore and 95 to 105 MiB when every interpreter has run
 *   (most of it the emulator's translations); the rest is for what tasks touch, and is counted as soon as they do. 1
 *   promises nothing twice.
 * - `cpuOvercommit`: VM slots per core, default 8: a task has at least an eighth of a core when all of them are busy. Most
 *   sessions are idle most of the time.
 * - `keepFreeMiB`: memory of the host that is never promised, default 256 MiB.
 * - `maxWaitMs`: how long a caller waits for its turn, in ms, default 60,000.
 * - `maxMemoryPressure`: no VM is admitted while the kernel reports (PSI, `full avg10`) that for more than this percentage
 *   of time everything waited for memory; default 10. Kernels without PSI do without.
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
 * The values in force where `Settings` says nothing else.
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
 * The options of `Capacity.layer`.
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

/** A place on the host, held until the scope it was made in has closed. */
export interface Reservation {
  /** Says which process uses it, so that memory it has touched is not counted twice. */
  readonly usedBy: (pid: number) => void
  /** Gives it back now; nothing happens the second time. */
  readonly giveBack: Effect.Effect<void>
}

/**
 * What is held and who waits. Memory in MiB as charged; `spare` are the refills of pools, which wait behind all callers.
 *
 * @since 0.1.0
 * @category models
 */
export interface CapacityStats {
  readonly held: { readonly vms: number; readonly memoryMiB: number; readonly cpus: number }
  readonly waiting: number
  readonly spare: number
}

/** How often the one at the head looks whether the host has got room by itself. */
const lookEvery = "250 millis"

/** How the host is looked at; replaced in tests. */
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
     * A place for one VM, given back when the scope closes: open it before the VM's, and it is given back when the VM is
     * dead. Waits in line, and fails with `CapacityExceeded` after the bounded wait, or at once when the host could never
     * give it. With `spare` it waits behind all callers and without a bound.
     */
    readonly reserve: (
      need: Need,
      options?: { readonly spare?: boolean }
    ) => Effect.Effect<Reservation, SandboxError, Scope.Scope>
    /** What is held and who waits. */
    readonly stats: Effect.Effect<CapacityStats>
    /** Has `listener` called, as long as the scope is open, whenever a caller has to wait: who holds VMs idle may give one up. */
    readonly onWaiting: (listener: () => void) => Effect.Effect<void, never, Scope.Scope>
  }
>()("exec-sandbox/Capacity") {
  /** Over this host, with the options in `Settings`. */
  static readonly layer: Layer.Layer<Capacity> = Layer.effect(
    this,
    Effect.map(Settings, (settings) => make({ ...defaults, ...settings }, probe))
  )
}

/** Makes the service over a way to look at the host. */
export const make = (options: CapacityOptions, probe: Probe): Capacity["Service"] => {
  let state = Admission.empty
  let nextId = 1
  const users = new Map<number, number>()
  const admitted = new Map<number, Deferred.Deferred<void>>()
  const listeners = new Set<() => void>()

  const slots = (host: HostResources): number => Math.max(1, Math.floor(host.cores * options.cpuOvercommit))

  /** Memory promised to VMs of ours that they have not made their own yet. */
  const untouched = (): number => {
    let total = 0
    for (const [id, { memoryMiB }] of state.held) {
      const pid = users.get(id)
      total += pid === undefined ? memoryMiB : Math.max(0, memoryMiB - probe.privateMemoryMiB(pid))
    }
    return total
  }

  /** What may be promised now. Processes are looked at only when it matters. */
  const freeMemory = (host: HostResources, wanted: number): number => {
    if ((host.memoryPressure ?? 0) > options.maxMemoryPressure) return 0
    const free = host.freeMemoryMiB - options.keepFreeMiB
    const atLeast = free - Admission.sum(state.held.values()).memoryMiB
    return atLeast >= wanted ? atLeast : Math.max(0, free - untouched())
  }

  /** Admits whoever fits now. */
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
    // Only the head can profit from looking again; the others are woken by whoever leaves.
    const look = Effect.sync(() => {
      if (Admission.head(state)?.id === id) advance()
    }).pipe(Effect.repeat(Schedule.spaced(lookEvery)), Effect.andThen(Effect.never))
    const wait = Effect.raceFirst(Deferred.await(turn), look)
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
