/**
 * Names to addresses, by the host's own resolver and only for names that are granted. An answer holds for a while, so that a
 * guest cannot make the host ask on and on; each connection goes to an address of the answer that was judged.
 */
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Semaphore from "effect/Semaphore"
import * as dns from "node:dns"

/** The name leads nowhere. `code` is the resolver's, such as ENOTFOUND. */
export class Unresolved extends Data.TaggedError("Unresolved")<{ readonly code: string }> {}

export type Resolve = (name: string) => Effect.Effect<ReadonlyArray<string>, Unresolved>

/** Addresses of one name that are looked at. */
const maxAddresses = 16

const lookup: Resolve = (name) =>
  Effect.callback((resume) => {
    // `all` in the resolver's order; the caller puts IPv4 first.
    dns.lookup(name, { all: true, order: "ipv4first" }, (error, addresses) => {
      if (error === null) resume(Effect.succeed(addresses.slice(0, maxAddresses).map(({ address }) => address)))
      else resume(Effect.fail(new Unresolved({ code: error.code ?? "EAI_FAIL" })))
    })
  })

/**
 * How names are resolved: with what the host's programs use. Tests bring their own.
 */
export const Resolver = Context.Reference<Resolve>("exec-sandbox/egress/Resolver", { defaultValue: () => lookup })

/**
 * The system's resolver takes one of Node's four threads for each name it waits for, the same ones that read files. So few
 * names are looked up at a time by all sessions together, and fewer by one.
 */
const everybody = Semaphore.makeUnsafe(3)
const eachSession = 2

/** How long an answer holds, in ms, how long a name may take, and how many answers are kept. */
const holdsMs = 10_000
const patience = "10 seconds"
const maxAnswers = 1024

/**
 * Runs an effect that cannot be given up once it has begun, for somebody who can: what it holds is held until it really ends.
 */
const outlasting = <A, E>(effect: Effect.Effect<A, E>): Effect.Effect<A, E> =>
  Effect.flatMap(Effect.forkDetach(effect, { startImmediately: true }), (fiber) =>
    Effect.onInterrupt(Fiber.join(fiber), () => Effect.sync(() => fiber.interruptUnsafe()))
  )

/** A session's resolver over another: bounded, and asking once for what many want at a time. */
export const bounded = (resolve: Resolve, now: () => number): Resolve => {
  const mine = Semaphore.makeUnsafe(eachSession)
  const answers = new Map<string, { readonly until: number; readonly addresses: ReadonlyArray<string> }>()
  return (name) =>
    mine
      .withPermit(
        Effect.suspend(() => {
          const known = answers.get(name)
          if (known !== undefined && known.until > now()) return Effect.succeed(known.addresses)
          // The system's resolver goes on whoever leaves, on its thread.
          return everybody.withPermit(Effect.uninterruptible(resolve(name))).pipe(
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
