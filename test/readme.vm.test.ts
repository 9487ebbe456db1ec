/** The programs in the Markdown files run in real VMs and do what the text around them says. */
import { afterAll, assert, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { execFile } from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import { promisify } from "node:util"
import type { Request } from "../src/Execution.ts"
import { Sandbox } from "../src/Sandbox.ts"
import type { Session } from "../src/Session.ts"
import { fileOf, programs, writePrograms } from "./support/markdown.ts"
import { layerAt } from "./support/snapshots.ts"

const here = process.cwd()
const directory = writePrograms()
// The programs write the files that they copy out of a VM to the current directory.
process.chdir(directory)
afterAll(() => {
  process.chdir(here)
  fs.rmSync(directory, { recursive: true })
})

/** The export of that name of a program; it runs on the layer that the tests share. */
const exported = <A>(name: string): Effect.Effect<A> =>
  Effect.promise(
    async () => ((await import(path.join(directory, fileOf(name)))) as { readonly [name: string]: A })[name] as A
  )

const run = (name: string): Effect.Effect<unknown, unknown, Sandbox> =>
  Effect.flatten(exported<Effect.Effect<unknown, unknown, Sandbox>>(name))

// The programs' snapshots are not stored with the user's.
layer(layerAt(directory), { excludeTestServices: true, timeout: "240 seconds" })("programs", (it) => {
  it.effect("README.md: the first one prints the product and how its VM was obtained", () =>
    Effect.gen(function* () {
      const first = programs.find(({ document }) => document === "README.md")
      const file = path.join(directory, first?.file ?? "")
      const { stdout } = yield* Effect.promise(() => promisify(execFile)(process.execPath, [file]))
      assert.match(stdout, /^42\n .*kind: '(restore|boot)'/s)
    })
  )

  it.effect("README.md: the agent's loop handles each of the five error channels", () =>
    Effect.gen(function* () {
      const answer =
        yield* exported<(session: Session, request: Request) => Effect.Effect<string, { reason: { _tag: string } }>>(
          "answer"
        )
      const scope = yield* Scope.make()
      const sandbox = yield* Sandbox
      const session = yield* Scope.provide(sandbox.session({ limits: { timeMs: 5000 } }), scope)
      const bash = (code: string) => answer(session, { language: "bash", code, limits: { timeMs: 2000 } })
      assert.deepStrictEqual(yield* Effect.forEach(["echo 1", "exit 3", "no-such", "sleep 9"], bash), [
        "it printed 1\n",
        "fix it: task failed with exit code 3",
        "do without the command no-such",
        "use less time: the limit is 2000"
      ])
      assert.match(
        yield* answer(session, { language: "python", code: "open('/etc/shadow')" }),
        /^do not use \/etc\/shadow,/
      )
      yield* Scope.close(scope, Exit.void)
      assert.strictEqual((yield* Effect.flip(bash("true"))).reason._tag, "SessionClosed")
    })
  )

  it.effect("sessions: state, files, changed files", () =>
    Effect.gen(function* () {
      const counted = yield* run("counted")
      assert.deepInclude(counted, { result: { repr: "42", json: 42 } })
      assert.strictEqual(yield* run("files"), "nothing there")
      assert.strictEqual(fs.readFileSync(path.join(directory, "sorted/sorted.txt"), "utf8"), "2\n1\n")
      const changed = (yield* run("changed")) as { readonly files: unknown; readonly patch: string }
      assert.deepStrictEqual(changed.files, ["deleted /home/user/.profile", "modified /home/user/numbers"])
      assert.include(changed.patch, "@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n")
    })
  )

  it.effect("the network: a policy is changed and explained", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* run("explained"), { decision: "deny", tried: [] })
    })
  )

  it.effect("VMs: parked, saved and forked", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* run("patient"), { parked: true, answer: 42, woke: true })
      const { saved, winner } = (yield* run("tried")) as {
        readonly saved: { readonly name: string }
        readonly winner: { readonly value?: unknown }
      }
      assert.deepStrictEqual([saved.name, winner.value], ["loaded", "499500"])
    })
  )
})
