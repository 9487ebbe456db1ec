/** Executions of one language run one at a time, in order; those of different languages run side by side. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { Language } from "../../src/Execution.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { executing, fresh, session, stdout } from "../support/executions.ts"

const append: Record<Language, (n: number) => string> = {
  python: (n) =>
    `import time\nwith open('/tmp/log', 'a') as f: f.write('<${n}')\ntime.sleep(0.02)\nwith open('/tmp/log', 'a') as f: f.write('>')`,
  javascript: (n) =>
    `fs = require('fs'); fs.appendFileSync('/tmp/log', '<${n}'); await new Promise((r) => setTimeout(r, 20)); fs.appendFileSync('/tmp/log', '>')`,
  typescript: (n) =>
    `fs = require('fs'); fs.appendFileSync('/tmp/log', '<${n}' as string); await new Promise((r) => setTimeout(r, 20)); fs.appendFileSync('/tmp/log', '>')`,
  bash: (n) => `printf '<${n}' >>/tmp/log; sleep 0.02; printf '>' >>/tmp/log`
}

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("order", (it) => {
  describe("14: order", () => {
    for (const [name, languages] of [
      ["python", ["python"]],
      ["javascript and typescript, which share one interpreter", ["javascript", "typescript"]],
      ["bash", ["bash"]]
    ] as const) {
      it.effect(`${name}: first come, first served, one at a time`, () =>
        Effect.gen(function* () {
          const exec = yield* fresh
          const fibers = yield* Effect.forEach([0, 1, 2, 3, 4, 5, 6, 7], (n) => {
            const language: Language = languages[n % languages.length] ?? languages[0]
            return Effect.forkChild(exec(language, append[language](n)), { startImmediately: true })
          })
          const ends = yield* Effect.forEach(fibers, (fiber) => Fiber.join(fiber))
          assert.strictEqual(yield* stdout(exec("bash", "cat /tmp/log")), "<0><1><2><3><4><5><6><7>")
          assert.deepStrictEqual(
            ends.map((it) => it.receipt.sequence),
            [1, 2, 3, 4, 5, 6, 7, 8]
          )
          const waits = ends.map((it) => it.receipt.timing.queueMs ?? -1)
          assert.isAbove(waits[7] ?? 0, waits[0] ?? Infinity)
        }).pipe(Effect.scoped)
      )
    }

    it.effect("files are read and programs run while every interpreter is busy", () =>
      Effect.gen(function* () {
        const it = yield* session()
        const exec = executing(it)
        const busy = yield* Effect.forEach(
          [
            [
              "python",
              "import os, time\nopen('/tmp/p', 'w').close()\nwhile not os.path.exists('/tmp/go'): time.sleep(0.02)"
            ],
            [
              "javascript",
              "const { existsSync } = require('fs'); while (!existsSync('/tmp/go')) await new Promise((r) => setTimeout(r, 20))"
            ],
            ["bash", "touch /tmp/b; until [ -e /tmp/go ]; do sleep 0.02; done"]
          ] as const,
          ([language, code]) => Effect.forkChild(exec(language, code), { startImmediately: true })
        )
        yield* it.run("until [ -e /tmp/p ] && [ -e /tmp/b ]; do sleep 0.02; done; echo -n busy >/tmp/state")
        assert.strictEqual(yield* it.files.readText("/tmp/state"), "busy")
        assert.isTrue(busy.every((fiber) => fiber.pollUnsafe() === undefined))
        yield* it.files.write("/tmp/go", "")
        yield* Effect.forEach(busy, (fiber) => Fiber.join(fiber))
      }).pipe(Effect.scoped)
    )

    it.effect("different interpreters run side by side: each waits for the others to be running", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const ends = yield* Effect.all(
          [
            exec(
              "python",
              "import os, time\nopen('/tmp/p', 'w').close()\nwhile not (os.path.exists('/tmp/j') and os.path.exists('/tmp/b')): time.sleep(0.01)\nprint('p')"
            ),
            exec(
              "javascript",
              "const { existsSync: is, writeFileSync } = require('fs'); writeFileSync('/tmp/j', ''); while (!(is('/tmp/p') && is('/tmp/b'))) await new Promise((r) => setTimeout(r, 10)); console.log('j')"
            ),
            exec("bash", "touch /tmp/b; until [ -e /tmp/p ] && [ -e /tmp/j ]; do sleep 0.01; done; echo b")
          ],
          { concurrency: "unbounded" }
        )
        assert.deepStrictEqual(
          ends.map((it) => it.stdout),
          ["p\n", "j\n", "b\n"]
        )
      }).pipe(Effect.scoped)
    )
  })
})
