/**
 * Copies of a live session: how long it pauses, what a copy takes, and how soon a child is ready.
 *
 * The pause is measured by running one line after another during a fork: the longest line, compared with the longest in the same
 * time without a fork. A child is a session from a stored snapshot until its first result, compared with a session from the
 * template.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import { Sandbox } from "../src/Sandbox.ts"
import type { Session } from "../src/Session.ts"
import { Snapshots } from "../src/Snapshot.ts"
import { type Measurement, repeat } from "./Measure.ts"

const line = { language: "python", code: "print(1)" } as const
/** Gives a session some MiB of values, and a file. */
const work = {
  language: "python",
  code: "data = [str(n) for n in range(200000)]; open('data', 'w').write('\\n'.join(data))"
} as const

/** Runs one line after another while the effect runs, and gives the longest time of a line, in ms. */
const longestDuring = <A, E, R>(session: Session, effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const fiber = yield* Effect.forkChild(effect, { startImmediately: true })
    let longest = 0
    while (fiber.pollUnsafe() === undefined) {
      const [took = 0] = yield* repeat(1, session.exec(line))
      longest = Math.max(longest, took)
    }
    yield* Fiber.join(fiber)
    return longest
  })

export const measure = (times: number) =>
  Effect.gen(function* () {
    const sandbox = yield* Sandbox
    const snapshots = yield* Snapshots
    const session = yield* sandbox.session()
    yield* session.exec(work)
    yield* repeat(20, session.exec(line))

    const undisturbed: Array<number> = []
    const gaps: Array<number> = []
    const forks: Array<number> = []
    for (let n = 0; n < times; n++) {
      const started = performance.now()
      gaps.push(
        yield* longestDuring(
          session,
          Effect.scoped(Effect.map(session.fork(1), (children) => children.map(Result.getOrThrow)))
        )
      )
      const took = performance.now() - started
      undisturbed.push(yield* longestDuring(session, Effect.sleep(took)))
      forks.push(...(yield* repeat(1, Effect.scoped(session.fork(1)))))
    }

    const taken: Array<number> = []
    const paused: Array<number> = []
    const fresh: Array<number> = []
    const children: Array<number> = []
    let bytes = 0
    for (let n = 0; n < times; n++) {
      const started = performance.now()
      const snapshot = yield* session.snapshot()
      taken.push(performance.now() - started)
      paused.push(snapshot.pausedMs)
      bytes = snapshot.bytes
      fresh.push(...(yield* repeat(1, Effect.scoped(Effect.flatMap(sandbox.session(), (it) => it.exec(line))))))
      children.push(
        ...(yield* repeat(1, Effect.scoped(Effect.flatMap(sandbox.session({ from: snapshot }), (it) => it.exec(line)))))
      )
      yield* snapshots.remove(snapshot.id)
    }
    yield* Effect.sync(() => console.log(`a snapshot of a session with 512 MiB takes ${Math.round(bytes / 1e6)} MB`))
    const suite = "fork"
    return [
      { suite, name: "longest line, undisturbed", samples: undisturbed },
      { suite, name: "longest line, while forked", samples: gaps, floor: "longest line, undisturbed" },
      { suite, name: "of it stood still, by QEMU's clock", samples: paused },
      { suite, name: "fork(1)", samples: forks },
      { suite, name: "snapshot", samples: taken },
      { suite, name: "python: session and first line", samples: fresh },
      { suite, name: "python: child and first line", samples: children, floor: "python: session and first line" }
    ] satisfies ReadonlyArray<Measurement>
  }).pipe(Effect.scoped)
