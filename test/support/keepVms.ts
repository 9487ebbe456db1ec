/** A process that has a full pool and a session until it is killed; prints `ready` when it has both. */
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import { Pool } from "../../src/Pool.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { pooled } from "./pooled.ts"

const program = Effect.gen(function* () {
  const session = yield* Sandbox.use((sandbox) => sandbox.session())
  yield* session.exec({ language: "python", code: "1" })
  yield* Pool.use((pool) => pool.stats).pipe(
    Effect.repeat({ until: ([it]) => it?.ready === 1, schedule: Schedule.spaced("20 millis") })
  )
  yield* Effect.sync(() => process.stdout.write("ready\n"))
  return yield* Effect.never
})

// A waiting fiber does not keep the process alive.
setInterval(() => {}, 2 ** 31 - 1)
await Effect.runPromise(Effect.scoped(Effect.provide(program, pooled)))
