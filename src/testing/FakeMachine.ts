/** A machine without a process: its channel is a pipe in memory, with a scripted guest at the other end. */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { Duplex } from "node:stream"
import { lateSpan, currentSpan } from "../internal/Observe.ts"
import { type End, type Machine, MachineFailure } from "../qemu/Machine.ts"

/**
 * Two ends of a pipe. Bytes written to one end are read from the other before the write returns, so that nothing depends on how
 * Node's queue and a test's clock interleave. The channel's credit bounds the bytes that wait.
 */
export const pipe = (): readonly [Duplex, Duplex] => {
  const ends: Array<Duplex> = []
  const make = (other: number): Duplex => {
    const end = new Duplex({
      highWaterMark: 64 * 1024 * 1024,
      allowHalfOpen: false,
      read: () => {},
      write: (chunk: Buffer, _encoding, done) => {
        const peer = ends[other]
        if (peer !== undefined && !peer.destroyed) peer.push(chunk)
        done()
      },
      destroy: (error, done) => {
        const peer = ends[other]
        if (peer !== undefined && !peer.destroyed) peer.destroy()
        done(error)
      }
    })
    // After one read a readable passes on at once what is pushed.
    end.read(0)
    end.on("error", () => {})
    return end
  }
  ends.push(make(1), make(0))
  return [ends[0] as Duplex, ends[1] as Duplex]
}

/** A fake machine with the guest's end of its channel. */
export interface FakeMachine {
  readonly machine: Machine
  readonly guest: Duplex
  /** Whether the guest is paused. */
  readonly paused: () => boolean
  readonly onResume: (listener: () => void) => void
  /** Ends it from outside, as a signal or a crash would. */
  readonly die: (end: Exclude<End, "ours">, problem: string) => void
  readonly alive: () => boolean
}

/** Starts a machine; closing the scope kills it. */
export const make = Effect.fnUntraced(function* (
  ended: (end: End) => void
): Effect.fn.Return<FakeMachine, never, Scope.Scope> {
  const [host, guest] = pipe()
  const failed = yield* Deferred.make<never, MachineFailure>()
  const begun = yield* currentSpan
  const listeners: Array<() => void> = []
  let failure: MachineFailure | undefined
  let paused = false
  const end = (how: End, problem: string): void => {
    if (failure !== undefined) return
    failure = new MachineFailure({ problem, killed: how === "killed" })
    ended(how)
    Deferred.doneUnsafe(failed, Effect.fail(failure))
    host.destroy()
  }
  const kill = Effect.suspend(() =>
    failure !== undefined
      ? Effect.void
      : Effect.sync(() => end("ours", "it was destroyed")).pipe(lateSpan("Vm.destroy", begun, {}))
  )
  yield* Effect.addFinalizer(() => kill)
  return {
    guest,
    paused: () => paused,
    onResume: (listener) => listeners.push(listener),
    die: end,
    alive: () => failure === undefined,
    machine: {
      pid: 0,
      channel: host,
      migrated: Effect.void,
      onEvent: () => Effect.void,
      failure: Deferred.await(failed),
      kill,
      console: () => "",
      commands: (...list) =>
        Effect.suspend(() => {
          if (failure !== undefined) return Effect.fail(failure)
          for (const { execute } of list) {
            if (execute === "stop") paused = true
            if (execute === "cont") {
              paused = false
              for (const listener of listeners) listener()
            }
          }
          return Effect.succeed(list.map(() => ({})))
        })
    }
  }
})
