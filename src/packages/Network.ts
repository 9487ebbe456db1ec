/** The network of package tools while they install: the registries that the host's tools are configured for, and nothing else. */
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import * as Egress from "../egress/Egress.ts"
import { Finder, type Registries } from "../egress/Registries.ts"
import { defaults } from "../Limits.ts"
import { packages } from "../NetworkPolicy.ts"
import type { Ecosystem } from "../Packages.ts"
import type { SandboxError } from "../SandboxError.ts"
import type { Vm } from "../Vm.ts"
import { Mirror } from "../internal/DebianMirror.ts"

/** The part of a machine that installing needs. */
export type Installer = Pick<Vm, "open" | "accept" | "handover">

const registriesOf = (ecosystems: ReadonlyArray<Ecosystem>): Effect.Effect<Registries> =>
  Effect.gen(function* () {
    const mirror = ecosystems.includes("debian") ? yield* yield* Mirror : undefined
    return (yield* Finder)(
      ecosystems.filter((it) => it !== "debian"),
      mirror
    )
  })

/**
 * An addition to the error of a refused installation: this host has credentials that the border cannot put in. `undefined`
 * when it has none.
 */
export const withheld = (ecosystems: ReadonlyArray<Ecosystem>): Effect.Effect<string | undefined> =>
  Effect.map(registriesOf(ecosystems), ({ withheld }) =>
    withheld.length === 0
      ? undefined
      : `this host's credentials for ${withheld.join(", ")} are not given to the machine that installs packages`
  )

/** Runs an effect while the machine can reach the registries, with `memoryMiB` for its tools. */
export const during = <A, E>(
  vm: Installer,
  ecosystems: ReadonlyArray<Ecosystem>,
  memoryMiB: number,
  effect: Effect.Effect<A, E>
): Effect.Effect<A, E | SandboxError> =>
  Effect.gen(function* () {
    const policy = packages([])
    const registries = yield* registriesOf(ecosystems)
    const { credentials, env } = registries.trusted
    const secrets = credentials.map(({ host, value }, n) => {
      return [`REGISTRY_${n}`, { value: Redacted.make(value), hosts: [host], header: "authorization" }] as const
    })
    // Tools only read, and only from the registries: nothing else is sent with a credential, whatever asks for it.
    const below = Object.fromEntries(credentials.map((it, n) => [`REGISTRY_${n}`, it.below]))
    const egress = yield* Effect.provideService(
      Egress.make(policy, yield* Egress.bindSecrets(Object.fromEntries(secrets), below)),
      Finder,
      () => registries
    )
    vm.accept(egress.accept)
    /** A setting with the placeholders in it. */
    const filled = (text: string): string =>
      credentials.reduce(
        (all, { standIn }, n) => all.replaceAll(standIn, egress.placeholders[`REGISTRY_${n}`] ?? ""),
        text
      )
    const own = Object.fromEntries(Object.entries(env).map(([name, text]) => [name, filled(text)]))
    const given = egress.grant(policy)
    const network = given === null ? null : { ...given, env: { ...given.env, ...own } }
    const identity = { hostname: "template", env: {}, limits: { ...defaults, memoryMiB } }
    yield* vm.handover({ ...identity, network }, "build")
    const result = yield* effect
    // This ends the placeholders, and the trust in their authority.
    yield* vm.handover({ ...identity, network: { authorities: "", env: {} } }, "build")
    return result
  }).pipe(Effect.scoped)
