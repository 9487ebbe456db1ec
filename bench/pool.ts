/**
 * A run from a full pool, in some languages, compared with a run that restores, and with the floor: the same steps in a pooled clone
 * without the library. Also the cost of an idle clone.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as fs from "node:fs"
import { Capacity } from "../src/Capacity.ts"
import type { Language } from "../src/Execution.ts"
import { Pool, Settings } from "../src/Pool.ts"
import { rehearsal } from "../src/pool/WarmUp.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { Snapshots } from "../src/Snapshot.ts"
import { type Measurement, repeat } from "./Measure.ts"
import { floor } from "./start.ts"

const firsts: ReadonlyArray<readonly [Language, string]> = [
  ["python", "print(1)"],
  ["javascript", "console.log(1)"],
  ["typescript", "const x: number = 1; console.log(x)"],
  ["bash", "echo 1"]
]

/** How many clones are ready in the pool. */
const size = 2
const full = Pool.use((pool) => pool.stats).pipe(
  Effect.repeat({ until: ([it]) => it?.ready === size, schedule: Schedule.spaced("20 millis") })
)

/** A sandbox whose pool this suite can inspect. */
const pooled = (options: { readonly size: number }) =>
  // Fresh, because layers are shared by reference, whatever their settings.
  Layer.fresh(Sandbox.layerOver).pipe(
    Layer.provide(Snapshots.layerUnsupported),
    Layer.provideMerge(Layer.fresh(Pool.layer)),
    Layer.provide(Layer.fresh(Capacity.layer)),
    Layer.provide(Layer.succeed(Settings, options))
  )

/** The QEMU processes of this process: their number, CPU ticks (10 ms each) so far, and private memory in MiB. */
const idle = (): { readonly ticks: number; readonly qemus: number; readonly privateMiB: number } => {
  let ticks = 0
  let qemus = 0
  let privateMiB = 0
  for (const name of fs.readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue
    try {
      const stat = /^\d+ \((.*)\) (.*)$/.exec(fs.readFileSync(`/proc/${name}/stat`, "utf8").trim())
      const fields = stat?.[2]?.split(" ") ?? []
      if (!stat?.[1]?.startsWith("qemu-system") || Number(fields[1]) !== process.pid) continue
      ticks += Number(fields[11]) + Number(fields[12])
      qemus++
      const rss = /^RssAnon:\s*(\d+)/m.exec(fs.readFileSync(`/proc/${name}/status`, "utf8"))
      privateMiB += Number(rss?.[1] ?? 0) / 1024
    } catch {
      // The process has just ended.
    }
  }
  return { ticks, qemus, privateMiB }
}

/** Rounds alternate, so that drift of the machine affects all. Before each claim the pool is full and nothing else runs. */
export const measure = (
  times: number,
  options: { readonly idleSeconds: number; readonly languages: ReadonlyArray<Language> }
) =>
  Effect.gen(function* () {
    const sandbox = yield* Sandbox
    const measurements: Array<Measurement> = []
    const without = yield* Sandbox.pipe(Effect.provide(pooled({ size: 0 }), { local: true }))
    for (const [language, code] of firsts.filter(([it]) => options.languages.includes(it))) {
      const bare: Array<number> = []
      const restored: Array<number> = []
      const claimed: Array<number> = []
      const acquire: Array<number> = []
      const handover: Array<number> = []
      for (let n = 0; n < times; n++) {
        yield* full
        bare.push(...(yield* floor(language, code, 1, { rehearsal: rehearsal(firsts.map(([it]) => it)) })))
        restored.push(...(yield* repeat(1, without.run({ language, code }))))
        const { receipt } = yield* Effect.scoped(
          Effect.gen(function* () {
            const start = performance.now()
            const session = yield* sandbox.session()
            const result = yield* session.exec({ language, code })
            claimed.push(performance.now() - start)
            return result
          })
        )
        // A claim that missed the pool is logged, and does not count.
        if (receipt.startPath.kind !== "pool") {
          claimed.pop()
          yield* Effect.logWarning("a claim missed the pool", receipt.startPath.missed)
          continue
        }
        acquire.push(receipt.timing.acquireMs ?? 0)
        handover.push(receipt.timing.handoverMs ?? 0)
      }
      const low = `${language}: claim + run, floor`
      measurements.push({ suite: "pool", name: `${language}: restore + run`, samples: restored })
      measurements.push({ suite: "pool", name: low, samples: bare })
      measurements.push({ suite: "pool", name: `${language}: claim + run`, samples: claimed, floor: low })
      measurements.push({ suite: "pool", name: `${language}: of it claim`, samples: acquire })
      measurements.push({ suite: "pool", name: `${language}: of it handover`, samples: handover })
    }
    if (process.platform === "linux") {
      yield* full
      const before = idle()
      yield* Effect.sleep(options.idleSeconds * 1000)
      const after = idle()
      const percent = (after.ticks - before.ticks) / before.qemus / options.idleSeconds
      measurements.push({ suite: "pool", name: "idle clone", samples: [percent], unit: "% of a core" })
      const own = after.privateMiB / after.qemus
      measurements.push({ suite: "pool", name: "idle clone: of its own", samples: [own], unit: "MiB" })
    }
    return measurements
  }).pipe(Effect.scoped, Effect.provide(pooled({ size })))
