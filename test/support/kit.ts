/** What tests of the test kit share. */
import { assert } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import { TestClock } from "effect/testing"
import type { Sandbox } from "../../src/Sandbox.ts"
import type { SandboxError } from "../../src/SandboxError.ts"
import type { Snapshots } from "../../src/Snapshot.ts"
import * as Testing from "../../src/Testing.ts"

export const python = (code: string) => ({ language: "python", code }) as const

/** Runs a test with a new kit. */
export const kit =
  (options: Testing.Options) =>
  <A, E>(effect: Effect.Effect<A, E, Sandbox | Snapshots | Testing.Machines | Scope.Scope>) =>
    effect.pipe(Effect.provide(Testing.layer(options)), Effect.scoped)

/** The reason of a failure of the sandbox. */
export const reason = (error: unknown): SandboxError["reason"] => {
  assert.strictEqual((error as SandboxError)._tag, "SandboxError", String(error))
  return (error as SandboxError).reason
}

/** The `kind` of a `SnapshotFailed`, or the tag of another reason. */
export const kindOf = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.flip(effect), (error) => {
    const found = reason(error)
    return found._tag === "SnapshotFailed" ? found.kind : found._tag
  })

/** Advances the test's clock until a fibre has ended. */
export const joined = <A, E>(fiber: Fiber.Fiber<A, E>, seconds: number) =>
  Effect.gen(function* () {
    let passed = 0
    for (; fiber.pollUnsafe() === undefined && passed < seconds; passed++) yield* TestClock.adjust("1 second")
    assert.isDefined(fiber.pollUnsafe(), `not done after ${passed} s`)
    return { value: yield* Fiber.join(fiber), passed }
  })
