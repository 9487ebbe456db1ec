/** A store that several processes use. */
import { assert, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import * as MachineStore from "../../src/vm/MachineStore.ts"

/** A program that stores a small machine under each key, several times. */
const program = (store: string, keys: ReadonlyArray<string>, times: number): string => `
  import * as Effect from "effect/Effect"
  import * as fs from "node:fs"
  import * as MachineStore from ${JSON.stringify(new URL("../../src/vm/MachineStore.ts", import.meta.url).href)}
  const store = MachineStore.make(${JSON.stringify(store)})
  const make = (key) => Effect.gen(function* () {
    const work = yield* store.workDirectory
    for (const file of Object.values(MachineStore.filesIn(work))) fs.writeFileSync(file, key.repeat(1000))
    yield* store.commit(work, { key, image: "i", qemu: "q", accelerator: "tcg", memoryMiB: 1, createdAt: "2020" })
  }).pipe(Effect.scoped)
  const keys = ${JSON.stringify(keys)}
  for (let n = 0; n < ${times}; n++) for (const key of keys) {
    await Effect.runPromise(make(key))
    if (n % 3 === 0) await Effect.runPromise(store.discard(key))
    if (n % 5 === 0) await Effect.runPromise(store.prune(0))
  }`

it.live(
  "a process that lists while two others store, remove and evict sees only complete machines",
  () =>
    Effect.gen(function* () {
      const directory = fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-store-"))
      yield* Effect.addFinalizer(() => Effect.sync(() => fs.rmSync(directory, { recursive: true })))
      const store = MachineStore.make(directory)
      const ends: Array<readonly [code: number | null, said: string]> = []
      const children = [["a", "b"], ["c"]].map((keys) => {
        const child = spawn(process.execPath, ["--input-type=module", "-e", program(directory, keys, 20)], {
          cwd: path.dirname(new URL(import.meta.url).pathname),
          stdio: ["ignore", "ignore", "pipe"]
        })
        let said = ""
        child.stderr.on("data", (text: Buffer) => (said += text.toString()))
        child.once("close", (code) => ends.push([code, said]))
        return child
      })
      yield* Effect.addFinalizer(() => Effect.sync(() => children.forEach((child) => child.kill("SIGKILL"))))
      let seen = 0
      while (ends.length < children.length) {
        for (const { bytes, key } of store.list()) {
          seen++
          assert.isAbove(bytes, 0)
          const problem = yield* store.verify(key)
          // It may be removed or stored again while its files are checked, but it is never half-written.
          assert.notMatch(problem ?? "", /does not match its hash/)
          yield* store.discard(store.list().length > 2 ? key : "none")
        }
        yield* Effect.yieldNow
        yield* Effect.sleep("1 millis")
      }
      assert.deepStrictEqual(ends, [
        [0, ""],
        [0, ""]
      ])
      assert.isAbove(seen, 10)
      yield* store.prune(0)
      assert.deepStrictEqual(fs.readdirSync(directory), [])
    }).pipe(Effect.scoped),
  60_000
)
