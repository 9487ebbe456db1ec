/** The host memory of an idle clone: with its part of shared pages (PSS), and its private pages. */
import * as Effect from "effect/Effect"
import * as fs from "node:fs"
import { Sandbox } from "../src/Sandbox.ts"
import type { Measurement } from "./Measure.ts"

const suite = "memory"

/** The living QEMU processes that this process started. */
const qemus = (): ReadonlyArray<string> =>
  fs.readdirSync("/proc").filter((name) => {
    if (!/^\d+$/.test(name)) return false
    try {
      const stat = /\((.*)\) (\S) (\d+)/.exec(fs.readFileSync(`/proc/${name}/stat`, "utf8"))
      return stat?.[1]?.startsWith("qemu-system") === true && stat[2] !== "Z" && Number(stat[3]) === process.pid
    } catch {
      return false
    }
  })

/** The memory of a process in MiB, as the kernel counts it. */
const memoryOf = (pid: string) => {
  const rollup = fs.readFileSync(`/proc/${pid}/smaps_rollup`, "utf8")
  const field = (name: string): number =>
    Number(new RegExp(`^${name}:\\s*(\\d+) kB`, "m").exec(rollup)?.[1] ?? Number.NaN) / 1024
  return { pss: field("Pss"), own: field("Private_Clean") + field("Private_Dirty") }
}

/** Measures with `clones` VMs at once; gives nothing on a host whose kernel does not count PSS. */
export const measure = (clones: number) =>
  Effect.gen(function* () {
    if (!fs.existsSync("/proc/self/smaps_rollup")) return []
    const sandbox = yield* Sandbox
    const others = new Set(qemus())
    const sessions = yield* Effect.forEach(Array.from({ length: clones }), () => sandbox.session())
    const look = (state: string): ReadonlyArray<Measurement> => {
      const found = qemus()
        .filter((pid) => !others.has(pid))
        .map(memoryOf)
      return [
        { suite, name: `${state}: PSS`, samples: found.map((it) => it.pss), unit: "MiB" },
        { suite, name: `${state}: private`, samples: found.map((it) => it.own), unit: "MiB" }
      ]
    }
    const fresh = look(`one of ${clones} restored clones`)
    yield* Effect.forEach(sessions, (session) => session.exec({ language: "python", code: "print(1)" }))
    return [...fresh, ...look("the same after print(1)")]
  }).pipe(Effect.scoped)
