/**
 * NetworkPolicy: what a session may reach beyond itself. A guest has no network device; every connection of its programs is
 * asked of the host, which decides by name and connects itself.
 *
 * Whatever the policy, addresses that are private, loopback, link-local, a cloud's metadata, a carrier's, reserved or the
 * host's own are refused unless a rule grants the address itself, and that is looked at again after the name was resolved.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { parseRule } from "./network/Rules.ts"
import type { NetworkAttempt } from "./Receipt.ts"
import type { SandboxError } from "./SandboxError.ts"

/**
 * A rule: who may be reached, by which port (1 to 65,535; 443 and 80 when none is written).
 *
 * - `example.com`, `example.com:8443`: exactly this host. Case, a trailing dot and Unicode make no difference.
 * - `*.example.com`: every host below it, not `example.com` itself.
 * - `93.184.216.34`, `10.1.0.0/16:5432`, `[fd00::1]:443`: addresses. A guest reaches them by address, or by a name that
 *   another rule grants; a name's private addresses need both.
 * - `host:5432`: that one port on the host's loopback, which the guest reaches by the name `host`.
 *
 * @since 0.1.0
 * @category models
 */
export const Rule = Schema.String.check(
  Schema.makeFilter((text: string) => {
    const rule = parseRule(text)
    return typeof rule === "string" ? rule : true
  })
)

/** The most rules of one policy. */
const maxRules = 1000

const Rules = Schema.Array(Rule).check(
  Schema.makeFilter((rules: ReadonlyArray<string>) => rules.length <= maxRules, {
    expected: `at most ${maxRules} rules`
  })
)

/**
 * What a policy has not decided: `host` (a name or an IP address) and `port`. `target` is both in one.
 *
 * @since 0.1.0
 * @category models
 */
export interface Question {
  readonly host: string
  readonly port: number
  readonly target: string
}

/**
 * What became of a question. `reason` goes to the ledger.
 *
 * @since 0.1.0
 * @category models
 */
export interface Answer {
  readonly allow: boolean
  readonly reason: string
}

/**
 * Decides what the rules leave open, within `askMs`. It is asked once for each host and port of a session, and again after
 * the policy was changed. No answer in time, and an answer that fails, is a refusal. It grants a name, never a name's private
 * address.
 *
 * @since 0.1.0
 * @category models
 */
export type Ask = (question: Question) => Effect.Effect<Answer>

const Ask = Schema.declare((value): value is Ask => typeof value === "function", { expected: "a function" })

/**
 * Whose registries: `python` (pip and uv) or `javascript` (npm). Debian's mirrors are none of them: what a session's own
 * programs run as could not install from there.
 *
 * @since 0.1.0
 * @category models
 */
export const Ecosystem = Schema.Literals(["python", "javascript"])
/**
 * @since 0.1.0
 * @category models
 */
export type Ecosystem = typeof Ecosystem.Type

/**
 * What a session may reach.
 *
 * - `None`: nothing (the default). Every connect fails with ENETUNREACH.
 * - `Allow`: what `rules` grant; an empty list grants nothing. `ask` may decide the rest, within `askMs` (ms, 1 to 600,000,
 *   default 30,000).
 * - `Packages`: the registries of some ecosystems, and what `rules` grant. Which these are is learnt from what this host's
 *   pip, uv and npm are told (environment and configuration files; their own defaults where nothing is), and where a registry
 *   keeps its files from the registry; the guest's tools are told the same, without credentials. A configured registry may
 *   have a private address, and one on this host's loopback is reached by the name `host`.
 * - `All`: every public host and port; `rules` grant private addresses beside them.
 *
 * A refused connect fails at once with ENETUNREACH, as with `None`. What was granted and cannot be reached fails as it did for
 * the host, ECONNREFUSED or EHOSTUNREACH.
 *
 * @since 0.1.0
 * @category models
 */
export const NetworkPolicy = Schema.Union([
  Schema.TaggedStruct("None", {}),
  Schema.TaggedStruct("Allow", {
    rules: Rules,
    ask: Schema.optionalKey(Ask),
    askMs: Schema.optionalKey(
      Schema.Int.check(
        Schema.isBetween({ minimum: 1, maximum: 600_000 }, { expected: "a whole number of ms from 1 to 600000" })
      )
    )
  }),
  Schema.TaggedStruct("Packages", { ecosystems: Schema.Array(Ecosystem), rules: Rules }),
  Schema.TaggedStruct("All", { rules: Rules })
])
/**
 * @since 0.1.0
 * @category models
 */
