/**
 * Ends what outlives its deadline, for work whose own side should have ended it long before. One fibre looks after all of a
 * session's work from time to time: a fibre and a timer for each would cost a short execution more than the rest of ours.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

export interface Deadlines {
  /** Until it is let go, `overdue` runs once when the host's clock has passed `at`, in ms, at most `lateness` later. */
  readonly watch: (at: number, overdue: Effect.Effect<void>) => Watch
  /**
   * All deadlines stand still while `waiting` lasts: it waits for our own side, without which the guest cannot go on, neither
   * with this work nor with what is queued behind it.
   */
  readonly standStill: <A, E, R>(waiting: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
}

export interface Watch {
  readonly isOverdue: () => boolean
  readonly letGo: () => void
}

/** How late a deadline may be noticed. */
const lateness = "5 seconds"

export const make: Effect.Effect<Deadlines, never, Scope.Scope> = Effect.gen(function* () {
  let waiting = 0
  let since = 0
  /** How long the deadlines stood still, ms, the wait of this moment left out. */
  let stood = 0
  /** The time that deadlines are told by, which `watched` is in. */
  const running = (now: number): number => (waiting > 0 ? since : now) - stood
  const watched = new Set<{ readonly at: number; readonly overdue: Effect.Effect<void>; passed: boolean }>()
  yield* Effect.gen(function* () {
    for (;;) {
      yield* Effect.sleep(lateness)
      const now = running(yield* Clock.currentTimeMillis)
      for (const it of watched) {
        if (it.passed || it.at > now) continue
        it.passed = true
        yield* it.overdue
      }
    }
  }).pipe(Effect.forkScoped)
  return {
    watch: (at, overdue) => {
      const it = { at: at - stood, overdue, passed: false }
      watched.add(it)
      return { isOverdue: () => it.passed, letGo: () => void watched.delete(it) }
    },
    standStill: (effect) =>
      Effect.acquireUseRelease(
        Effect.map(Clock.currentTimeMillis, (now) => {
          if (waiting++ === 0) since = now
        }),
        () => effect,
        () =>
          Effect.map(Clock.currentTimeMillis, (now) => {
            if (--waiting === 0) stood += now - since
          })
      )
  }
})
