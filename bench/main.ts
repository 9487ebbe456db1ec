/**
 * `npm run bench [-- --short] [-- --json FILE]`: measures on this host and prints p50 and p95.
 *
 * `--short` takes few samples; `--json` also writes all samples with what they were taken on.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { execFileSync } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import { parseArgs } from "node:util"
import { Host } from "../src/Host.ts"
import { Image } from "../src/Image.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { Template } from "../src/Template.ts"
import * as cli from "./cli.ts"
import * as exec from "./exec.ts"
import * as files from "./files.ts"
import { type Measurement, table } from "./Measure.ts"
import * as programs from "./process.ts"
import * as pool from "./pool.ts"
import * as ports from "./ports.ts"
import * as start from "./start.ts"
import * as template from "./template.ts"

const { values } = parseArgs({ options: { short: { type: "boolean", default: false }, json: { type: "string" } } })
const many = (short: number, long: number): number => (values.short ? short : long)

const commit = (): string | null => {
  try {
    return execFileSync("git", ["rev-parse", "--short", "HEAD"], { encoding: "utf8" }).trim()
  } catch {
    return null
  }
}

const main = Effect.gen(function* () {
  const host = yield* Host
  const qemu = yield* host.qemu(host.arch)
  const conditions = {
    at: new Date().toISOString(),
    commit: commit(),
    cpu: os.cpus()[0]?.model ?? null,
    cores: os.cpus().length,
    memoryMiB: Math.round(os.totalmem() / 2 ** 20),
    kernel: os.release(),
    node: process.version,
    qemu: qemu.version,
    accelerator: qemu.accelerator
  }
  yield* Effect.sync(() => console.log(`${JSON.stringify(conditions)}\n`))
  const measurements: Array<Measurement> = [
    ...(yield* template.measure(many(1, 3))),
    ...(yield* start.measure(many(10, 40))),
    ...(yield* exec.measure(many(50, 300))),
    ...(yield* programs.measure(many(20, 100))),
    ...(yield* files.measure(many(20, 100))),
    ...(yield* ports.measure(many(20, 100))),
    ...(yield* pool.measure(many(5, 30), { idleSeconds: 10 })),
    ...(yield* cli.measure(many(5, 20)))
  ]
  yield* Effect.sync(() => console.log(table(measurements)))
  if (values.json !== undefined) fs.writeFileSync(values.json, JSON.stringify({ conditions, measurements }, null, 2))
})

const layer = Sandbox.layerTemplate.pipe(
  Layer.provideMerge(Template.layer),
  Layer.provideMerge(Image.layer),
  Layer.provideMerge(Host.layer)
)
NodeRuntime.runMain(Effect.provide(main, layer))
