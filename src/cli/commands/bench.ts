/** `exec-sandbox bench`: runs the benchmarks in a process of their own, so that the command line itself is not measured. */
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { type ChildProcess, spawn } from "node:child_process"
import { existsSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { Leave, signalCode } from "../ending.ts"

/** Where the benchmarks are in a checkout, and in the built package. */
const places = ["../../../bench/main.ts", "../../bench/main.js"]

const ended = (child: ChildProcess): Effect.Effect<number> =>
  Effect.callback((resume) => {
    const end = (): void =>
      resume(Effect.succeed(child.signalCode === null ? (child.exitCode ?? 1) : signalCode(child.signalCode)))
    if (child.exitCode !== null || child.signalCode !== null) return end()
    child.once("exit", end)
  })

const file = (name: string, metavar: string, description: string) =>
  Flag.String(name).pipe(Flag.withMetavar(metavar), Flag.withDescription(description), Flag.optional)

export const bench = Command.make(
  "bench",
  {
    short: Flag.Boolean("short").pipe(
      Flag.withoutNegation,
      Flag.withDescription("Take few samples; takes under two minutes on two idle cores"),
      Flag.withDefault(false)
    ),
    only: file("only", "SUITES", "Run only these suites, such as start,exec,pool; an unknown name lists all suites"),
    results: file("results", "FILE", "Write every sample and the conditions of the run as JSON"),
    svg: file("svg", "FILE", "Draw the distributions as SVG"),
    compare: file("compare", "RUN", "Compare with an earlier run: last, a commit, or a file from --results"),
    history: file("history", "FILE", "Where runs are recorded (default: bench.jsonl in the cache directory)")
  },
  Effect.fn("cli.bench")(function* ({ short, ...files }) {
    const main = places.map((it) => fileURLToPath(new URL(it, import.meta.url))).find((it) => existsSync(it))
    if (main === undefined) return yield* new Leave({ code: 125, why: "this installation has no benchmarks" })
    const named = Object.entries(files).flatMap(([name, value]) =>
      Option.isSome(value) ? [`--${name}`, value.value] : []
    )
    const code = yield* Effect.acquireUseRelease(
      Effect.sync(() => spawn(process.execPath, [main, ...(short ? ["--short"] : []), ...named], { stdio: "inherit" })),
      ended,
      (child) =>
        Effect.suspend(() => {
          child.kill("SIGTERM")
          return ended(child)
        })
    )
    if (code !== 0) return yield* new Leave({ code })
  })
).pipe(
  Command.withDescription(
    "Measure this host: VM starts, executions, programs, files, ports, the pool, throughput and memory, where possible " +
      "compared with the floor: the same work without this library."
  ),
  Command.withShortDescription("Measure this host")
)
