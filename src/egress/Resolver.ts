/**
 * Resolves granted names with the host's own resolver. Answers are cached for a while, so that a guest cannot flood the
 * resolver; each connection goes to an address of the answer that was checked.
 */
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Semaphore from "effect/Semaphore"
import * as dns from "node:dns"

/** The name has no address. `code` is the resolver's, such as ENOTFOUND. */
export class Unresolved extends Data.TaggedError("Unresolved")<{ readonly code: string }> {}

export type Resolve = (name: string) => Effect.Effect<ReadonlyArray<string>, Unresolved>

/** The most addresses of one name that are used. */
const maxAddresses = 16

const lookup: Resolve = (name) =>
  Effect.callback((resume) => {
    // `all` in the resolver's order; the caller puts IPv4 first.
    dns.lookup(name, { all: true, order: "ipv4first" }, (error, addresses) => {
      if (error === null) resume(Effect.succeed(addresses.slice(0, maxAddresses).map(({ address }) => address)))
      else resume(Effect.fail(new Unresolved({ code: error.code ?? "EAI_FAIL" })))
    })
  })

/** How names are resolved: as the host's programs do. Tests replace it. */
export const Resolver = Context.Reference<Resolve>("exec-sandbox/egress/Resolver", { defaultValue: () => lookup })

/**
 * Each lookup occupies one of Node's four threads, which also read files. So only a few names are looked up at a time by all
 * sessions together, and fewer by one session.
 */
const allSessions = Semaphore.makeUnsafe(3)
const eachSession = 2

/** How long an answer is used, in ms, how long a lookup may take, and how many answers are kept. */
const holdsMs = 10_000
const patience = "10 seconds"
const maxAnswers = 1024

/**
 * Runs an uninterruptible effect for a caller that can be interrupted: the effect keeps its permits until it really ends.
 */
const outlasting = <A, E>(effect: Effect.Effect<A, E>): Effect.Effect<A, E> =>
  Effect.flatMap(Effect.forkDetach(effect, { startImmediately: true }), (fiber) =>
    Effect.onInterrupt(Fiber.join(fiber), () => Effect.sync(() => fiber.interruptUnsafe()))
  )

/** A session's resolver over `resolve`: with limits, and with one lookup for a name that several connections want. */
export const bounded = (resolve: Resolve, now: () => number): Resolve => {
  const mine = Semaphore.makeUnsafe(eachSession)
  const answers = new Map<string, { readonly until: number; readonly addresses: ReadonlyArray<string> }>()
  return (name) =>
    mine
      .withPermit(
        Effect.suspend(() => {
          const known = answers.get(name)
          if (known !== undefined && known.until > now()) return Effect.succeed(known.addresses)
          // The system's resolver cannot be interrupted: it keeps its thread.
          return allSessions.withPermit(Effect.uninterruptible(resolve(name))).pipe(
            Effect.tap((addresses) =>
              Effect.sync(() => {
                answers.delete(name)
                answers.set(name, { until: now() + holdsMs, addresses })
                if (answers.size > maxAnswers) for (const oldest of answers.keys()) if (answers.delete(oldest)) break
              })
            )
          )
        })
      )
      .pipe(
        outlasting,
        Effect.timeoutOrElse({ duration: patience, orElse: () => Effect.fail(new Unresolved({ code: "ETIMEOUT" })) })
      )
}
