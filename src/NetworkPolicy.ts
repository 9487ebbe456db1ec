/**
 * NetworkPolicy: what a session may reach. A guest has no network device; the host decides about every connection of its
 * programs, by name, and makes it.
 *
 * Under every policy, addresses that are private, loopback, link-local, a cloud's metadata, a carrier's, reserved or the
 * host's own are refused unless a rule grants the address itself; that is checked again after a name was resolved.
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
 * A rule: which host may be reached, by which port (1 to 65,535; 443 and 80 when it has none).
 *
 * - `example.com`, `example.com:8443`: exactly this host. Case, a trailing dot and Unicode make no difference.
 * - `*.example.com`: every host below it, not `example.com` itself.
 * - `93.184.216.34`, `10.1.0.0/16:5432`, `[fd00::1]:443`: addresses. A guest reaches them by address, or by a name that
 *   another rule grants; a name with a private address needs both.
 * - `host:5432`: this port on the host's loopback, which the guest reaches by the name `host`.
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
 * A connection that the rules do not decide: `host` (a name or an IP address) and `port`. `target` is both in one text.
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
 * The answer to a question. `reason` is recorded in the session's attempts.
 *
 * @since 0.1.0
 * @category models
 */
export interface Answer {
  readonly allow: boolean
  readonly reason: string
}

/**
 * Decides about connections that no rule grants, within `askMs`. It is called once for each host and port of a session, and
 * again after the policy was changed. A late answer and a failure refuse the connection. It can grant a name, but never a
 * name's private address.
 *
 * @since 0.1.0
 * @category models
 */
export type Ask = (question: Question) => Effect.Effect<Answer>

const Ask = Schema.declare((value): value is Ask => typeof value === "function", { expected: "a function" })

/**
 * An ecosystem with registries: `python` (pip and uv) or `javascript` (npm). Debian's mirrors are not among them, because a
 * session's programs do not run as root and could not install from there.
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
 * - `Allow`: what `rules` grant; an empty list grants nothing. `ask` can decide the rest, within `askMs` (ms, 1 to 600,000,
 *   default 30,000).
 * - `Packages`: the registries of some ecosystems, and what `rules` grant. They are those that this host's pip, uv and npm are
 *   configured for (environment and configuration files, else their defaults), and the hosts where these registries keep
 *   their files. The guest's tools are configured alike, without credentials. A configured registry may have a private
 *   address, and one on this host's loopback is reached by the name `host`.
 * - `All`: every public host and port, and the private addresses that `rules` grant.
 *
 * A refused connect fails at once with ENETUNREACH, as with `None`. A granted one that fails on the host fails alike in the
 * guest, with ECONNREFUSED or EHOSTUNREACH.
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
 * The environment variables that configure an HTTP proxy for granted connections: HTTPS_PROXY (HTTP_PROXY for port 80),
 * ALL_PROXY and NO_PROXY, in upper or lower case. The proxy is used through CONNECT. By default there is none, unless this
 * process's variable EXEC_SANDBOX_PROXY is `environment`: then its own environment is used.
 *
 * You must opt in, because **a proxy weakens the guard**: the policy still decides by name, but the proxy resolves the name, so
 * this host does not see the address. Literal addresses, and names for which this host itself finds a private address, are
 * checked as without a proxy; a name that only the proxy can resolve, or that it resolves to another address, may lead to
 * whatever the proxy allows. Do not use it with `All`, or with domains whose DNS others control, where the proxy reaches what
 * the code must not.
 *
 * Proxies must have an `http://` URL, with or without `USER:PASSWORD@`. When the proxy refuses, the connect fails with
 * EHOSTUNREACH, and the attempt's reason is the proxy's answer.
 *
 * @since 0.1.0
 * @category references
 */
export const ProxyEnvironment = Context.Reference<{ readonly [name: string]: string | undefined } | undefined>(
  "exec-sandbox/NetworkPolicy/ProxyEnvironment",
  { defaultValue: () => (process.env["EXEC_SANDBOX_PROXY"] === "environment" ? process.env : undefined) }
)

/**
 * What a policy decides about a target: `allow`, `deny` or `ask`; the `rule` that decides (a rule of the policy, the policy's
 * name, or why the target is refused); and in `grant` what would allow it (`null` when it is allowed, or nothing would).
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
  /** The current policy. */
  readonly policy: Effect.Effect<NetworkPolicy>
  /** Changes the policy for all new connections, and cuts off open ones that it does not grant. */
  readonly update: (policy: NetworkPolicy) => Effect.Effect<void, SandboxError>
  /**
   * Explains what the policy decides about `HOST` (port 443) or `HOST:PORT`, without connecting, resolving or calling `ask`:
   * an allowed name may still resolve to an address that is refused.
   */
  readonly explain: (target: string) => Effect.Effect<Explanation, SandboxError>
  /** The latest 200 attempts to connect, the oldest first, whether or not an execution was running. */
  readonly attempts: Effect.Effect<ReadonlyArray<NetworkAttempt>>
}
