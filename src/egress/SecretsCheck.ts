/** Checks that the secrets of a session can be used in it. */
import * as Effect from "effect/Effect"
import type { Egress } from "./Egress.ts"
import { parseSecretHost } from "../network/Rules.ts"
import { hostText, type Target } from "../network/Target.ts"
import { fail, InvalidInput, type SandboxError } from "../SandboxError.ts"
import type { Secrets } from "../Secrets.ts"

/** A target that a secret's rule covers; for `*.DOMAIN`, a host that no other rule names. */
const targetOf = (text: string): Target | undefined => {
  const rule = parseSecretHost(text)
  if (typeof rule === "string") return undefined
  const name = rule.kind === "name" ? rule.name : rule.kind === "suffix" ? `any-host-at-all${rule.suffix}` : undefined
  return name === undefined ? undefined : { host: { kind: "name", name }, port: rule.ports[0] ?? 443 }
}

/** Fails with `InvalidInput` where a secret has the name of an environment variable, or the policy does not grant its hosts. */
export const check = Effect.fnUntraced(function* (
  secrets: Secrets,
  env: Readonly<Record<string, string>>,
  egress: Egress
): Effect.fn.Return<void, SandboxError> {
  for (const [name, { hosts }] of Object.entries(secrets)) {
    if (Object.hasOwn(env, name)) {
      const expected = "a name that is not among the secrets"
      return yield* fail(new InvalidInput({ field: `env.${name}`, problem: "it is also a secret", expected }))
    }
    for (const text of hosts) {
      const target = targetOf(text)
      const explained = target === undefined ? undefined : yield* egress.explain(target)
      if (target === undefined || explained?.decision !== "deny") continue
      const problem = `the network policy does not grant ${JSON.stringify(text)} (${explained.rule})`
      const port = target.port === 443 ? "" : `:${target.port}`
      const granted = text.startsWith("*.") ? text : `${hostText(target.host)}${port}`
      const expected = `hosts that it grants: allow ${JSON.stringify(granted)} in it`
      return yield* fail(new InvalidInput({ field: `secrets.${name}.hosts`, problem, expected }))
    }
  }
})
