/** Runs short-lived programs with limits on time and output; they never outlive the call. */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { spawn } from "node:child_process"

/** How long one program may take. A healthy QEMU answers in 0.1 s; on a busy machine with two cores it takes several times that. */
export const Bound = Context.Reference<Duration.Input>("exec-sandbox/internal/BoundedProcess/Bound", {
  defaultValue: () => "10 seconds"
})

/** How a program ended. `problem` is `null` after exit code 0, else one line for a person. Output is cut at 64 KiB each. */
export interface Ended {
  readonly problem: string | null
  readonly stdout: string
  readonly stderr: string
  readonly timedOut: boolean
}

const outputLimit = 64 * 1024

const problemOf = (code: number | null, signal: string | null, stderr: string): string | null => {
  if (code === 0) return null
  const said = stderr
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "")
    .join("; ")
    .slice(0, 400)
  const how = signal === null ? `exit code ${code}` : `ended by ${signal}`
  return said === "" ? how : said
}

/**
 * Runs `argv`. `reply` sees the standard output so far after each piece of it; the first text it returns is written to
 * the program's standard input. When the bound is over or the call is interrupted, the program's whole process group is
 * killed, and the call returns after its leader is gone.
 */
export const run = (
  argv: readonly [string, ...ReadonlyArray<string>],
  env: Readonly<Record<string, string>>,
  reply?: (stdout: string) => string | null
): Effect.Effect<Ended> =>
  Effect.gen(function* () {
    const bound = yield* Bound
    return yield* exchange(argv, env, reply).pipe(
      Effect.timeoutOrElse({
        duration: bound,
        orElse: () => Effect.succeed({ problem: "no answer in time", stdout: "", stderr: "", timedOut: true })
      })
    )
  })

const exchange = (
  argv: readonly [string, ...ReadonlyArray<string>],
  env: Readonly<Record<string, string>>,
  reply: ((stdout: string) => string | null) | undefined
): Effect.Effect<Ended> =>
  Effect.callback<Ended>((resume) => {
    const [file, ...args] = argv
    let stdout = ""
    let stderr = ""
    let answered = reply === undefined
    const child = spawn(file, args, { cwd: "/", env, stdio: "pipe", detached: true })
    const end = (problem: string | null) => resume(Effect.succeed({ problem, stdout, stderr, timedOut: false }))
    // A write to a program that has just died fails; its exit is reported instead.
    child.stdin.on("error", () => {})
    if (answered) child.stdin.end()
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      stdout = (stdout + text).slice(0, outputLimit)
      if (answered) return
      const answer = reply?.(stdout) ?? null
      if (answer === null) return
      answered = true
      child.stdin.write(answer)
    })
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      stderr = (stderr + text).slice(0, outputLimit)
    })
    child.once("error", (error) => end(error.message))
    // "close", not "exit": then all pipes are closed, and the output is complete.
    child.once("close", (code, signal) => end(problemOf(code, signal, stderr)))
    return Effect.callback<void>((done) => {
      killGroup(child.pid)
      child.stdin.destroy()
      child.stdout.destroy()
      child.stderr.destroy()
      if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) done(Effect.void)
      else child.once("exit", () => done(Effect.void))
    })
  })

const killGroup = (pid: number | undefined): void => {
  if (pid === undefined) return
  try {
    process.kill(-pid, "SIGKILL")
  } catch {
    // The group has no process left.
  }
}
