/**
 * The pool's actor: one fibre with a mailbox that carries out what `PoolStep` decides. Each clone has its own scope, which
 * belongs to the pool until the clone is given to a claimer, and to the claimer from then on.
 */
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import * as PoolStep from "./Step.ts"

/** The answer to a claim: a clone, or why there is none. */
export type Answer<A> =
  | { readonly _tag: "Given"; readonly clone: A; readonly discard: Effect.Effect<void> }
  | { readonly _tag: "Missed"; readonly kind: PoolStep.MissKind; readonly reason: string }

export interface PoolActor<A> {
  /** Claims a clone, which lives until the scope closes or it is discarded. */
  readonly claim: Effect.Effect<Answer<A>, never, Scope.Scope>
  readonly resize: (size: number) => void
  /** Destroys one idle clone, if there is any. */
  readonly shed: () => void
  readonly state: Effect.Effect<{ readonly state: PoolStep.State; readonly breaker: PoolStep.Breaker }>
}

export interface Options<A, E> {
  readonly settings: PoolStep.Settings
  /** Makes a clone and warms it; runs `started` once its capacity is reserved. */
  readonly create: (started: Effect.Effect<void>) => Effect.Effect<A, E, Scope.Scope>
  /** Completes with the reason when the clone has died. */
  readonly death: (clone: A) => Effect.Effect<string>
}

/** JavaScript timers have a maximum; an additional tick does no harm. */
const longestSleepMs = 3_600_000

/** A clone and its lifetime. */
interface Entry<A> {
  readonly scope: Scope.Closeable
  maker: Fiber.Fiber<unknown> | undefined
  clone: A | undefined
  closing: Deferred.Deferred<void> | undefined
}

interface Claim<A> {
  readonly reply: Deferred.Deferred<Answer<A>>
  given: Entry<A> | undefined
}

/** Destroys a clone; a second call waits for the first. */
const close = <A>(entry: Entry<A>): Effect.Effect<void> =>
  Effect.suspend(() => {
    if (entry.closing !== undefined) return Deferred.await(entry.closing)
    const closing = Deferred.makeUnsafe<void>()
    entry.closing = closing
    return (entry.maker === undefined ? Effect.void : Fiber.interrupt(entry.maker)).pipe(
      Effect.andThen(Scope.close(entry.scope, Exit.void)),
      Effect.ensuring(Deferred.succeed(closing, undefined)),
      Effect.uninterruptible
    )
  })

