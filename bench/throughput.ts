/**
 * Many runs at once: how many per second, how long each takes, and how many fail, compared with the floor: the same number of bare
 * restores at once on the same cores.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { Sandbox } from "../src/Sandbox.ts"
import type { Measurement } from "./Measure.ts"
import { floor } from "./start.ts"

const suite = "throughput"

/** `atOnce`: how many runs there are at the same time, a number per row. A row has `each` runs for every one of these. */
export const measure = (atOnce: ReadonlyArray<number>, each: number) =>
  Effect.gen(function* () {
    const sandbox = yield* Sandbox
    const measurements: Array<Measurement> = []
    for (const width of atOnce) {
      const runs = width * each
      const low = yield* floor("python", "print(1)", runs, { parallel: width })
      const lowMs = low.at(-1) ?? Number.NaN
      const took: Array<number> = []
      let failures = 0
      const one = Effect.gen(function* () {
        const begun = performance.now()
        const exit = yield* Effect.exit(sandbox.run({ language: "python", code: "print(1)" }))
        if (Exit.isSuccess(exit) && exit.value.stdout === "1\n") took.push(performance.now() - begun)
        else failures++
      })
      const started = performance.now()
      yield* Effect.forEach(Array.from({ length: runs }), () => one, { concurrency: width, discard: true })
      const seconds = (performance.now() - started) / 1000
      const bare = `${width} at once: floor`
      measurements.push(
        { suite, name: `${bare}, each`, samples: low.slice(0, -1) },
        { suite, name: `${width} at once: each`, samples: took, floor: `${bare}, each` },
        { suite, name: bare, samples: [runs / (lowMs / 1000)], unit: "runs/s" },
        { suite, name: `${width} at once`, samples: [took.length / seconds], unit: "runs/s", floor: bare },
        { suite, name: `${width} at once: failures`, samples: [failures], unit: `of ${runs}` }
      )
    }
    return measurements
  })
