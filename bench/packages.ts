/**
 * A session with a package: the first time, which makes its template, and later times, compared with a session without packages.
 * The package is pandas, or in a short run, because pandas takes minutes, a small one in pure Python.
 */
import * as Effect from "effect/Effect"
import type { Packages } from "../src/Packages.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { Template } from "../src/Template.ts"
import { type Measurement, repeat } from "./Measure.ts"

const large = {
  name: "pandas",
  spec: "pandas==2.2.3",
  use: "import pandas; print(pandas.DataFrame({'a': [1]}).sum().a)",
  what: "a sum"
}
const small = { name: "six", spec: "six==1.17.0", use: "import six; print(six.PY3)", what: "a constant" }

export const measure = (times: number, short: boolean) =>
  Effect.gen(function* () {
    const sandbox = yield* Sandbox
    const templates = yield* Template
    const { name, spec, use, what } = short ? small : large
    const packages: Packages = { python: [spec] }
    const known = (yield* templates.list).some((it) => it.packages?.asked.join() === `python:${spec}`)
    const started = performance.now()
    const entry = yield* templates.warm(512, packages)
    const first = known ? [] : [performance.now() - started]
    const plain = sandbox.run({ language: "python", code: "print(1)" })
    const using = sandbox.run({ language: "python", code: use }, { packages })
    const withPackage = sandbox.run({ language: "python", code: "print(1)" }, { packages })
    const usable = entry.packages?.imported.includes(name) === true
    yield* Effect.all([plain, usable ? using : withPackage])
    // In turns, so that other load on the host affects all of them.
    const samples: { readonly plain: Array<number>; readonly start: Array<number>; readonly use: Array<number> } = {
      plain: [],
      start: [],
      use: []
    }
    for (let n = 0; n < times; n++) {
      samples.plain.push(...(yield* repeat(1, plain)))
      samples.start.push(...(yield* repeat(1, withPackage)))
      if (usable) samples.use.push(...(yield* repeat(1, using)))
    }
    const floor = "run print(1), no packages"
    const measurements: ReadonlyArray<Measurement> = [
      ...(first.length === 0 ? [] : [{ suite: "packages", name: `${name}: the template is made`, samples: first }]),
      { suite: "packages", name: floor, samples: samples.plain },
      { suite: "packages", name: `run print(1), with ${name}`, samples: samples.start, floor },
      ...(usable ? [{ suite: "packages", name: `run import ${name} and ${what}`, samples: samples.use, floor }] : [])
    ]
    if (short) yield* Effect.sync(() => console.log(`packages: ${name}; the long run has ${large.name}\n`))
    return measurements
  })
