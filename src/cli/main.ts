/** Runs the command line, and leaves with the exit code that belongs to its end. */
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as References from "effect/References"
import { writeSync } from "node:fs"
import { type Ending, endingOfDefect, endingOfExit, lineOf, signalCode } from "./ending.ts"
import * as presenter from "./presenter.ts"
import { root } from "./root.ts"
import { version } from "./version.ts"

const leave = ({ code, why }: Ending): never => {
  try {
    if (why !== undefined) writeSync(2, lineOf(why))
  } catch {
    // Nobody reads stderr any more.
  }
  process.exit(code)
}

const booleans = new Set(["--json", "--quiet", "-q", "--stdin", "-i", "--trace", "--short"])

/** Makes `--json CODE` mean what it says: without a value of its own, a flag would take a CODE such as `true` for it. */
const closeBooleans = (args: ReadonlyArray<string>): ReadonlyArray<string> => {
  const end = args.indexOf("--")
  return args.map((arg, i) => {
    if (end !== -1 && i > end) return arg
    return booleans.has(arg) ? `${arg}=true` : arg
  })
}

const valued = new Set(["--memory", "-m", "--env", "-e"])

/** Leaves what stands behind a program's name to that program: `shell ls -l`. */
const passOn = (args: ReadonlyArray<string>): ReadonlyArray<string> => {
  if (args[0] !== "shell") return args
  let at = 1
  for (let arg = args[at]; arg?.startsWith("-") && arg !== "--"; arg = args[at]) at += valued.has(arg) ? 2 : 1
  return at >= args.length || args[at] === "--" ? args : [...args.slice(0, at), "--", ...args.slice(at)]
}

const args = closeBooleans(passOn(process.argv.slice(2)))
const program = Command.runWith(root, { version: version() })(args).pipe(
  Effect.provide(Layer.merge(NodeServices.layer, presenter.layer)),
  Effect.provideService(References.LogToStderr, true)
)

// A write that fails is the answer of that write; the streams themselves have nothing to add.
process.stdout.on("error", () => {})
process.stderr.on("error", () => {})
process.on("uncaughtException", (error) => leave(endingOfDefect(error)))

const fiber = Effect.runFork(program)
// A fiber that waits does not keep the process alive.
setInterval(() => {}, 2 ** 31 - 1)

// The first signal closes everything that is open, the second one does not wait for it.
let signalled: number | undefined
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
  process.on(signal, () => {
    if (signalled !== undefined) process.exit(signalled)
    signalled = signalCode(signal)
    fiber.interruptUnsafe()
  })
}

// Leaving at once also lets go of a stdin that somebody holds open.
fiber.addObserver((exit) => leave(signalled === undefined ? endingOfExit(exit) : { code: signalled }))