/** Starts a pool. When the scope closes, every clone that was not given is destroyed, and the close waits until all are dead. */
export const make = Effect.fnUntraced(function* <A, E extends { readonly message: string }>(
  options: Options<A, E>
): Effect.fn.Return<PoolActor<A>, never, Scope.Scope> {
  const home = yield* Effect.scope
  const mailbox = yield* Queue.unbounded<PoolStep.Message>()
  const entries = new Map<number, Entry<A>>()
  const claims = new Map<number, Claim<A>>()
  let state = PoolStep.initial(options.settings)
  let steppedAt = Number.NEGATIVE_INFINITY
  let nextClaim = 1
  const post = (message: PoolStep.Message): void => void Queue.offerUnsafe(mailbox, message)

  const create = (id: number): Effect.Effect<void> =>
    Effect.gen(function* () {
      const entry: Entry<A> = { scope: yield* Scope.make(), maker: undefined, clone: undefined, closing: undefined }
      entries.set(id, entry)
      entry.maker = yield* options.create(Effect.sync(() => post({ _tag: "Started", id }))).pipe(
        Scope.provide(entry.scope),
        Effect.matchCauseEffect({
          onSuccess: (clone) =>
            Effect.gen(function* () {
              entry.clone = clone
              post({ _tag: "Ready", id })
              const cause = yield* options.death(clone)
              post({ _tag: "Died", id, cause })
            }),
          onFailure: (cause) =>
            Effect.sync(() => {
              const error = cause.reasons.find((it) => it._tag === "Fail")?.error
              post({ _tag: "Failed", id, cause: error?.message ?? "its creation failed" })
            }).pipe(Effect.andThen(end(id)))
        }),
        Effect.forkIn(home)
      )
    })

  /** Destroys a clone in the background; its entry stays until it is dead. */
  const end = (id: number): Effect.Effect<unknown> =>
    Effect.suspend(() => {
      const entry = entries.get(id)
      return entry === undefined
        ? Effect.void
        : close(entry).pipe(Effect.andThen(Effect.sync(() => entries.delete(id))), Effect.forkIn(home))
    })

  const give = (claim: number, id: number): Effect.Effect<unknown> =>
    Effect.suspend(() => {
      const entry = entries.get(id)
      const claimer = claims.get(claim)
      // The claim was interrupted just now.
      if (entry?.clone === undefined || claimer === undefined) return end(id)
      entries.delete(id)
      claims.delete(claim)
      claimer.given = entry
      return Deferred.succeed(claimer.reply, { _tag: "Given", clone: entry.clone, discard: close(entry) })
    })

  const act = (action: PoolStep.Action): Effect.Effect<unknown> => {
    switch (action._tag) {
      case "Make":
        return create(action.id)
      case "Destroy":
        return end(action.id)
      case "Give":
        return give(action.claim, action.id)
      case "Miss":
        return Effect.suspend(() => {
          const claimer = claims.get(action.claim)
          claims.delete(action.claim)
          return claimer === undefined
            ? Effect.void
            : Deferred.succeed(claimer.reply, { _tag: "Missed", kind: action.kind, reason: action.reason })
        })
    }
  }

  /** The next message, or a tick when the state changes by time alone. */
  const next = Effect.gen(function* () {
    const at = PoolStep.wakeAt(state, steppedAt)
    if (at === undefined) return yield* Queue.take(mailbox)
    const left = Math.min(Math.max(0, at - (yield* Clock.currentTimeMillis)), longestSleepMs)
    const tick = Effect.succeed<PoolStep.Message>({ _tag: "Tick" })
    return yield* Effect.timeoutOrElse(Queue.take(mailbox), { duration: left, orElse: () => tick })
  })

  const handle = Effect.fnUntraced(function* (message: PoolStep.Message) {
    steppedAt = yield* Clock.currentTimeMillis
    const [changed, actions] = PoolStep.step(state, message, steppedAt)
    state = changed
    for (const action of actions) yield* act(action)
  }, Effect.uninterruptible)

  const actor = yield* Effect.forkScoped(Effect.flatMap(next, handle).pipe(Effect.forever))
  yield* Effect.addFinalizer(() =>
    Fiber.interrupt(actor).pipe(
      Effect.andThen(handle({ _tag: "Drain" })),
      Effect.andThen(Queue.shutdown(mailbox)),
      Effect.andThen(
        Effect.suspend(() => Effect.forEach([...entries.values()], close, { concurrency: "unbounded", discard: true }))
      )
    )
  )
  post({ _tag: "Tick" })

  const claim = Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const id = nextClaim++
      const claimer: Claim<A> = { reply: yield* Deferred.make<Answer<A>>(), given: undefined }
      if (state.draining) return { _tag: "Missed", kind: "closing", reason: "the pool is closing" } as const
      claims.set(id, claimer)
      post({ _tag: "Claim", claim: id })
      const answer = yield* restore(Deferred.await(claimer.reply)).pipe(
        Effect.onInterrupt(() =>
          Effect.suspend(() => {
            claims.delete(id)
            post({ _tag: "Cancel", claim: id })
            return claimer.given === undefined ? Effect.void : close(claimer.given)
          })
        )
      )
      if (answer._tag === "Given") yield* Effect.addFinalizer(() => answer.discard)
      return answer
    })
  )

  return {
    claim,
    resize: (size) => post({ _tag: "Resize", size }),
    shed: () => post({ _tag: "Shed" }),
    state: Effect.map(Clock.currentTimeMillis, (now) => ({ state, breaker: PoolStep.breaker(state, now) }))
  }
})
