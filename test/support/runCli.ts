/** Runs the CLI as a user would: a process of its own, with the streams that a shell gives. */
import { spawn } from "node:child_process"
import { fileURLToPath } from "node:url"

/** The entry of the CLI. */
const bin = fileURLToPath(new URL("../../src/cli/bin.ts", import.meta.url))

/** The result of a CLI that has ended. */
export interface Finished {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly stdout: string
  readonly stderr: string
  readonly bytes: Buffer
}

/** A running CLI. `until` waits for text on stdout or stderr, and fails when the process ends without it. */
export interface Running {
  readonly child: ReturnType<typeof spawn>
  /** The output so far. */
  readonly text: (name: "stdout" | "stderr") => string
  readonly until: (text: string) => Promise<void>
  readonly finished: Promise<Finished>
}

/** Starts the CLI. `stdin`: bytes to send, `open` for a pipe that never ends; none is /dev/null. */
export const startCli = (
  args: ReadonlyArray<string>,
  options: { readonly stdin?: string | Uint8Array | "open"; readonly env?: NodeJS.ProcessEnv } = {}
): Running => {
  const child = spawn(process.execPath, [bin, ...args], {
    stdio: [options.stdin === undefined ? "ignore" : "pipe", "pipe", "pipe"],
    env: { ...process.env, ...options.env }
  })
  const chunks: { readonly stdout: Array<Buffer>; readonly stderr: Array<Buffer> } = { stdout: [], stderr: [] }
  const text = (name: "stdout" | "stderr") => Buffer.concat(chunks[name]).toString()
  const watchers = new Set<() => void>()
  for (const name of ["stdout", "stderr"] as const) {
    child[name]?.on("data", (chunk: Buffer) => {
      chunks[name].push(chunk)
      for (const watch of watchers) watch()
    })
  }
  if (options.stdin !== undefined && options.stdin !== "open") child.stdin?.end(options.stdin)
  child.stdin?.on("error", () => {})
  const finished = new Promise<Finished>((resolve, reject) => {
    child.on("error", reject)
    child.on("close", (code, signal) =>
      resolve({ code, signal, stdout: text("stdout"), stderr: text("stderr"), bytes: Buffer.concat(chunks.stdout) })
    )
  })
  const until = (wanted: string) =>
    new Promise<void>((resolve, reject) => {
      const watch = () => {
        if (!text("stdout").includes(wanted) && !text("stderr").includes(wanted)) return
        watchers.delete(watch)
        resolve()
      }
      watchers.add(watch)
      watch()
      finished.then(
        (it) => reject(new Error(`ended with ${it.code} before ${JSON.stringify(wanted)}: ${it.stderr}`)),
        reject
      )
    })
  return { child, text, until, finished }
}

/** Runs the CLI to its end. */
export const runCli = (...given: Parameters<typeof startCli>): Promise<Finished> => startCli(...given).finished
