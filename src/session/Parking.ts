/**
 * Parks a session's machine while nothing uses the session, and wakes it on the next use. A parked machine takes no memory
 * and no process of the host. The session sees one VM throughout.
 *
 * `Usage` counts the uses. A session that is used while it is being parked stays awake; so does one that cannot be parked.
 */
import * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Metric from "effect/Metric"
import * as Scope from "effect/Scope"
import type * as LateOutput from "../guest/LateOutput.ts"
import { defaults } from "../Limits.ts"
import type { SandboxError } from "../SandboxError.ts"
import * as Telemetry from "../Telemetry.ts"
import { type Vm, VmLost } from "../Vm.ts"
import * as Observe from "../internal/Observe.ts"
import type { Parker, Running, Saved } from "../vm/Park.ts"
import type { Usage } from "./Usage.ts"

/** The uses of a session's VM. Plain callbacks, for the hot path. */
export interface Presence {
  /** Begins a use; false when the caller must then run `awake` before it uses the VM. */
  readonly enter: () => boolean
  /** Ends a use. */
  readonly leave: () => void
  /** Waits until the VM is awake, and returns how long that took, in ms. If it fails, the session stays as it is. */
  readonly awake: Effect.Effect<number, SandboxError>
}

/** The presence of a VM that is never parked. */
export const always: Presence = { enter: () => true, leave: () => {}, awake: Effect.succeed(0) }

/** Begins a use that ends with the scope, and waits until the VM is awake. */
export const using = (presence: Presence): Effect.Effect<void, SandboxError, Scope.Scope> =>
  Effect.flatMap(
    Effect.acquireRelease(
      Effect.sync(() => presence.enter()),
      () => Effect.sync(() => presence.leave())
    ),
    (awake) => (awake ? Effect.void : Effect.asVoid(presence.awake))
  )

export interface Parking extends Presence {
  /** The session's VM; it forwards to the machine that runs now. */
  readonly vm: Vm
  /** The machine that runs now. It may be parked at any time unless the caller uses the session. */
  readonly current: () => Vm
  /** Parks the machine now; false when it is in use. */
  readonly park: Effect.Effect<boolean, SandboxError>
  readonly isParked: () => boolean
}

export interface Options {
  readonly parker: Parker
  readonly usage: Usage
  /** Parks after this idle time, in ms. When absent, only `park` parks. */
  readonly afterMs: number | undefined
  /** Accepts the connections that the guest makes. */
  readonly accept: Parameters<Vm["accept"]>[0]
}

type State =
  | { readonly _tag: "Awake" }
  | { readonly _tag: "Parking"; readonly fiber: Fiber.Fiber<boolean, SandboxError> }
  | { readonly _tag: "Parked"; readonly saved: Saved }
  | { readonly _tag: "Waking"; readonly fiber: Fiber.Fiber<void, SandboxError>; readonly saved: Saved }
  | { readonly _tag: "Over" }

/** How many bytes of unread late output are kept from a machine that was parked. */
const maxKept = 256 * 1024

/** For the handover of a woken guest, which needs only the clock and entropy: it keeps its own settings. */
const identity = { hostname: "", env: {}, limits: defaults, network: null }

const counted = (counter: Metric.Counter<number>, result: string): Effect.Effect<void> =>
  Metric.update(Metric.withAttributes(counter, { result }), 1)

/** The value of the metrics' `result` attribute. */
const resultOf = <A>(exit: Exit.Exit<A, SandboxError>): string => {
  if (Exit.isSuccess(exit)) return "done"
  const error = exit.cause.reasons.find(Cause.isFailReason)?.error
  if (error === undefined) return "abandoned"
  return error.reason._tag === "SnapshotFailed" ? error.reason.kind : error.reason._tag
}

/** Deletes the files of a machine that is no longer parked. */
const discard = (saved: Saved): Effect.Effect<void> =>
  Effect.andThen(saved.discard, Metric.modify(Telemetry.sessionsParked, -1))

