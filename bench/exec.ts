/** A warm execution in a session, in each language. */
import * as Effect from "effect/Effect"
import { Sandbox } from "../src/Sandbox.ts"
import { type Measurement, repeat } from "./Measure.ts"

export const measure = (times: number) =>
  Effect.gen(function* () {
    const session = yield* Sandbox.use((sandbox) => sandbox.session())
    const measurements: Array<Measurement> = []
    for (const [language, code] of [
      ["python", "print(1)"],
      ["javascript", "console.log(1)"],
      ["typescript", "const x: number = 1; console.log(x)"],
      ["bash", "echo 1"]
    ] as const) {
      yield* repeat(10, session.exec({ language, code }))
      const samples = yield* repeat(times, session.exec({ language, code }))
      measurements.push({ suite: "exec", name: `${language}: warm`, samples })
    }
    return measurements
  }).pipe(Effect.scoped)
