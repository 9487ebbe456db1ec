/** The network of a session, as its user sees it. */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import type { Grant } from "../egress/Egress.ts"
import { parseHost, parsePort, splitPort } from "../network/Target.ts"
import { type Network, NetworkPolicy } from "../NetworkPolicy.ts"
import { fail, InvalidInput, SessionClosed } from "../SandboxError.ts"
import type { Holder } from "./Attempt.ts"
import { always, using } from "./Parking.ts"
import { decodeInput } from "../internal/decodeInput.ts"

const decodePolicy = decodeInput(NetworkPolicy, "network policy")

const parseTarget = (text: string) => {
  const { host: written, port = "443" } = splitPort(text)
  const host = parseHost(written)
  const number = parsePort(port)
  if (host !== undefined && number !== undefined) return Effect.succeed({ host, port: number })
  return Effect.fail(
    fail(
      new InvalidInput({
        field: "target",
        problem: `got ${JSON.stringify(text.slice(0, 80))}`,
        expected: "HOST or HOST:PORT"
      })
    )
  )
}

export const make = (holder: Holder): Network => {
  const { egress, presence = always, vm } = holder
  /** Has the guest open its way out, and tell its programs what they need to know. */
  const open = (grant: Grant) =>
    Effect.gen(function* () {
      const stream = yield* vm.open({ method: "network", ...grant }, [])
      const events = yield* Effect.catchIf(stream.takeAll, Cause.isDone, () => Effect.succeed([]))
      const last = events.at(-1)
      if (last?._tag === "End") return undefined
      return last?._tag === "Reset" ? last.message : "the stream ended without a result"
    }).pipe(
      Effect.scoped,
      Effect.catch((error) => Effect.succeed(error.problem)),
      Effect.flatMap((problem) =>
        problem === undefined ? Effect.void : Effect.fail(fail(new SessionClosed({ session: holder.id, problem })))
      ),
      (opened) => Effect.scoped(Effect.andThen(using(presence), opened))
    )
  return {
    policy: Effect.sync(egress.policy),
    update: Effect.fn("Session.network.update")(function* (given) {
      const policy = yield* decodePolicy(given)
      const grant = egress.grant(policy)
      if (grant !== null) yield* open(grant)
      yield* egress.update(policy)
    }),
    explain: (target) => Effect.flatMap(parseTarget(target), egress.explain),
    attempts: Effect.sync(egress.ledger.latest)
  }
}
