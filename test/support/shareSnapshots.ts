/**
 * Another process with the same snapshots: it starts a session from one that the test took, and takes one itself on request.
 * Each line of its stdin starts a step, each line of its stdout is the result of one.
 */
import * as Effect from "effect/Effect"
import * as readline from "node:readline"
import { Sandbox } from "../../src/Sandbox.ts"
import { SandboxError } from "../../src/SandboxError.ts"
import { Snapshots } from "../../src/Snapshot.ts"
import { layerAt } from "./snapshots.ts"

const [directory = "", from = ""] = process.argv.slice(2)
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const nextStep = Effect.promise(() => lines.next())
const say = (line: string) => Effect.sync(() => process.stdout.write(`${line}\n`))

const program = Effect.gen(function* () {
  const { list, verify } = yield* Snapshots
  const names = Effect.map(list, (all) =>
    all
      .map(({ name }) => name)
      .sort()
      .join(" ")
  )
  const session = yield* Sandbox.use((sandbox) => sandbox.session({ from, limits: { memoryMiB: 128 } }))
  const run = (code: string) => Effect.map(session.exec({ language: "python", code }), ({ stdout }) => stdout.trim())
  yield* say(`${yield* names}: ${yield* run("x += 1; print(x)")}`)
  yield* nextStep
  yield* say(
    yield* Effect.match(session.snapshot({ name: "both" }), {
      onSuccess: () => "took it",
      onFailure: ({ reason }) => (reason._tag === "SnapshotFailed" ? reason.kind : reason.message)
    })
  )
  yield* nextStep
  const found = yield* Effect.match(verify("both"), {
    onSuccess: (problem) => problem ?? "whole",
    onFailure: (error) => (error instanceof SandboxError ? error.message : String(error))
  })
  yield* say(`${yield* names}: ${yield* run("print(x)")}, ${found}`)
})

await Effect.runPromise(Effect.scoped(Effect.provide(program, layerAt(directory))))
process.exit(0)
