/**
 * Runs a child process to its end. It ends with this process, and an error contains the last lines that it printed.
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { spawn } from "node:child_process"
import { delimiter } from "node:path"

/** The command could not be started, or did not exit with 0. `output` is the end of its standard error (or output). */
export class CommandFailed extends Schema.TaggedError<CommandFailed>()("CommandFailed", {
  command: Schema.String,
  status: Schema.String,
  output: Schema.String
}) {
  override get message(): string {
    return `${this.command} ended with ${this.status}${this.output === "" ? "" : `: ${this.output}`}`
  }
}

/** Where Debian keeps tools such as mkfs.ext4; a user's PATH lacks these directories. */
export const systemDirectories: ReadonlyArray<string> = ["/usr/local/sbin", "/usr/sbin", "/sbin"]

/** PATH with `systemDirectories`. */
export const searchPath = (): string => [process.env["PATH"] ?? "", ...systemDirectories].join(delimiter)

const keep = 4000

/**
 * Runs a program and returns its standard output (at most the last 4 MB). Interruption ends its whole process group with TERM,
 * and two seconds later with KILL. Its standard input is a pipe that closes when this process dies, for children that watch it.
 *
 * @param onLine is called with each line of standard output as it comes.
 */
export const run = (
  command: string,
  args: ReadonlyArray<string>,
  options: {
    readonly cwd?: string
    readonly env?: Readonly<Record<string, string>>
    readonly onLine?: (line: string) => Effect.Effect<void>
  } = {}
): Effect.Effect<string, CommandFailed> =>
  Effect.flatMap(Effect.context<never>(), (context) =>
    Effect.callback<string, CommandFailed>((resume) => {
      const child = spawn(command, args, {
        stdio: ["pipe", "pipe", "pipe"],
        detached: true,
        env: { ...process.env, PATH: searchPath(), ...options.env },
        ...(options.cwd === undefined ? {} : { cwd: options.cwd })
      })
      let out = ""
      let line = ""
      let said = ""
      child.stdin.on("error", () => {})
      child.stdout.setEncoding("utf8").on("data", (chunk: string) => {
        out = (out + chunk).slice(-4_000_000)
        if (options.onLine === undefined) return
        const lines = (line + chunk).split("\n")
        line = lines.pop() ?? ""
        for (const each of lines) Effect.runForkWith(context)(options.onLine(each))
      })
      child.stderr.setEncoding("utf8").on("data", (chunk: string) => {
        said = (said + chunk).slice(-keep)
      })
      child.on("error", (cause) =>
        resume(Effect.fail(new CommandFailed({ command, status: "no start", output: cause.message })))
      )
      child.on("close", (code, signal) =>
        resume(
          code === 0
            ? Effect.succeed(out)
            : Effect.fail(
                new CommandFailed({
                  command: [command, ...args.slice(0, 2)].join(" "),
                  status: signal ?? `code ${code}`,
                  output: (said.trim() || out.trim()).slice(-keep)
                })
              )
        )
      )
      return Effect.gen(function* () {
        const ended = Effect.callback<void>((done) => {
          if (child.exitCode !== null || child.signalCode !== null) return done(Effect.void)
          child.once("exit", () => done(Effect.void))
        })
        signalGroup(child.pid, "SIGTERM")
        yield* Effect.timeoutOrElse(ended, { duration: "2 seconds", orElse: () => Effect.void })
        signalGroup(child.pid, "SIGKILL")
      })
    })
  )

const signalGroup = (pid: number | undefined, signal: NodeJS.Signals): void => {
  if (pid === undefined) return
  try {
    process.kill(-pid, signal)
  } catch {
    // The group is gone.
  }
}
