/** Limits how many streams are open at one time. Further ones wait, in order, until another one ends. */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"

export interface StreamSlots<E> {
  /** Waits for a slot and runs `use` with it; the caller returns the slot by `free`. */
  readonly take: <A, R>(use: Effect.Effect<A, never, R>) => Effect.Effect<A, E, R>
  readonly free: () => void
  /** Fails every waiting caller and every later one. */
  readonly fail: (error: E) => void
}

export const make = <E>(slots: number): StreamSlots<E> => {
  /** The slots in use, and the callers that wait for one, in order. */
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
                // It may have been given a slot just now.
                if (!waiting.delete(turn)) free()
              })
            ),
            Effect.andThen(use)
          )
        })
      )
  }
}
