/** What package tools reach while they install: the registries that the host's own are told to use, and nothing else. */
import * as Effect from "effect/Effect"
import * as Egress from "../egress/Egress.ts"
import { Finder } from "../egress/Registries.ts"
import { defaults } from "../Limits.ts"
import { packages } from "../NetworkPolicy.ts"
import type { Ecosystem } from "../Packages.ts"
import type { SandboxError } from "../SandboxError.ts"
import type { Vm } from "../Vm.ts"

/** What installing needs of a machine. */
export type Installer = Pick<Vm, "open" | "accept" | "handover">

/**
 * What is to be said beside a registry's refusal: that this host has credentials which a guest is not given. `undefined` when it
 * has none.
 */
export const withheld = (ecosystems: ReadonlyArray<Ecosystem>): Effect.Effect<string | undefined> =>
  Effect.map(Finder, (find) => {
    const { withheld } = find(ecosystems)
    return withheld.length === 0
      ? undefined
      : `this host's credentials for ${withheld.join(", ")} are not given to the machine that installs packages`
  })

/** Runs something while the machine can reach the registries; it has `memoryMiB` for it. */
export const during = <A, E>(
  vm: Installer,
  ecosystems: ReadonlyArray<Ecosystem>,
  memoryMiB: number,
  effect: Effect.Effect<A, E>
): Effect.Effect<A, E | SandboxError> =>
  Effect.gen(function* () {
    const policy = packages(ecosystems)
    const way = yield* Egress.make(policy)
    vm.accept(way.accept)
    const identity = { hostname: "template", env: {}, limits: { ...defaults, memoryMiB } }
    yield* vm.handover({ ...identity, network: way.grant(policy) }, "build")
    const result = yield* effect
    yield* vm.handover({ ...identity, network: null }, "build")
    return result
  }).pipe(Effect.scoped)
