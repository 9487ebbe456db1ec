/**
 * Decides whether a policy grants a target. Pure. `judgeAddress` checks the address of a name once it is resolved.
 */
import type { Explanation, NetworkPolicy } from "../NetworkPolicy.ts"
import { type Guarded, guarded } from "./Guard.ts"
import { granting, grantingAddress, hostName, parseRule, type Rule } from "../network/Rules.ts"
import { hostText, type Target, targetText } from "../network/Target.ts"

/** A policy with its rules parsed. */
export interface Compiled {
  readonly policy: NetworkPolicy
  readonly rules: ReadonlyArray<Rule>
}

const read = (texts: ReadonlyArray<string>) => texts.map(parseRule).filter((rule) => typeof rule !== "string")

const registry =
  (own: boolean) =>
  (rule: Rule): Rule => ({ ...rule, own, text: `packages: ${rule.text}` })

/** Parses a policy's rules; `indexes` and `files` are `HOST:PORT` of registries, which `Packages` grants in addition. */
export const compile = (
  policy: NetworkPolicy,
  indexes: ReadonlyArray<string> = [],
  files: ReadonlyArray<string> = []
): Compiled => {
  if (policy._tag === "None") return { policy, rules: [] }
  // The policy's Schema has refused bad rules; a registry whose host is invalid grants nothing.
  return {
    policy,
    rules: [...read(policy.rules), ...read(indexes).map(registry(true)), ...read(files).map(registry(false))]
  }
}

const deny = (rule: string, grant: string | null): Explanation => ({ decision: "deny", rule, grant })
const allow = (rule: string): Explanation => ({ decision: "allow", rule, grant: null })

const ruleFor = (target: Target): string =>
  target.port === 443 || target.port === 80 ? hostText(target.host) : targetText(target)

const grantFor = (target: Target): string => `allow ${JSON.stringify(ruleFor(target))} in the session's network policy`

/** The decision by the target itself, before its name is resolved. */
export const judge = ({ policy, rules }: Compiled, target: Target): Explanation => {
  const { host, port } = target
  if (policy._tag === "None") return deny("none", grantFor(target))
  const rule = granting(rules, target)
  if (rule !== undefined) return allow(rule.text)
  if (host.kind === "name" && host.name === hostName) {
    return deny("loopback", `allow "host:${port}" in the session's network policy`)
  }
  if (host.kind === "name" && (host.name === "localhost" || host.name.endsWith(".localhost")))
    return deny("loopback", null)
  const why = host.kind === "address" ? guarded(host.address) : undefined
  if (why !== undefined) return deny(why, `allow "${targetText(target)}" in the session's network policy`)
  if (policy._tag === "All") return allow("all")
  if (policy._tag === "Allow" && policy.ask !== undefined) return { decision: "ask", rule: "ask", grant: null }
  return deny("not-granted", grantFor(target))
}

/** The guarded kinds of address that a configured registry may have. */
const inside: ReadonlySet<Guarded> = new Set<Guarded>(["private", "carrier", "host-address"])

/** Why an address that a granted target resolved to is refused; `undefined` when it is not. */
export const judgeAddress = ({ rules }: Compiled, target: Target, address: string): Explanation | undefined => {
  if (grantingAddress(rules, address, target.port) !== undefined) return undefined
  const why = guarded(address)
  if (why === undefined) return undefined
  if (granting(rules, target)?.own === true && inside.has(why)) return undefined
  const written = address.includes(":") ? `[${address}]` : address
  return deny(why, `allow "${written}:${target.port}" in addition to the name in the session's network policy`)
}
