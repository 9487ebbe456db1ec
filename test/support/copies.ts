/** What the tests of snapshots, forks and parked sessions share: a snapshot store for each file, and short helpers. */
import { assert } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { Sandbox, type SessionOptions } from "../../src/Sandbox.ts"
import { SandboxError } from "../../src/SandboxError.ts"
import type { Session } from "../../src/Session.ts"
import { layerAt } from "./snapshots.ts"

/** A new snapshot store: the directory that contains it, the store itself, and a layer that removes both at its end. */
export const makeStore = () => {
  const home = fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-snapshots-"))
  const layer = Layer.effectDiscard(
    Effect.addFinalizer(() => Effect.sync(() => fs.rmSync(home, { recursive: true, force: true })))
  ).pipe(Layer.provideMerge(layerAt(home)))
  return { home, store: path.join(home, "snapshots"), layer }
}

/** What unfinished captures and removals have left behind in a store. */
export const leftovers = (store: string): ReadonlyArray<string> =>
  fs.existsSync(store) ? fs.readdirSync(store).filter((name) => /^\.(building|removed)/.test(name)) : []

export const session = (options?: SessionOptions) => Sandbox.use((sandbox) => sandbox.session(options))

const stdoutOf = (language: "python" | "bash" | "javascript") => (it: Session, code: string) =>
  Effect.map(it.exec({ language, code }), ({ stdout }) => stdout)
export const python = stdoutOf("python")
export const bash = stdoutOf("bash")
export const javascript = stdoutOf("javascript")

/** The reason of an effect that must fail with `SandboxError`. */
export const failureOf = <A, R>(effect: Effect.Effect<A, unknown, R>) =>
  Effect.map(Effect.flip(effect), (error) => {
    assert.instanceOf(error, SandboxError)
    return (error as SandboxError).reason
  })

/** The kind of an effect that must fail with `SnapshotFailed`. */
export const kindOf = <A, R>(effect: Effect.Effect<A, unknown, R>) =>
  Effect.map(failureOf(effect), (reason) => {
    assert.strictEqual(reason._tag, "SnapshotFailed", reason.message)
    return reason._tag === "SnapshotFailed" ? reason.kind : undefined
  })
