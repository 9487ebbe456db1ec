/**
 * Counts the uses of a session, so that an idle one can be parked or closed. A session with at least one use is not idle,
 * however long the use lasts.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"

export interface Usage {
  /** Begins a use. Plain callbacks, for the hot path. */
  readonly enter: () => void
  /** Ends a use. */
  readonly leave: () => void
  readonly inUse: () => boolean
  /** Restarts the idle time. */
  readonly touch: () => void
  /** In how many ms the session has been idle for `ms`; 0 or less when it has. */
  readonly missing: (ms: number) => number
  /**
   * Waits until the session has been idle for `ms`, and then calls `found` synchronously, so that no use can begin in between.
   */
  readonly idleFor: (ms: number, found: () => void) => Effect.Effect<void>
}

export const make: Effect.Effect<Usage> = Effect.map(Clock.Clock, (clock) => {
  let uses = 0
  let idleSince = clock.currentTimeMillisUnsafe()
  const missing = (ms: number): number => (uses > 0 ? ms : idleSince + ms - clock.currentTimeMillisUnsafe())
  const touch = (): void => {
    idleSince = clock.currentTimeMillisUnsafe()
  }
  return {
    enter: () => {
      uses++
    },
    leave: () => {
      uses--
      touch()
    },
    inUse: () => uses > 0,
    touch,
    missing,
    idleFor: (ms, found) =>
      Effect.gen(function* () {
        for (let left = ms; left > 0;) {
          yield* Effect.sleep(left)
          left = missing(ms)
          if (left <= 0) found()
        }
      })
  }
})
