/** Runs attempts in forks of a session; public as `Snapshot.race` and `Snapshot.promote`. */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { fail, type SandboxError, SnapshotFailed } from "../SandboxError.ts"

const missing = fail(new SnapshotFailed({ snapshot: null, kind: "capture", problem: "a fork is missing" }))

/**
 * A session as `race` and `promote` need it.
 *
 * @since 0.1.0
 * @category models
 */
export interface Forkable<Self> {
  readonly fork: (
    n: number
  ) => Effect.Effect<ReadonlyArray<Result.Result<Self, SandboxError>>, SandboxError, Scope.Scope>
  readonly close: Effect.Effect<void>
}

/**
 * The child that won a race: its session, the index of its attempt (from 0), and its value.
 *
 * @since 0.1.0
 * @category models
 */
export interface Winner<A, Session> {
  readonly session: Session
  readonly index: number
  readonly value: A
}

/**
 * Forks a session once for each attempt, runs all attempts at the same time, each in its own child, and returns the first whose
 * value satisfies the predicate (any value by default). By then the other attempts have been interrupted and their VMs
 * destroyed; the winner lives as long as the scope. The session itself continues; see `promote`.
 *
 * Returns `None` if all attempts ended and none satisfied the predicate. Fails with the first error if all failed, and with
 * `InvalidInput` for more than 100 attempts or none.
 *
 * @example
 * ```ts
 * const winner = yield* Snapshot.race(session, fixes.map((code) => (child) => child.exec({ language: "python", code })))
 * ```
 *
 * @since 0.1.0
 * @category combinators
 */
export const race = Effect.fn("Snapshot.race")(function* <S extends Forkable<S>, A, E, R>(
  session: S,
  attempts: ReadonlyArray<(child: S) => Effect.Effect<A, E, R>>,
  satisfies: (value: A) => boolean = () => true
): Effect.fn.Return<Option.Option<Winner<A, S>>, E | SandboxError, R | Scope.Scope> {
  const children = yield* session.fork(attempts.length)
  const errors: Array<E | SandboxError> = []
  const contenders = attempts.map((attempt, index) =>
    Effect.fromResult(children[index] ?? Result.fail(missing)).pipe(
      Effect.flatMap((child) =>
        Effect.map(attempt(child), (value): Winner<A, S> => ({ session: child, index, value }))
      ),
      Effect.tapError((error) => Effect.sync(() => errors.push(error))),
      Effect.filterOrFail(
        ({ value }) => satisfies(value),
        () => "unsatisfied" as const
      )
    )
  )
  let winner: Winner<A, S> | undefined
  const losers = Effect.suspend(() =>
    Effect.forEach(
      children.filter(Result.isSuccess).filter((it) => it.success !== winner?.session),
      (it) => it.success.close,
      { concurrency: "unbounded", discard: true }
    )
  )
  const ended = yield* Effect.raceAll(contenders).pipe(
    Effect.tap((it) => Effect.sync(() => (winner = it))),
    Effect.option,
    Effect.ensuring(losers)
  )
  const [error] = errors
  if (Option.isNone(ended) && error !== undefined && errors.length === attempts.length) return yield* Effect.fail(error)
  return ended
})

/**
 * Replaces a parent by its child: closes the parent, destroys its VM and releases its capacity on the host. Returns the child,
 * which continues.
 *
 * @since 0.1.0
 * @category combinators
 */
export const promote = <S extends Pick<Forkable<S>, "close">>(parent: S, child: S): Effect.Effect<S> =>
  Effect.as(parent.close, child)
