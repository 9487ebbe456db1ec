/** Clones of one template start identical; these tests show that the handover makes everything random or unique differ. */
import { assert, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Sandbox } from "../../src/Sandbox.ts"
import { codes, ofTheMachine, values } from "../support/generators.ts"

/** Runs code twice in a fresh clone and returns the random or unique values that each run shows. */
const fresh = (language: "python" | "javascript" | "bash", code: string) =>
  Effect.gen(function* () {
    const session = yield* Sandbox.use((sandbox) => sandbox.session())
    const first = yield* session.exec({ language, code })
    const second = yield* session.exec({ language, code })
    const read = (result: typeof first) => values(language, language === "bash" ? result.stdout : result.result?.json)
    return [read(first), read(second)] as const
  }).pipe(Effect.scoped)

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("Clones", (it) => {
  for (const language of ["python", "javascript", "bash"] as const) {
    it.effect(`${language}: no random value repeats within a clone or between three clones`, () =>
      Effect.gen(function* () {
        const clones = yield* Effect.forEach([1, 2, 3], () => fresh(language, codes[language]), { concurrency: 2 })
        for (const name of Object.keys(clones[0]?.[0] ?? {})) {
          const seen = clones.flatMap(([first, second]) =>
            ofTheMachine.has(name) ? [first[name]] : [first[name], second[name]]
          )
          assert.isTrue(
            seen.every((value) => value !== undefined && value !== "" && value !== null),
            name
          )
          assert.strictEqual(new Set(seen).size, seen.length, `${name}: ${JSON.stringify(seen)}`)
        }
        assert.isAtLeast(Object.keys(clones[0]?.[0] ?? {}).length, 8)
      })
    )
  }

  it.effect("the wall clock differs from the host's by less than a second, in every interpreter", () =>
    Effect.gen(function* () {
      const session = yield* Sandbox.use((sandbox) => sandbox.session())
      const codes = [
        ["python", "import time\nprint(time.time())"],
        ["javascript", "console.log(Date.now() / 1000)"],
        ["bash", "echo $EPOCHREALTIME"]
      ] as const
      for (const [language, code] of codes) {
        const before = Date.now() / 1000
        const { stdout } = yield* session.exec({ language, code })
        const after = Date.now() / 1000
        assert.isAtLeast(Number(stdout), before - 1, language)
        assert.isAtMost(Number(stdout), after + 1, language)
      }
    }).pipe(Effect.scoped)
  )
})
