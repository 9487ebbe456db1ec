/** The CLI as a whole process: `run` with an existing template, compared with the bare start of Node. */
import * as Effect from "effect/Effect"
import { execFile } from "node:child_process"
import { existsSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"
import { type Measurement, repeat } from "./Measure.ts"

const node = (args: ReadonlyArray<string>) => Effect.promise(() => promisify(execFile)(process.execPath, args))

export const measure = (times: number) =>
  Effect.gen(function* () {
    const places = [new URL("../src/cli/bin.ts", import.meta.url), new URL("../cli/bin.js", import.meta.url)]
    const bin = places.map((it) => fileURLToPath(it)).find((it) => existsSync(it)) ?? ""
    yield* node([bin, "run", "-q", "print(1)"])
    const bare = yield* repeat(times, node(["-e", ""]))
    const version = yield* repeat(times, node([bin, "--version"]))
    const run = yield* repeat(times, node([bin, "run", "-q", "print(1)"]))
    return [
      { suite: "cli", name: "node -e ''", samples: bare },
      { suite: "cli", name: "exec-sandbox --version", samples: version },
      { suite: "cli", name: "exec-sandbox run 'print(1)'", samples: run }
    ] satisfies ReadonlyArray<Measurement>
  })