export type NetworkPolicy = typeof NetworkPolicy.Type

/**
 * Nothing may be reached.
 *
 * @since 0.1.0
 * @category constructors
 */
export const none: NetworkPolicy = { _tag: "None" }

/**
 * Only what the rules grant may be reached, and what `ask` grants of the rest.
 *
 * @example
 * ```ts
 * const session = yield* Sandbox.session({ network: NetworkPolicy.allow(["api.example.com", "host:5432"]) })
 * ```
 *
 * @since 0.1.0
 * @category constructors
 */
export const allow = (
  rules: ReadonlyArray<string>,
  options: { readonly ask?: Ask; readonly askMs?: number } = {}
): NetworkPolicy => ({ _tag: "Allow", rules, ...options })

/**
 * Only the registries of these ecosystems may be reached (all of them when none is named), and what the rules grant.
 *
 * @since 0.1.0
 * @category constructors
 */
export const packages = (
  ecosystems: ReadonlyArray<Ecosystem> = Ecosystem.literals,
  rules: ReadonlyArray<string> = []
): NetworkPolicy => ({ _tag: "Packages", ecosystems, rules })

/**
 * Every public host may be reached, and what the rules grant of the others.
 *
 * @since 0.1.0
 * @category constructors
 */
export const all = (rules: ReadonlyArray<string> = []): NetworkPolicy => ({ _tag: "All", rules })

/**
 * The environment whose HTTPS_PROXY (HTTP_PROXY for port 80), ALL_PROXY and NO_PROXY, in upper or lower case, granted connections
 * leave this host by, through CONNECT. `undefined`, the default, is to connect directly, unless the variable EXEC_SANDBOX_PROXY
 * of this process is `environment`: then it is this process's own.
 *
 * It is said on purpose because **it takes something from the guard**: what is granted is decided by name as ever, but the proxy
 * resolves the name, so nobody here sees which address it leads to. Literal addresses, and names of which this host itself knows
 * a private address, are judged as without a proxy; a name that only the proxy knows, or that it is told otherwise about, may
 * lead to whatever the proxy lets through. Do not use it with `All`, or with domains whose DNS others control, where a proxy
 * reaches what the code must not.
 *
 * Only proxies of `http://`, with or without `USER:PASSWORD@`. Beyond a proxy that refuses, a connect fails with EHOSTUNREACH,
 * and the ledger has its answer.
 *
 * @since 0.1.0
 * @category references
 */
export const ProxyEnvironment = Context.Reference<{ readonly [name: string]: string | undefined } | undefined>(
  "exec-sandbox/NetworkPolicy/ProxyEnvironment",
  { defaultValue: () => (process.env["EXEC_SANDBOX_PROXY"] === "environment" ? process.env : undefined) }
)

/**
 * What a policy makes of a target: `allow`, `deny` or `ask`, by which `rule` (a rule as it was written, the policy's own name,
 * or why it is refused), and what `grant` would allow it (`null` when it is allowed or nothing would).
 *
 * @since 0.1.0
 * @category models
 */
export interface Explanation {
  readonly decision: "allow" | "deny" | "ask"
  readonly rule: string
  readonly grant: string | null
}

/**
 * A session's network.
 *
 * @since 0.1.0
 * @category models
 */
export interface Network {
  /** The policy that holds now. */
  readonly policy: Effect.Effect<NetworkPolicy>
  /** Changes the policy for every connection from now on. Open connections that it does not grant are cut off. */
  readonly update: (policy: NetworkPolicy) => Effect.Effect<void, SandboxError>
  /**
   * Says what would become of a connect to `HOST` (port 443) or `HOST:PORT`, without connecting, resolving or asking anybody:
   * a name that is allowed may still lead to an address that is not.
   */
  readonly explain: (target: string) => Effect.Effect<Explanation, SandboxError>
  /** The latest 200 attempts, the oldest first, whether or not an execution was running. */
  readonly attempts: Effect.Effect<ReadonlyArray<NetworkAttempt>>
}
