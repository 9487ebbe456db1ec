/** The start of a program in a session, and a key press on its terminal. */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { Sandbox } from "../src/Sandbox.ts"
import { repeat } from "./Measure.ts"

export const measure = (times: number) =>
  Effect.gen(function* () {
    const session = yield* Sandbox.use((sandbox) => sandbox.session())
    const spawned = Effect.scoped(Effect.flatMap(session.spawn(["/bin/true"]), (it) => it.exit))
    const inBash = session.exec({ language: "bash", code: "/bin/true" })

    const cat = yield* session.spawn(["cat"], { pty: { cols: 80, rows: 24 } })
    let awaited = yield* Deferred.make<void>()
    let lines = 0
    yield* cat.stdout.pipe(
      Stream.runForEach((bytes) => {
        // Each line comes twice: as the terminal's echo, and from cat.
        lines += bytes.filter((byte) => byte === 10).length
        return lines === 2 ? Deferred.succeed(awaited, undefined) : Effect.void
      }),
      Effect.forkScoped
    )
    const roundTrip = Effect.gen(function* () {
      awaited = yield* Deferred.make<void>()
      lines = 0
      yield* cat.write("x\n")
      yield* Deferred.await(awaited)
    })

    yield* Effect.all([repeat(5, spawned), repeat(5, inBash), repeat(5, roundTrip)])
    const floor = "bash: /bin/true, warm"
    return [
      { suite: "process", name: floor, samples: yield* repeat(times, inBash) },
      { suite: "process", name: "spawn /bin/true until its exit", samples: yield* repeat(times, spawned), floor },
      { suite: "process", name: "run /bin/true", samples: yield* repeat(times, session.run(["/bin/true"])), floor },
      { suite: "process", name: "terminal: a line to cat and back", samples: yield* repeat(times, roundTrip) }
    ]
  }).pipe(Effect.scoped)
