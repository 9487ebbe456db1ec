/** Limits how many streams are open at one time; what comes then waits, in order, for the end of another one. */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"

export interface StreamSlots<E> {
  /** Runs `use` with a slot, which `use` must give back by `free`. */
  readonly take: <A, R>(use: Effect.Effect<A, never, R>) => Effect.Effect<A, E, R>
  readonly free: () => void
  /** Every waiting caller fails, and so does every later one. */
  readonly fail: (error: E) => void
}

export const make = <E>(slots: number): StreamSlots<E> => {
  /** How many are open or about to be opened; and the callers that wait to open one, in order. */
  let taken = 0
  const waiting = new Set<Deferred.Deferred<void, E>>()
  let failure: { readonly error: E } | undefined

  const free = (): void => {
    taken--
    const [next] = waiting
    if (next === undefined) return
    taken++
    waiting.delete(next)
    Deferred.doneUnsafe(next, Effect.void)
  }

  return {
    free,
    fail: (error) => {
      failure = { error }
      for (const it of waiting) Deferred.doneUnsafe(it, Effect.fail(error))
      waiting.clear()
    },
    take: <A, R>(use: Effect.Effect<A, never, R>): Effect.Effect<A, E, R> =>
      Effect.uninterruptibleMask((restore) =>
        Effect.suspend((): Effect.Effect<A, E, R> => {
          if (failure !== undefined) return Effect.fail(failure.error)
          if (taken < slots) {
            taken++
            return use
          }
          const turn = Deferred.makeUnsafe<void, E>()
          waiting.add(turn)
          return restore(Deferred.await(turn)).pipe(
            Effect.onInterrupt(() =>
              Effect.sync(() => {
                // Its turn may have come in this moment.
                if (!waiting.delete(turn)) free()
              })
            ),
            Effect.andThen(use)
          )
        })
      )
  }
}
