/**
 * Egress: the host's part of a session's network. For every connection that the guest asks for it decides, connects, joins the
 * two ends and records the attempt.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberSet from "effect/FiberSet"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type * as net from "node:net"
import { type Explanation, type NetworkPolicy, ProxyEnvironment } from "../NetworkPolicy.ts"
import type { Secrets } from "../Secrets.ts"
import type { Hello } from "./ClientHello.ts"
import * as Authorities from "./Authorities.ts"
import * as Border from "./Border.ts"
import { Dialler } from "./Dial.ts"
import { type Compiled, compile, judge, judgeAddress } from "./Judge.ts"
import * as Ledger from "./Ledger.ts"
import * as Placeholders from "./Placeholders.ts"
import { dialThrough, routes } from "./Proxy.ts"
import * as Questions from "./Questions.ts"
import { fileHosts, Finder, hostPort, type Registries } from "./Registries.ts"
import { elsewhere, type Unfit } from "./RequestHead.ts"
import { bounded, Resolver } from "./Resolver.ts"
import { hostName } from "../network/Rules.ts"
import * as SessionAuthority from "./SessionAuthority.ts"
import * as Splice from "./Splice.ts"
import { hostText, parseHost, type Target } from "../network/Target.ts"

/** The guest's end of a connection that it asks for. */
export interface Asked extends Splice.Peer {
  readonly request: { readonly host: string; readonly port: number }
  readonly note: (event: { readonly event: "connected" | "refused"; readonly errno?: string }) => void
}

export interface Egress {
  readonly accept: (asked: Asked) => Splice.Receiver
  readonly ledger: Ledger.Ledger
  /** Collects attempts from now on; `undefined` while the policy is `None`. */
  readonly watch: () => Ledger.Watch | undefined
  readonly policy: () => NetworkPolicy
  /** What a guest needs for a network under this policy; `null` where it has none. */
  readonly grant: (policy: NetworkPolicy) => Grant | null
  /** Applies the policy to every new connection, and cuts off open ones that it does not grant. */
  readonly update: (policy: NetworkPolicy) => Effect.Effect<void>
  readonly explain: (target: Target) => Effect.Effect<Explanation>
  /** The guest's environment variables for the session's secrets: names and placeholders. */
  readonly placeholders: Readonly<Record<string, string>>
  readonly sessionSecrets: SessionSecrets
}

/** The secrets of a session and its forks. Their guests remember the placeholders and trust the authority. */
export interface SessionSecrets {
  readonly secrets: ReadonlyArray<Placeholders.Bound>
  readonly authority: SessionAuthority.SessionAuthority | undefined
}

/**
 * Gives the secrets of a session placeholders and, if there are any, an authority. `below`: for secrets that are only for
 * reading, the path below which they may be sent.
 */
export const bindSecrets = (given: Secrets, below?: Readonly<Record<string, string>>): Effect.Effect<SessionSecrets> =>
  Effect.map(Clock.Clock, (clock) => {
    const secrets = Placeholders.bind(given, below)
    const authority = secrets.length === 0 ? undefined : SessionAuthority.make(() => clock.currentTimeMillisUnsafe())
    return { secrets, authority }
  })

const nowhere: Registries = { indexes: [], env: {}, trusted: { env: {}, credentials: [] }, withheld: [] }
const noSecrets: SessionSecrets = { secrets: [], authority: undefined }

/** A guest's network settings: certificate authorities (PEM) and environment variables for its programs. */
export interface Grant {
  readonly authorities: string
  readonly env: Readonly<Record<string, string>>
}

/** The most connections of a session that are open or being opened. */
const maxConnections = 256

interface Live {
  readonly entry: Ledger.Entry
  readonly target: Target
  /** The address of the connection; `undefined` where a proxy chose it. */
  readonly address: string | undefined
  /** Whether TLS had to contain the target's name. */
  readonly named: boolean
  readonly cut: (problem: string) => void
}

