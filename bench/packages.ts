/** A session with pandas: made for the first time, and every time after that beside one without packages. */
import * as Effect from "effect/Effect"
import type { Packages } from "../src/Packages.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { Template } from "../src/Template.ts"
import { type Measurement, repeat } from "./Measure.ts"

const packages: Packages = { python: ["pandas==2.2.3"] }

export const measure = (times: number) =>
  Effect.gen(function* () {
    const sandbox = yield* Sandbox
    const templates = yield* Template
    const asked = "python:pandas==2.2.3"
    const known = (yield* templates.list).some((it) => it.packages?.asked.join() === asked)
    const started = performance.now()
    const entry = yield* templates.warm(512, packages)
    const first = known ? [] : [performance.now() - started]
    const plain = sandbox.run({ language: "python", code: "print(1)" })
    const pandas = sandbox.run(
      { language: "python", code: "import pandas; print(pandas.DataFrame({'a': [1]}).sum().a)" },
      { packages }
    )
    const withPandas = sandbox.run({ language: "python", code: "print(1)" }, { packages })
    const usable = entry.packages?.imported.includes("pandas") === true
    yield* Effect.all([plain, usable ? pandas : withPandas])
    // Taken in turns, so that what else the host does meets all of them.
    const samples: { readonly plain: Array<number>; readonly start: Array<number>; readonly use: Array<number> } = {
      plain: [],
      start: [],
      use: []
    }
    for (let n = 0; n < times; n++) {
      samples.plain.push(...(yield* repeat(1, plain)))
      samples.start.push(...(yield* repeat(1, withPandas)))
      if (usable) samples.use.push(...(yield* repeat(1, pandas)))
    }
    const floor = "run print(1), no packages"
    const measurements: ReadonlyArray<Measurement> = [
      ...(first.length === 0 ? [] : [{ suite: "packages", name: "pandas: the template is made", samples: first }]),
      { suite: "packages", name: floor, samples: samples.plain },
      { suite: "packages", name: "run print(1), with pandas", samples: samples.start, floor },
      ...(usable ? [{ suite: "packages", name: "run import pandas and a sum", samples: samples.use, floor }] : [])
    ]
    return measurements
  })
