/**
 * Parked sessions: the time to park one, and the time from a call on a parked session to its result, compared with a session from
 * the template to its first result.
 */
import * as Effect from "effect/Effect"
import { Sandbox } from "../src/Sandbox.ts"
import { type Measurement, repeat } from "./Measure.ts"

const line = { language: "python", code: "print(1)" } as const
/** Gives a session some MiB of values, which parking writes and waking reads. */
const work = { language: "python", code: "data = [str(n) for n in range(200000)]" } as const

export const measure = (times: number) =>
  Effect.gen(function* () {
    const sandbox = yield* Sandbox
    const session = yield* sandbox.session({ idleMs: 3_600_000 })
    yield* session.exec(line)
    const used = yield* sandbox.session({ idleMs: 3_600_000 })
    yield* used.exec(work)
    const fresh: Array<number> = []
    const parked: Array<number> = []
    const woken: Array<number> = []
    const wakes: Array<number> = []
    const wokenUsed: Array<number> = []
    for (let n = 0; n < times; n++) {
      fresh.push(...(yield* repeat(1, Effect.scoped(Effect.flatMap(sandbox.session(), (it) => it.exec(line))))))
      parked.push(...(yield* repeat(1, session.park)))
      const started = performance.now()
      const { receipt } = yield* session.exec(line)
      woken.push(performance.now() - started)
      wakes.push(receipt.timing.wakeMs ?? Number.NaN)
      yield* used.park
      wokenUsed.push(...(yield* repeat(1, used.exec(line))))
    }
    const suite = "park"
    const floor = "python: session and first line"
    return [
      { suite, name: floor, samples: fresh },
      { suite, name: "park", samples: parked },
      { suite, name: "python: wake and line", samples: woken, floor },
      { suite, name: "of it wake", samples: wakes },
      { suite, name: "python: wake and line, 20 MiB of values", samples: wokenUsed, floor }
    ] satisfies ReadonlyArray<Measurement>
  }).pipe(Effect.scoped)
