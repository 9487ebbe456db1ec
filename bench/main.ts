/**
 * `npm run bench`, `exec-sandbox bench`: measures this host and prints p50, p95 and p99, compared with the floor.
 *
 * `--short` takes few samples, and skips packages unless named; `--only SUITE,…` runs some of the suites; `--results FILE` writes
 * all samples with the conditions of the run; `--svg FILE` draws them; `--compare last|COMMIT|FILE` compares with an earlier run.
 * Every run is appended to a history, `--history FILE` or `bench.jsonl` in the cache directory.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { parseArgs } from "node:util"
import { version } from "../src/cli/version.ts"
import { Host } from "../src/Host.ts"
import { Image } from "../src/Image.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { layer as snapshots } from "../src/Snapshot.ts"
import { Template } from "../src/Template.ts"
import * as cli from "./cli.ts"
import { compare, comparison } from "./compare.ts"
import * as egress from "./egress.ts"
import * as exec from "./exec.ts"
import * as files from "./files.ts"
import * as fork from "./fork.ts"
import * as History from "./History.ts"
import { type Measurement, table } from "./Measure.ts"
import * as memory from "./memory.ts"
import { picture } from "./picture.ts"
import * as programs from "./process.ts"
import * as packages from "./packages.ts"
import * as park from "./park.ts"
import * as output from "./output.ts"
import * as pool from "./pool.ts"
import * as ports from "./ports.ts"
import * as start from "./start.ts"
import * as template from "./template.ts"
import * as throughput from "./throughput.ts"

const wrong = (problem: string): never => {
  console.error(`bench: ${problem}`)
  process.exit(2)
}

const parse = () => {
  try {
    return parseArgs({
      options: {
        short: { type: "boolean", default: false },
        only: { type: "string" },
        results: { type: "string" },
        svg: { type: "string" },
        history: { type: "string" },
        compare: { type: "string" }
      }
    })
  } catch (error) {
    return wrong(error instanceof Error ? error.message : String(error))
  }
}
const { values } = parse()
const many = (short: number, long: number): number => (values.short ? short : long)

/** All suites, in the order in which they run. */
const suites = {
  template: template.measure(many(1, 3)),
  start: start.measure(many(4, 40)),
  exec: exec.measure(many(50, 300)),
  process: programs.measure(many(20, 100)),
  output: output.measure(many(1, 5)),
  files: files.measure(many(20, 100)),
  egress: egress.measure(many(20, 100)),
  ports: ports.measure(many(20, 100)),
  packages: packages.measure(many(5, 20), values.short),
  fork: fork.measure(many(2, 20)),
  park: park.measure(many(2, 20)),
  pool: pool.measure(many(2, 30), {
    idleSeconds: many(2, 10),
    languages: values.short ? ["python", "javascript"] : ["python", "javascript", "typescript", "bash"]
  }),
  throughput: throughput.measure(values.short ? [2, 8] : [1, 2, 8, 32, 100], many(1, 1)),
  memory: memory.measure(many(4, 12)),
  cli: cli.measure(many(4, 20))
}
/** Suites that are too slow for `--short`, and run only when named. */
const left = values.short ? ["packages"] : []
const wanted = values.only?.split(",") ?? Object.keys(suites).filter((name) => !left.includes(name))
const unknown = wanted.find((name) => !(name in suites))
if (unknown !== undefined) wrong(`unknown suite ${unknown}; available: ${Object.keys(suites).join(", ")}`)
const load = (): number => os.loadavg()[0] ?? 0

const main = Effect.gen(function* () {
  const host = yield* Host
  const qemu = yield* host.qemu(host.arch)
  const history = values.history ?? path.join(host.cacheDirectory, "bench.jsonl")
  const before = load()
  const started = performance.now()
  const known = {
    at: new Date().toISOString(),
    commit: History.commit(fileURLToPath(new URL(".", import.meta.url))),
    version: version(),
    short: values.short,
    ...History.hostConditions(),
    qemu: qemu.version,
    accelerator: qemu.accelerator
  }
  yield* Effect.sync(() => console.log(`${JSON.stringify(known)}\n`))
  const measurements: Array<Measurement> = []
  for (const [name, suite] of Object.entries(suites)) if (wanted.includes(name)) measurements.push(...(yield* suite))
  const conditions = {
    ...known,
    seconds: (performance.now() - started) / 1000,
    load: [before, load()] as const
  }
  const run: History.Run = { conditions, measurements }
  const earlier =
    values.compare === undefined ? undefined : History.find(values.compare, History.read(history), conditions)
  yield* Effect.sync(() => {
    console.log(table(measurements))
    if (values.compare !== undefined && earlier === undefined) console.log(`\nno earlier run ${values.compare}`)
    if (earlier !== undefined) {
      const { at, commit, load: then } = earlier.conditions
      console.log(`\nbefore: ${commit ?? earlier.conditions.version}, ${at}, load ${then.join(" and ")}\n`)
      console.log(comparison(compare(earlier.measurements, measurements)))
    }
    History.append(history, run)
    if (values.results !== undefined) fs.writeFileSync(values.results, JSON.stringify(run, null, 2))
    const title = `exec-sandbox ${conditions.commit ?? conditions.version} · QEMU ${qemu.version} ${qemu.accelerator} · ${
      conditions.cores
    } × ${conditions.cpu} · load ${conditions.load.join(" and ")} · ${conditions.at}`
    if (values.svg !== undefined) fs.writeFileSync(values.svg, picture(title, measurements))
  })
})

const layer = Sandbox.layerTemplate.pipe(
  Layer.provideMerge(Template.layer),
  Layer.provideMerge(snapshots),
  Layer.provideMerge(Image.layer),
  Layer.provideMerge(Host.layer)
)
NodeRuntime.runMain(Effect.provide(main, layer))
