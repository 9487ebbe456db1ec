/** One store, several processes. */
import { assert, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import * as TemplateStore from "../../src/vm/MachineStore.ts"

/** Makes a small machine of each key, again and again. */
const program = (store: string, keys: ReadonlyArray<string>, times: number): string => `
  import * as Effect from "effect/Effect"
  import * as fs from "node:fs"
  import * as TemplateStore from ${JSON.stringify(new URL("../../src/vm/MachineStore.ts", import.meta.url).href)}
  const store = TemplateStore.make(${JSON.stringify(store)})
  const make = (key) => Effect.gen(function* () {
    const work = yield* store.workDirectory
    for (const file of Object.values(TemplateStore.filesIn(work))) fs.writeFileSync(file, key.repeat(1000))
    yield* store.keep(work, { key, image: "i", qemu: "q", accelerator: "tcg", memoryMiB: 1, createdAt: "2020" })
  }).pipe(Effect.scoped)
  const keys = ${JSON.stringify(keys)}
  for (let n = 0; n < ${times}; n++) for (const key of keys) {
    await Effect.runPromise(make(key))
    if (n % 3 === 0) await Effect.runPromise(store.discard(key))
    if (n % 5 === 0) await Effect.runPromise(store.prune(0))
  }`

it.live(
  "two processes that make, remove and evict what a third lists: it sees whole ones, or none",
  () =>
    Effect.gen(function* () {
      const directory = fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-store-"))
      yield* Effect.addFinalizer(() => Effect.sync(() => fs.rmSync(directory, { recursive: true })))
      const store = TemplateStore.make(directory)
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
          // Whoever looks file by file may see it go or be made anew meanwhile; a half-written one is never seen.
          assert.notMatch(problem ?? "", /is not what was sealed/)
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
