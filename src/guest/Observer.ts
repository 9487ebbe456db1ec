/** Observes whether the guest has read everything sent to it, and can hold back further bytes. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

/** The channel's connection, for an observer. */
interface Connection<E> {
  /** Sends a PING with this payload, which does not count as sent. */
  readonly ping: (mark: Buffer) => void
  readonly isOver: () => boolean
  readonly failure: Effect.Effect<never, E>
  /** Sends nothing until `uncork`. */
  readonly cork: () => void
  readonly uncork: () => void
}

export interface Observer<E> {
  /** Whether the guest is known to have read every byte sent so far, and so is between two frames. */
  readonly isSettled: () => boolean
  /** Waits until `isSettled` is true. */
  readonly settled: Effect.Effect<void, E>
  /** Sends nothing from now on, until `release` or the scope's end. */
  readonly hold: () => void
  readonly release: () => void
}

export interface Observing<E> {
  /** To be called after each write. */
  readonly sent: () => void
  /** To be called with each PONG; only those that answer a ping of the observer count. */
  readonly pong: (mark: Buffer) => void
  /** Observes as long as the scope is open; one observer at a time. */
  readonly observe: Effect.Effect<Observer<E>, never, Scope.Scope>
}

/** Marks the observer's pings, as the channel sends others. */
const name = "read"

export const make = <E>(connection: Connection<E>): Observing<E> => {
  /** `sent` counts the writes so far, `read` is the last one that the guest has read. */
  let observed: { sent: number; read: number; asking: boolean; settle: (() => void) | undefined } | undefined

  const ask = (): void => {
    if (observed === undefined || observed.asking || connection.isOver()) return
    observed.asking = true
    const mark = Buffer.alloc(8)
    mark.writeUInt32LE(observed.sent, 0)
    mark.write(name, 4)
    connection.ping(mark)
  }

  return {
    sent: () => {
      if (observed === undefined) return
      observed.sent++
      queueMicrotask(ask)
    },
    pong: (mark) => {
      if (observed === undefined || mark.length !== 8 || mark.toString("latin1", 4) !== name) return
      observed.read = mark.readUInt32LE(0)
      observed.asking = false
      if (observed.read === observed.sent) observed.settle?.()
      else ask()
    },
    observe: Effect.gen(function* () {
      const mine = { sent: 1, read: 0, asking: false, settle: undefined as (() => void) | undefined }
      let held = false
      const release = (): void => {
        if (!held) return
        held = false
        connection.uncork()
      }
      const isSettled = (): boolean => !connection.isOver() && !mine.asking && mine.read === mine.sent
      yield* Effect.acquireRelease(
        Effect.sync(() => {
          observed = mine
          ask()
        }),
        () =>
          Effect.sync(() => {
            observed = undefined
            release()
          })
      )
      const settled = Effect.callback<void>((resume) => {
        mine.settle = () => {
          if (!isSettled()) return
          mine.settle = undefined
          resume(Effect.void)
        }
        mine.settle()
      })
      return {
        isSettled,
        settled: Effect.raceFirst(settled, connection.failure),
        hold: () => {
          if (held) return
          held = true
          connection.cork()
        },
        release
      }
    })
  }
}