/** The errno of the guest's connect for an error on the host. */
const errnoOf = (code: string): string => (code === "ECONNREFUSED" ? code : "EHOSTUNREACH")

/** A connect that is refused. */
class Refused {
  readonly explanation: Explanation
  readonly reason: string | null
  constructor(explanation: Explanation, reason: string | null = null) {
    this.explanation = explanation
    this.reason = reason
  }
}

/** Records that a connection is refused after it was made, and returns the reason. */
type Refuse = (refused: Pick<Unfit, "reason" | "grant"> & { readonly rule: string }) => string

/** Refuses TLS whose server name is not the target. */
const serverName =
  (target: Target, refuse: Refuse) =>
  (hello: Hello): string | undefined => {
    // ASCII only: how else the server might read it is unknown.
    const written = hello._tag === "Hello" && hello.name !== null && /^[!-~]*$/.test(hello.name) ? hello.name : ""
    const said = parseHost(written)
    const name = hostText(target.host)
    if (said?.kind === "name" && said.name === name) return undefined
    return refuse({
      rule: "sni",
      grant: `use TLS with the granted name ${name} on port ${target.port}, or grant what it names`,
      reason:
        hello._tag === "Hello"
          ? hello.name === null
            ? "TLS without a server name"
            : `TLS for ${JSON.stringify(hello.name.slice(0, 253))}`
          : hello._tag === "Not"
            ? hello.problem
            : "a truncated ClientHello"
    })
  }

