/** Calls a policy's `ask` once for each target, within its time, however many connections wait for the answer or give up. */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type { Explanation, NetworkPolicy } from "../NetworkPolicy.ts"
import { hostText, type Target, targetText } from "../network/Target.ts"

/** The most questions of a session that wait for answers, and the most answers that are kept. */
const maxWaiting = 256
const maxAnswers = 1024
const defaultAskMs = 30_000

/** Runs the effect once for all callers; it goes on when one of them is interrupted. */
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
  /** Drops all answers, because the policy has changed. */
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
        // A caller may be interrupted; the question goes on.
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