/** Starts with a running machine. The machine, parked or not, ends with the scope. */
export const make = Effect.fnUntraced(function* (
  first: Running,
  { accept, afterMs, parker, usage }: Options
): Effect.fn.Return<Parking, never, Scope.Scope> {
  const sessionScope = yield* Effect.scope
  const clock = yield* Clock.Clock
  const failed = Deferred.makeUnsafe<never, VmLost>()
  /** Open unless the machine is parked. */
  const present = Latch.makeUnsafe(true)
  let running = first
  let state: State = { _tag: "Awake" }
  /** A change of `state` is about to start: no other may. */
  let beginning = false
  /** The machine's process is being ended on purpose, or has been. */
  let ending = false
  let kept: Array<LateOutput.Late | LateOutput.Dropped> = []
  let keptBytes = 0

  const over = (error: VmLost): void => {
    state = { _tag: "Over" }
    present.openUnsafe()
    Deferred.doneUnsafe(failed, Effect.fail(error))
  }
  /** Ends the session when its machine ends, unless that was on purpose. */
  const watch = (it: Running): Effect.Effect<unknown> =>
    Effect.forkIn(
      Effect.catch(it.vm.failure, (error) =>
        Effect.sync(() => {
          if (running === it && !ending) over(error)
        })
      ),
      sessionScope,
      { startImmediately: true }
    )
  yield* watch(first)

  /** Keeps the unread late output of a machine that has ended. */
  const drain = (vm: Vm): Effect.Effect<void> =>
    Effect.gen(function* () {
      for (;;) {
        const pieces = yield* Effect.catchIf(vm.lateOutput, Cause.isDone, () => Effect.void)
        if (pieces === undefined) return
        for (const piece of pieces) {
          const bytes = piece._tag === "Dropped" ? 0 : piece.bytes.length
          if (piece._tag !== "Dropped" && keptBytes + bytes <= maxKept) {
            keptBytes += bytes
            kept.push(piece)
            continue
          }
          const last = kept.at(-1)
          const lost = piece._tag === "Dropped" ? piece.bytes : bytes
          if (last?._tag === "Dropped") kept[kept.length - 1] = { _tag: "Dropped", bytes: last.bytes + lost }
          else kept.push({ _tag: "Dropped", bytes: lost })
        }
      }
    })

  /**
   * Runs `body` in the session's scope if `allowed`, with `state` set by `become` before it starts. Interruption reaches only
   * what `body` passes to `restore`.
   */
  const begin = <A>(
    allowed: () => boolean,
    body: (
      restore: <B, E, R>(effect: Effect.Effect<B, E, R>) => Effect.Effect<B, E, R>
    ) => Effect.Effect<A, SandboxError>,
    become: (fiber: Fiber.Fiber<A, SandboxError>) => State
  ): Effect.Effect<Fiber.Fiber<A, SandboxError> | undefined> =>
    Effect.suspend(() => {
      if (beginning || !allowed()) return Effect.undefined
      beginning = true
      const ready = Deferred.makeUnsafe<void>()
      const whole = Effect.uninterruptibleMask((restore) => Effect.andThen(Deferred.await(ready), body(restore)))
      return Effect.map(Effect.forkIn(whole, sessionScope, { startImmediately: true }), (fiber) => {
        beginning = false
        state = become(fiber)
        Deferred.doneUnsafe(ready, Effect.void)
        return fiber
      })
    }).pipe(Effect.uninterruptible)

  const isFree = (): boolean => !usage.inUse() && running.vm.connected() === 0

  const start = begin(
    () => state._tag === "Awake" && isFree(),
    Effect.fn("Session.park", { root: true })(function* (restore): Effect.fn.Return<boolean, SandboxError> {
      const machine = running
      const exit = yield* Effect.exit(
        Effect.scoped(
          Effect.gen(function* () {
            const prepared = yield* restore(parker.prepare(machine.vm))
            // From here on it cannot be interrupted. If a use has begun meanwhile, the machine goes on.
            if (!isFree() || state._tag === "Over") return false
            ending = true
            present.closeUnsafe()
            const saved = yield* prepared.commit
            state = { _tag: "Parked", saved }
            yield* drain(machine.vm)
            yield* machine.leave
            yield* Observe.annotate({ bytes: saved.bytes })
            yield* Metric.modify(Telemetry.sessionsParked, 1)
            return true
          })
        )
      )
      if (state._tag === "Parking") state = { _tag: "Awake" }
      yield* counted(Telemetry.parks, Exit.isSuccess(exit) && !exit.value ? "abandoned" : resultOf(exit))
      return yield* exit
    }),
    (fiber) => ({ _tag: "Parking", fiber })
  )

  const wake = (saved: Saved) =>
    begin(
      () => state._tag === "Parked",
      Effect.fn("Session.wake")(function* (restore): Effect.fn.Return<void, SandboxError> {
        const scope = yield* Scope.fork(sessionScope)
        const exit = yield* Effect.exit(
          restore(
            Effect.gen(function* () {
              const next = yield* Scope.provide(saved.wake, scope)
              next.vm.accept(accept)
              yield* next.vm.handover(identity, "wake")
              return next
            })
          )
        )
        yield* counted(Telemetry.wakes, resultOf(exit))
        if (Exit.isSuccess(exit)) {
          const next = exit.value
          running = { vm: next.vm, leave: Effect.andThen(next.leave, Scope.close(scope, Exit.void)) }
          state = { _tag: "Awake" }
          ending = false
          usage.touch()
          yield* watch(running)
          present.openUnsafe()
          yield* discard(saved)
          return
        }
        yield* Scope.close(scope, exit)
        const error = exit.cause.reasons.find(Cause.isFailReason)?.error
        const lost = saved.usedUp() || (error?.reason._tag === "SnapshotFailed" && error.reason.kind === "damaged")
        if (lost) {
          over(
            new VmLost({ problem: `it could not be woken: ${error?.message ?? "it was given up"}`, violation: false })
          )
          yield* discard(saved)
        } else state = { _tag: "Parked", saved }
        return yield* Effect.asVoid(exit)
      }, Observe.timed(Telemetry.wakeDuration)),
      (fiber) => ({ _tag: "Waking", fiber, saved })
    )

  const wait = (started: number): Effect.Effect<number, SandboxError> =>
    Effect.suspend(() => {
      switch (state._tag) {
        case "Parking":
          return Effect.andThen(Fiber.interrupt(state.fiber), wait(started))
        case "Parked":
          // Interrupting this caller does not interrupt the wake: others may wait for it.
          return wake(state.saved).pipe(
            Effect.flatMap((fiber) => (fiber === undefined ? Effect.yieldNow : Fiber.join(fiber))),
            Effect.andThen(wait(started))
          )
        case "Waking":
          return Effect.andThen(Fiber.join(state.fiber), wait(started))
        default:
          return Effect.sync(() => clock.currentTimeMillisUnsafe() - started)
      }
    })

  const lateOutput: Vm["lateOutput"] = Effect.suspend(() => {
    const [head, ...tail] = kept
    if (head !== undefined) {
      kept = []
      keptBytes = 0
      return Effect.succeed(Arr.make(head, ...tail))
    }
    const { vm } = running
    return Effect.catchIf(vm.lateOutput, Cause.isDone, () =>
      // The machine was parked or lost; `present` or `failed` shows in a moment which.
      Effect.raceFirst(
        Effect.andThen(
          present.await,
          Effect.suspend(() => (vm === running.vm ? Effect.never : Effect.void))
        ),
        Effect.ignore(Deferred.await(failed))
      ).pipe(Effect.andThen(Effect.suspend(() => (state._tag === "Over" ? Cause.done() : lateOutput))))
    )
  })

  const vmOver = new VmLost({ problem: "the VM was closed", violation: false })
  const destroy: Effect.Effect<void> = Effect.suspend(() => {
    switch (state._tag) {
      case "Awake":
        // A VM destroyed on purpose has not failed, so `watch` does not see its end: `over` ends the late output.
        return Effect.ensuring(
          running.vm.destroy,
          Effect.sync(() => over(vmOver))
        )
      case "Over":
        return running.vm.destroy
      case "Parked": {
        const { saved } = state
        over(vmOver)
        return discard(saved)
      }
      case "Parking":
      case "Waking": {
        const was = state
        const fiber: Fiber.Fiber<unknown, unknown> = was.fiber
        return Effect.andThen(
          Fiber.interrupt(fiber),
          Effect.suspend(() => {
            if (state !== was) return destroy
            // The fibre never ran, because the session's scope had closed before.
            over(vmOver)
            return was._tag === "Parking" ? running.vm.destroy : discard(was.saved)
          })
        )
      }
    }
  })
  yield* Effect.addFinalizer(() => Effect.suspend(() => (state._tag === "Awake" ? Effect.void : destroy)))

  if (afterMs !== undefined) {
    yield* Effect.gen(function* () {
      for (let left = afterMs; ;) {
        yield* Effect.sleep(left)
        yield* present.await
        left = usage.missing(afterMs)
        if (left > 0) continue
        left = afterMs
        const fiber = yield* start
        if (fiber !== undefined) yield* Fiber.await(fiber)
      }
    }).pipe(Effect.forkScoped)
  }

  return {
    enter: () => {
      usage.enter()
      return state._tag === "Awake"
    },
    leave: usage.leave,
    awake: Effect.suspend(() => wait(clock.currentTimeMillisUnsafe())),
    current: () => running.vm,
    isParked: () => state._tag === "Parked",
    park: Effect.gen(function* () {
      const fiber = (yield* start) ?? (state._tag === "Parking" ? state.fiber : undefined)
      if (fiber === undefined) return state._tag === "Parked"
      const exit = yield* Fiber.await(fiber).pipe(Effect.onInterrupt(() => Fiber.interrupt(fiber)))
      // A use began and interrupted the parking, which is no failure.
      if (Exit.isFailure(exit) && Cause.hasInterruptsOnly(exit.cause)) return false
      return yield* exit
    }),
    vm: {
      ...first.vm,
      parts: undefined,
      destroy,
      lateOutput,
      silence: Effect.suspend(() => running.vm.silence),
      failure: Deferred.await(failed),
      open: (method, request, inputs) =>
        Effect.suspend(() =>
          state._tag === "Parked" || state._tag === "Waking"
            ? Effect.fail(new VmLost({ problem: "its VM is parked", violation: false }))
            : running.vm.open(method, request, inputs)
        )
    }
  }
})
