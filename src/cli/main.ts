/** Runs the command line and exits with the code of its ending. */
import * as Effect from "effect/Effect"
import { writeSync } from "node:fs"
import { type Ending, endingOfDefect, endingOfExit, lineOf, signalCode } from "./ending.ts"
import { program } from "./program.ts"

const leave = ({ code, why }: Ending): never => {
  try {
    if (why !== undefined) writeSync(2, lineOf(why))
  } catch {
    // The reader of stderr has gone.
  }
  process.exit(code)
}

// `write` reports a failed write; the error events of the streams add nothing.
process.stdout.on("error", () => {})
process.stderr.on("error", () => {})
process.on("uncaughtException", (error) => leave(endingOfDefect(error)))

const fiber = Effect.runFork(program(process.argv.slice(2)))
// A waiting fibre does not keep the process alive.
setInterval(() => {}, 2 ** 31 - 1)

// The first signal closes everything that is open; the second one exits without waiting for that.
let signalled: number | undefined
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
  process.on(signal, () => {
    if (signalled !== undefined) process.exit(signalled)
    signalled = signalCode(signal)
    fiber.interruptUnsafe()
  })
}

// Exits at once, even if stdin is still open.
fiber.addObserver((exit) => leave(signalled === undefined ? endingOfExit(exit) : { code: signalled }))
