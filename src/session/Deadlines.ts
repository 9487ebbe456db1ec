/**
 * Ends work that is still running at its deadline, although the guest should have ended it long before. One fibre per session
 * checks all deadlines from time to time: a fibre and a timer for each would cost a short execution more than all else that
 * the host does for it.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

export interface Deadlines {
  /** Runs `overdue` once, unless cancelled before, when the host's clock has passed `at`, in ms; at most `lateness` later. */
  readonly watch: (at: number, overdue: Effect.Effect<void>) => Watch
  /**
   * Pauses all deadlines while `waiting` runs. It waits for the host's side, for example a slow reader of output, and until then
   * the guest can continue neither this work nor what is queued behind it.
   */
  readonly pausedDuring: <A, E, R>(waiting: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
}

export interface Watch {
  readonly isOverdue: () => boolean
  readonly cancel: () => void
}

/** How late a deadline may be noticed. */
const lateness = "5 seconds"

export const make: Effect.Effect<Deadlines, never, Scope.Scope> = Effect.gen(function* () {
  let waiting = 0
  let since = 0
  /** How long the deadlines were paused, in ms, without the current pause. */
  let paused = 0
  /** The host's clock without the pauses, in ms; `watched` has deadlines of this clock. */
  const running = (now: number): number => (waiting > 0 ? since : now) - paused
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
      const it = { at: at - paused, overdue, passed: false }
      watched.add(it)
      return { isOverdue: () => it.passed, cancel: () => void watched.delete(it) }
    },
    pausedDuring: (effect) =>
      Effect.acquireUseRelease(
        Effect.map(Clock.currentTimeMillis, (now) => {
          if (waiting++ === 0) since = now
        }),
        () => effect,
        () =>
          Effect.map(Clock.currentTimeMillis, (now) => {
            if (--waiting === 0) paused += now - since
          })
      )
  }
})
