/** Output of code and programs to the host: the time for 50 MB, and this process's memory during 300 MB. */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type { Session } from "../src/Session.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { type Measurement, repeat } from "./Measure.ts"

const megabytes = 50
/** A time limit that no measurement reaches. */
const limits = { timeMs: 600_000 }

/** Code that writes this many megabytes (10^6 bytes). */
const writes = {
  python: (count: number) => `import sys\nfor _ in range(${count}): sys.stdout.buffer.write(bytes(10 ** 6))`,
  javascript: (count: number) =>
    `import { writeSync } from "node:fs"\nconst all = Buffer.alloc(10 ** 6)\nfor (let n = 0; n < ${count}; n++) for (let at = 0; at < all.length;) at += writeSync(1, all, at)`,
  bash: (count: number) => `head -c ${count}000000 /dev/zero`
}

/** The most memory that this process used in addition to what it used before, in MiB; checked at every piece of output. */
export const growth = Effect.fnUntraced(function* (session: Session, count: number) {
  const read = (megabytes: number, look: () => void) =>
    session
      .stream({ language: "bash", code: writes.bash(megabytes), limits })
      .pipe(Stream.runForEach((event) => Effect.sync(() => event._tag === "Stdout" && look())))
  // A first run, so that one-time allocations do not count.
  yield* read(count, () => {})
  const before = process.memoryUsage.rss()
  let most = before
  yield* read(count, () => {
    most = Math.max(most, process.memoryUsage.rss())
  })
  return (most - before) / 1024 ** 2
})

export const measure = (times: number) =>
  Effect.gen(function* () {
    const session = yield* Sandbox.use((sandbox) => sandbox.session())
    const measurements: Array<Measurement> = []
    for (const language of ["python", "javascript", "bash"] as const) {
      const code = writes[language](megabytes)
      const samples = yield* repeat(times, session.exec({ language, code, limits }))
      measurements.push({ suite: "output", name: `${language}: ${megabytes} MB, kept and truncated`, samples })
    }
    const request = { language: "bash", code: writes.bash(megabytes), limits } as const
    measurements.push(
      {
        suite: "output",
        name: `bash: ${megabytes} MB, streamed`,
        samples: yield* repeat(times, Stream.runDrain(session.stream(request)))
      },
      {
        suite: "output",
        name: `a program: ${megabytes} MB`,
        samples: yield* repeat(times, session.run(writes.bash(megabytes), { limits }))
      }
    )
    measurements.push({
      suite: "output",
      name: "memory of this process while 300 MB pass, more than before",
      samples: [yield* growth(session, 300)],
      unit: "MiB"
    })
    return measurements
  }).pipe(Effect.scoped)
