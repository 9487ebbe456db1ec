/** Files into and out of a session: 64 MiB, and the round trip of a small request. */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { randomBytes } from "node:crypto"
import { Sandbox } from "../src/Sandbox.ts"
import { type Measurement, repeat } from "./Measure.ts"

const mebibytes = 64

export const measure = (times: number) =>
  Effect.gen(function* () {
    const { files } = yield* Sandbox.use((sandbox) => sandbox.session())
    const bytes = randomBytes(mebibytes * 1024 * 1024)
    const transfers = Math.max(1, Math.ceil(times / 20))
    const measurements: ReadonlyArray<Measurement> = [
      { suite: "files", name: `${mebibytes} MiB up`, samples: yield* repeat(transfers, files.write("big", bytes)) },
      {
        suite: "files",
        name: `${mebibytes} MiB down`,
        samples: yield* repeat(transfers, Stream.runDrain(files.stream("big")))
      },
      {
        suite: "files",
        name: "write of 1 KiB",
        samples: yield* repeat(times, files.write("small", bytes.subarray(0, 1024)))
      },
      { suite: "files", name: "stat", samples: yield* repeat(times, files.stat("small")) }
    ]
    return measurements
  }).pipe(Effect.scoped)