/** Makes the egress of one session; closing the scope cuts off every connection. */
export const make = Effect.fnUntraced(function* (
  first: NetworkPolicy,
  sessionSecrets: SessionSecrets = noSecrets
): Effect.fn.Return<Egress, never, Scope.Scope> {
  const dial = yield* Dialler
  const route = routes(yield* ProxyEnvironment)
  const clock = yield* Clock.Clock
  const { authority, secrets } = sessionSecrets
  const resolve = bounded(yield* Resolver, () => clock.currentTimeMillisUnsafe())
  const fork = yield* FiberSet.makeRuntime<never, void, never>()
  const find = yield* Finder
  const ledger = Ledger.make()
  const live = new Set<Live>()
  let asked = 0
  let compiled: Compiled
  /** Finds out where the registries of a policy keep their files, and grants those hosts. */
  let learn: Effect.Effect<void> = Effect.void
  const registriesOf = (policy: NetworkPolicy): Registries =>
    policy._tag === "Packages" ? find(policy.ecosystems) : nowhere
  const apply = (policy: NetworkPolicy): void => {
    const registries = registriesOf(policy)
    const indexes = registries.indexes.map(({ url }) => hostPort(url))
    const mine = compile(policy, indexes)
    compiled = mine
    learn = Questions.shared(
      fork,
      Effect.map(fileHosts(registries), (files) => {
        // Unless the policy has changed meanwhile.
        if (compiled === mine) compiled = compile(policy, indexes, files)
      })
    )
  }
  compiled = compile(first)
  apply(first)
  /** Counts changes of the policy. */
  let policies = 0
  const questions = Questions.make(fork)
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      for (const it of live) it.cut("the session has ended")
    })
  )

  const decide = (target: Target): Effect.Effect<Explanation> => {
    const { policy } = compiled
    const decision = judge(compiled, target)
    if (decision.decision === "ask" && policy._tag === "Allow") return questions.ask(policy, target)
    if (policy._tag !== "Packages" || decision.rule !== "not-granted") return Effect.succeed(decision)
    return Effect.map(learn, () => judge(compiled, target))
  }

  /** The addresses by which a granted target may be reached. */
  const addressesOf = Effect.fnUntraced(function* (target: Target) {
    const { host } = target
    if (host.kind === "address") return [host.address]
    if (host.name === hostName) return ["127.0.0.1", "::1"]
    const found = yield* resolve(host.name)
    const judged = found.map((address) => [address, judgeAddress(compiled, target, address)] as const)
    const open = judged.filter(([, refused]) => refused === undefined).map(([address]) => address)
    const refused = judged[0]?.[1]
    if (open.length === 0 && refused !== undefined) return new Refused(refused, `it leads to ${judged[0]?.[0]}`)
    return open
  })

  /**
   * Connects through a proxy, which may resolve the name to another address than this host does. A name for which this host
   * finds an address that must not be reached is refused; one that it cannot resolve is left to the proxy.
   */
  const reachThrough = Effect.fnUntraced(function* (target: Target, through: NonNullable<ReturnType<typeof route>>) {
    const { host } = target
    const found =
      host.kind === "name"
        ? yield* Effect.catchTag(resolve(host.name), "Unresolved", () => Effect.succeed<ReadonlyArray<string>>([]))
        : []
    for (const address of found) {
      const refused = judgeAddress(compiled, target, address)
      if (refused !== undefined) return new Refused(refused, `it leads to ${address}`)
    }
    const socket = yield* Effect.result(dialThrough(dial, through.via, target))
    return Result.isSuccess(socket) ? { socket: socket.success, address: undefined } : socket.failure.code
  })

  /** Decides and connects. */
  const reachNow = Effect.fnUntraced(function* (target: Target, entry: Ledger.Entry) {
    const decision = yield* decide(target)
    if (decision.decision !== "allow") return new Refused(decision)
    entry.decision = "allow"
    entry.rule = decision.rule
    const through = route(target)
    if (through !== undefined) return yield* reachThrough(target, through)
    const addresses = yield* addressesOf(target)
    if (addresses instanceof Refused) return addresses
    let problem = "ENOTFOUND"
    for (const address of addresses.slice(0, 4)) {
      const socket = yield* Effect.result(dial(address, target.port))
      if (Result.isSuccess(socket)) return { socket: socket.success, address }
      problem = socket.failure.code
    }
    return problem
  })

  /** Decides and connects, again if the policy has changed meanwhile. */
  const reach = Effect.fnUntraced(function* (target: Target, entry: Ledger.Entry) {
    for (;;) {
      const decided = policies
      const reached = yield* reachNow(target, entry)
      if (typeof reached === "string" || reached instanceof Refused || decided === policies) return reached
      reached.socket.destroy()
    }
  })

  /** Whether TLS must contain the target's name: on port 443, where a name was granted. */
  const mustName = ({ host, port }: Target): boolean =>
    port === 443 && host.kind === "name" && compiled.policy._tag !== "All" && host.name !== hostName

  /** Looks for placeholders in what is not TLS. */
  const watchFor = (target: Target, refuse: Refuse) => {
    if (secrets.length === 0) return undefined
    const scan = Placeholders.scanner(secrets)
    let tls: boolean | undefined
    return (bytes: Uint8Array): string | undefined => {
      tls ??= bytes[0] === 22
      const found = tls ? undefined : scan(bytes)
      return found === undefined ? undefined : refuse(elsewhere(found, target))
    }
  }

  const accept = (peer: Asked): Splice.Receiver => {
    const { host: given, port } = peer.request
    const host = parseHost(given)
    const entry = ledger.open(host === undefined ? given : hostText(host), port)
    const refuse = (errno: string, refused: Refused): void => {
      entry.decision = "deny"
      entry.rule = refused.explanation.rule
      entry.grant = refused.explanation.grant
      entry.reason = refused.reason
      entry.errno = errno
      peer.note({ event: "refused", errno })
      peer.reset("refused", entry.rule)
    }
    const nothing = { data: () => {}, end: () => {}, writable: () => {}, gone: () => {} }
    if (host === undefined || port === 0) {
      refuse("ENETUNREACH", new Refused({ decision: "deny", rule: "invalid-name", grant: null }))
      return nothing
    }
    if (asked >= maxConnections) {
      const grant = `close some of the ${maxConnections} connections that are open`
      refuse("ECONNREFUSED", new Refused({ decision: "deny", rule: "too-many-connections", grant }))
      return nothing
    }
    asked++
    const target: Target = { host, port }
    let splice: Splice.Splice | undefined
    let left = false

    const join = (socket: net.Socket, address: string | undefined): void => {
      const over = (problem: string | undefined): void => {
        live.delete(it)
        asked--
        if (entry.decision === "allow") entry.reason = problem ?? null
      }
      peer.note({ event: "connected" })
      // The agent must be told that a connection which was already made is refused.
      const refuse: Refuse = (refused) => {
        peer.note({ event: "refused", errno: "ECONNRESET" })
        Object.assign(entry, { ...refused, decision: "deny", errno: "ECONNRESET" })
        return refused.reason
      }
      const mine = secrets.filter((it) => Placeholders.isFor(target, it))
      const check = serverName(target, refuse)
      const named = mine.length > 0 || mustName(target)
      const made =
        mine.length === 0 || authority === undefined
          ? Splice.make(socket, peer, entry, named ? check : undefined, over, watchFor(target, refuse))
          : Border.make({
              target,
              socket,
              peer,
              entry,
              over,
              mine,
              refuse,
              others: secrets.filter((it) => !mine.includes(it)),
              identity: () => authority.identity(hostText(target.host)),
              check
            })
      const it: Live = { entry, target, address, named, cut: made.cut }
      live.add(it)
      splice = made
    }

    const connecting = fork(
      reach(target, entry).pipe(
        Effect.catchTag("Unresolved", ({ code }) => Effect.succeed(code)),
        Effect.map((reached) => {
          if (reached instanceof Refused) return refuse("ENETUNREACH", reached)
          if (typeof reached !== "string") {
            if (left) reached.socket.destroy()
            else join(reached.socket, reached.address)
            return
          }
          entry.reason = reached
          peer.note({ event: "refused", errno: errnoOf(reached) })
          peer.reset("refused", reached)
        }),
        Effect.onExit((exit) =>
          Effect.sync(() => {
            if (splice === undefined) asked--
            if (Exit.isSuccess(exit)) return
            entry.reason ??= "given up"
            peer.reset("failed", "given up")
          })
        )
      )
    )
    return {
      data: (bytes) => splice?.data(bytes),
      end: () => splice?.end(),
      writable: () => splice?.writable(),
      gone: () => {
        left = true
        if (splice === undefined) connecting.interruptUnsafe()
        else splice.gone()
      }
    }
  }

  return {
    accept,
    ledger,
    watch: () => (compiled.policy._tag === "None" ? undefined : ledger.watch()),
    policy: () => compiled.policy,
    grant: (policy) => {
      if (policy._tag === "None") return null
      const { authorities, env } = Authorities.grant(authority?.certificate)
      return { authorities, env: { ...env, ...registriesOf(policy).env } }
    },
    update: (policy) =>
      Effect.sync(() => {
        apply(policy)
        policies++
        questions.forget()
        for (const it of live) {
          const allowed =
            judge(compiled, it.target).decision === "allow" &&
            (it.named || !mustName(it.target)) &&
            (it.target.host.kind === "address" ||
              it.target.host.name === hostName ||
              it.address === undefined ||
              judgeAddress(compiled, it.target, it.address) === undefined)
          if (!allowed) it.cut("the session's network policy has changed")
        }
      }),
    explain: (target) => {
      const decision = judge(compiled, target)
      if (compiled.policy._tag !== "Packages" || decision.rule !== "not-granted") return Effect.succeed(decision)
      return Effect.map(learn, () => judge(compiled, target))
    },
    sessionSecrets,
    placeholders: Object.fromEntries(secrets.map(({ name, placeholder }) => [name, placeholder]))
  }
})
