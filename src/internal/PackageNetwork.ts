/** What package tools reach while they install: the registries that the host's own are told to use, and nothing else. */
import * as Effect from "effect/Effect"
import * as Egress from "../egress/Egress.ts"
import { defaults } from "../Limits.ts"
import { packages } from "../NetworkPolicy.ts"
import type { Ecosystem } from "../Packages.ts"
import type { SandboxError } from "../SandboxError.ts"
import type { Vm } from "../Vm.ts"

/** Runs something while the machine can reach the registries; it has `memoryMiB` for it. */
export const during = <A, E>(
  vm: Vm,
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
