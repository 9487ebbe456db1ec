/** `exec-sandbox shell`: a program in a VM of its own, on the user's terminal. */
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Stdio from "effect/Stdio"
import * as Stream from "effect/Stream"
import { spawnSync } from "node:child_process"
import type { Writable } from "node:stream"
import type { Process, Size } from "../../Process.ts"
import * as Sandbox from "../../Sandbox.ts"
import { Leave } from "../ending.ts"
import * as flags from "../flags.ts"
import { write } from "../output.ts"
import { withProgress } from "../progress.ts"
import { secret, secretsOf } from "../secrets.ts"

/** Terminals that the image has terminfo for. */
const terminals = /^(ansi|linux|rxvt|screen|tmux|vt\d+|xterm)(-[a-z0-9]+)*$/

/** The variables that describe the user's terminal to programs in the guest. */
const terminalEnv = (): Readonly<Record<string, string>> => {
  const { COLORTERM, TERM = "" } = process.env
  return { ...(terminals.test(TERM) && { TERM }), ...(COLORTERM !== undefined && { COLORTERM }) }
}

const size = (): Size => ({
  cols: Math.min(10_000, process.stdout.columns || 80),
  rows: Math.min(10_000, process.stdout.rows || 24)
})

const enterRawMode = (): void => {
  process.stdin.setRawMode(true)
  // Node's raw mode still turns \n into \r\n, which breaks full-screen programs.
  spawnSync("stty", ["-opost"], { stdio: ["inherit", "ignore", "ignore"] })
}

/** Enters raw mode again after SIGCONT, because the shell that stopped this process has changed the terminal. */
const enterAgain = (): void => {
  process.stdin.setRawMode(false)
  enterRawMode()
}

/**
 * Puts the user's terminal into raw mode until the scope closes. If the process ends without closing it, Node restores the
 * terminal.
 */
const rawMode = Effect.acquireRelease(
  Effect.sync(() => {
    enterRawMode()
    process.on("SIGCONT", enterAgain)
  }),
  () =>
    Effect.sync(() => {
      process.off("SIGCONT", enterAgain)
      process.stdin.setRawMode(false)
    })
)

/** Gives the process's terminal the size of the user's, at the start and after every change. */
const follow = (it: Process): Effect.Effect<never> =>
  Stream.callback<void>((queue) => {
    const changed = (): void => void Queue.offerUnsafe(queue, undefined)
    return Effect.acquireRelease(
      Effect.sync(() => process.stdout.on("resize", changed)),
      () => Effect.sync(() => process.stdout.off("resize", changed))
    )
  }).pipe(
    Stream.concat(Stream.never),
    Stream.prepend([undefined]),
    Stream.runForEach(() => Effect.ignore(Effect.suspend(() => it.resize(size())))),
    Effect.andThen(Effect.never)
  )

const copy = (from: Process["stdout"], to: Writable) => Stream.runForEach(from, (bytes) => write(to, bytes))

/** Connects this process's streams to the guest's process until that ends, and gives its exit code. */
const attach = Effect.fnUntraced(function* (it: Process, terminal: boolean) {
  const { stdin } = yield* Stdio.Stdio
  if (terminal) {
    yield* rawMode
    yield* Effect.forkScoped(follow(it))
  }
  yield* Stream.run(
    Stream.orElseSucceed(stdin, () => new Uint8Array()),
    it.stdin
  ).pipe(Effect.forkScoped)
  yield* Effect.all([copy(it.stdout, process.stdout), copy(it.stderr, process.stderr)], { concurrency: "unbounded" })
  return (yield* it.exit).exitCode
})

export const shell = Command.make(
  "shell",
  {
    command: Argument.String("command").pipe(
      Argument.withDescription("A program and its arguments (default: bash)"),
      Argument.variadic()
    ),
    memory: flags.memory,
    env: flags.env,
    network: flags.network,
    allow: flags.allow,
    secret,
    quiet: flags.quiet
  },
  Effect.fn("cli.shell")(function* ({ allow, command, env, memory, network, quiet, secret }) {
    const terminal = process.stdin.isTTY && process.stdout.isTTY
    const code = yield* withProgress(
      quiet,
      Effect.fnUntraced(
        function* (drawer) {
          const session = yield* Sandbox.session({
            env: { ...(terminal && terminalEnv()), ...env },
            limits: Option.isSome(memory) ? { memoryMiB: memory.value } : {},
            network: flags.policyOf(network, allow),
            secrets: yield* secretsOf(secret)
          })
          yield* drawer.clear
          const it = yield* session.spawn(command.length === 0 ? ["bash"] : command, terminal ? { pty: size() } : {})
          return yield* Effect.scoped(attach(it, terminal))
        },
        Effect.scoped,
        Effect.provide(Sandbox.layer)
      )
    )
    if (code !== 0) return yield* new Leave({ code })
  })
).pipe(
  Command.withDescription(
    "Open a shell, or run a program, in a VM of its own, on this terminal. Without a terminal, stdin, stdout and stderr " +
      "are pipes. The VM and its files are deleted at the end. The exit code is the program's own."
  ),
  Command.withShortDescription("Open a shell in a VM of its own"),
  Command.withExamples([
    { command: "exec-sandbox shell", description: "bash" },
    { command: "exec-sandbox shell -m 1024 -e DEBUG=1 python3 -i", description: "Another program, with more memory" },
    { command: "tar c . | exec-sandbox shell tar t", description: "As a filter, without a terminal" }
  ])
)
