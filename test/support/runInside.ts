import * as Effect from "effect/Effect"
import { endingOfExit, lineOf } from "../../src/cli/ending.ts"
import { program } from "../../src/cli/program.ts"

/** Runs the CLI to its end in this process, which is much faster. One at a time: it takes the streams of the process. */
export const runInside = async (
  args: ReadonlyArray<string>
): Promise<{ readonly code: number; readonly stdout: string; readonly stderr: string }> => {
  const said = { stdout: "", stderr: "" }
  const names = ["stdout", "stderr"] as const
  const own = names.map((name) => process[name].write)
  for (const name of names) {
    const write = (data: Uint8Array | string, done?: (error?: null) => void): boolean => {
      said[name] += typeof data === "string" ? data : Buffer.from(data).toString()
      done?.()
      return true
    }
    Object.assign(process[name], { write })
  }
  try {
    const { code, why } = endingOfExit(await Effect.runPromiseExit(program(args)))
    return { code, stdout: said.stdout, stderr: said.stderr + (why === undefined ? "" : lineOf(why)) }
  } finally {
    names.forEach((name, at) => Object.assign(process[name], { write: own[at] }))
  }
}
