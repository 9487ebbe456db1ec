/** What a policy's `ask` says: once for each target, and within its time, however many wait for it and whoever leaves. */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type { Explanation, NetworkPolicy } from "../NetworkPolicy.ts"
import { hostText, type Target, targetText } from "../network/Target.ts"

/** Questions of a session that may wait for their answers at one time, and answers that are kept. */
const maxWaiting = 256
const maxAnswers = 1024
const defaultAskMs = 30_000

/** Runs it once, for all who want its answer, and goes on when one of them leaves. */
export const shared = <A>(
  fork: (effect: Effect.Effect<void>) => unknown,
  effect: Effect.Effect<A>
): Effect.Effect<A> => {
  const answer = Deferred.makeUnsafe<A>()
  let started = false
  return Effect.suspend(() => {
    if (!started) fork(Effect.flatMap(Effect.exit(effect), (exit) => Effect.asVoid(Deferred.done(answer, exit))))
    started = true
    return Deferred.await(answer)
  })
}

type Asking = Extract<NetworkPolicy, { readonly _tag: "Allow" }>

export interface Questions {
  readonly ask: (policy: Asking, target: Target) => Effect.Effect<Explanation>
  /** All answers are of a policy that does not hold any more. */
  readonly forget: () => void
}

export const make = (fork: (effect: Effect.Effect<void>) => unknown): Questions => {
  let waiting = 0
  let answers = new Map<string, Effect.Effect<Explanation>>()
  return {
    ask: ({ ask, askMs = defaultAskMs }, target) =>
      Effect.suspend(() => {
        const text = targetText(target)
        const known = answers.get(text)
        if (known !== undefined) return known
        const denied = (rule: string): Explanation => ({
          decision: "deny",
          rule,
          grant: `allow ${JSON.stringify(text)} in the session's network policy`
        })
        // Who asks may leave, and the question stays.
        if (ask === undefined || waiting >= maxWaiting) return Effect.succeed(denied("ask: too many questions at once"))
        waiting++
        const question = { host: hostText(target.host), port: target.port, target: text }
        const answer = shared(
          fork,
          Effect.suspend(() => ask(question)).pipe(
            Effect.map(({ allow, reason }): Explanation =>
              allow ? { decision: "allow", rule: `ask: ${reason}`, grant: null } : denied(`ask: ${reason}`)
            ),
            Effect.catchCause(() => Effect.succeed(denied("ask: it failed"))),
            Effect.timeoutOrElse({ duration: askMs, orElse: () => Effect.succeed(denied("ask: no answer in time")) }),
            Effect.ensuring(Effect.sync(() => waiting--))
          )
        )
        answers.set(text, answer)
        if (answers.size > maxAnswers) for (const oldest of answers.keys()) if (answers.delete(oldest)) break
        return answer
      }),
    forget: () => {
      answers = new Map()
    }
  }
}
