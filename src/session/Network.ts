/** `Session.network`: reads, replaces and explains the session's network policy. */
import * as Effect from "effect/Effect"
import type { Grant } from "../egress/Egress.ts"
import * as Agent from "../guest/Agent.ts"
import { network as networkMethod } from "../guest/Methods.ts"
import { parseHost, parsePort, splitPort } from "../network/Target.ts"
import { type Network, NetworkPolicy } from "../NetworkPolicy.ts"
import { fail, InvalidInput, SessionClosed } from "../SandboxError.ts"
import type { Context } from "./Context.ts"
import { using } from "./Parking.ts"
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

export const make = (context: Context): Network => {
  const { egress, id, presence, vm } = context
  /** Makes the guest set up its network and the environment variables that its programs need for it. */
  const open = (grant: Grant) =>
    Effect.scoped(Effect.andThen(using(presence), Agent.call(vm.open, networkMethod, grant))).pipe(
      Effect.catchTag(["VmLost", "Refused", "ChannelViolation"], ({ problem }) =>
        Effect.fail(fail(new SessionClosed({ session: id, problem })))
      )
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
