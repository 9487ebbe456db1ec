/**
 * Makes sure that the image of this checkout exists; prints its steps only when there is something to do.
 *
 *   node images/ensure.ts [amd64|arm64]
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import { Image } from "../src/Image.ts"
import { Progress, type ProgressEvent } from "../src/internal/Progress.ts"

const arch = process.argv[2] ?? (process.arch === "arm64" ? "arm64" : "amd64")

const main = Effect.gen(function* () {
  if (arch !== "amd64" && arch !== "arm64") {
    process.stderr.write(`unknown architecture ${arch}: amd64 or arm64\n`)
    return 2
  }
  const images = yield* Image
  const start = yield* Clock.currentTimeMillis
  let last = ""
  const say = (event: ProgressEvent) =>
    Effect.map(Clock.currentTimeMillis, (now) => {
      if (event.message === last) return
      last = event.message
      process.stdout.write(`  ${((now - start) / 1000).toFixed(1).padStart(5)} s  ${event.message}\n`)
    })
  const result = yield* images.ensure(arch).pipe(Effect.provideService(Progress, say), Effect.result)
  if (result._tag === "Success") return 0
  process.stderr.write(`${result.failure.message}\n`)
  return 1
}).pipe(Effect.provide(Image.layer))

// An interrupted build ends its child processes and cleans up before this process exits.
const fiber = Effect.runFork(main)
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.once(signal, () => fiber.interruptUnsafe())
fiber.addObserver((exit) => process.exit(exit._tag === "Success" ? exit.value : 130))
