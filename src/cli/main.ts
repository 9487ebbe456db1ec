/** Runs the command line, and leaves with the exit code that belongs to its end. */
import * as Effect from "effect/Effect"
import { writeSync } from "node:fs"
import { type Ending, endingOfDefect, endingOfExit, lineOf, signalCode } from "./ending.ts"
import { program } from "./program.ts"

const leave = ({ code, why }: Ending): never => {
  try {
    if (why !== undefined) writeSync(2, lineOf(why))
  } catch {
    // Nobody reads stderr any more.
  }
  process.exit(code)
}

// A write that fails is the answer of that write; the streams themselves have nothing to add.
process.stdout.on("error", () => {})
process.stderr.on("error", () => {})
process.on("uncaughtException", (error) => leave(endingOfDefect(error)))

const fiber = Effect.runFork(program(process.argv.slice(2)))
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
