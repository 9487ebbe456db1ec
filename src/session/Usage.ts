/**
 * Counts the uses of a session, so that an idle one can be parked or closed. Use is counted, not timed: while anything is in
 * use, the session is not idle.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"

export interface Usage {
  /** A use begins. Plain callbacks, for the hot path. */
  readonly enter: () => void
  readonly leave: () => void
  readonly inUse: () => boolean
  /** Starts the idle time again. */
  readonly touch: () => void
  /** How many ms are missing until the session has been idle for `ms`; 0 or less when it has. */
  readonly missing: (ms: number) => number
  /**
   * Waits until the session has been idle for `ms`. `found` runs at the same moment, so that no use can begin in between.
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
