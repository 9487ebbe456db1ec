/** A run in a fresh clone, from the restore to the first result, in each language, compared with the floor. */
import * as Effect from "effect/Effect"
import { execFile } from "node:child_process"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"
import type { Language } from "../src/Execution.ts"
import { portName } from "../src/guest/Hello.ts"
import { Host } from "../src/Host.ts"
import { Image } from "../src/Image.ts"
import { commandLine } from "../src/qemu/CommandLine.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { Template } from "../src/Template.ts"
import { type Measurement, repeat } from "./Measure.ts"

const firsts: ReadonlyArray<readonly [Language, string]> = [
  ["python", "print(1)"],
  ["javascript", "console.log(1)"],
  ["bash", "echo 1"]
]

/**
 * Samples of the floor, in ms. With `parallel`, that many rounds run at once, and the last sample is the time of all of them
 * together. With `rehearsal`, the clone has run these lines before and was paused.
 */
export const floor = Effect.fn("floor")(function* (
  language: Language,
  code: string,
  times: number,
  { parallel, rehearsal }: { parallel?: number; rehearsal?: ReadonlyArray<readonly [string, string]> } = {}
) {
  const host = yield* Host
  const images = yield* Image
  const templates = yield* Template
  const entry = yield* templates.warm(512)
  const qemu = yield* host.qemu(host.arch)
  const image = yield* images.ensure(host.arch)
  const args = commandLine({
    arch: host.arch,
    accelerator: qemu.accelerator,
    memoryMiB: entry.memoryMiB,
    seccomp: qemu.seccomp,
    portName,
    readonlyRam: qemu.atLeast(8, 2),
    start: { kind: "restore" }
  })
  const plan = {
    command: [...host.launcher.argv, qemu.path, ...args],
    template: path.join(host.cacheDirectory, "templates", entry.key),
    root: image.files.root,
    scratch: image.files.scratch,
    ramFlags: qemu.atLeast(8, 2) ? "r" : "r+",
    language,
    code,
    times,
    parallel,
    rehearsal
  }
  const script = fileURLToPath(new URL("./floor.mjs", import.meta.url))
  const { stdout } = yield* Effect.promise(() => promisify(execFile)(process.execPath, [script, JSON.stringify(plan)]))
  return JSON.parse(stdout) as ReadonlyArray<number>
})

/** Rounds of floor and library alternate in small batches, so that drift of the machine affects both. */
export const measure = (times: number) =>
  Effect.gen(function* () {
    const sandbox = yield* Sandbox
    const measurements: Array<Measurement> = []
    for (const [language, code] of firsts) {
      const low: Array<number> = []
      const ours: Array<number> = []
      for (let batch = 0; batch < times; batch += 5) {
        low.push(...(yield* floor(language, code, 5)))
        ours.push(...(yield* repeat(5, sandbox.run({ language, code }))))
      }
      measurements.push({ suite: "start", name: `${language}: floor`, samples: low })
      measurements.push({
        suite: "start",
        name: `${language}: run of a fresh clone`,
        samples: ours,
        floor: `${language}: floor`
      })
    }
    return measurements
  })
