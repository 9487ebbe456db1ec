/**
 * Process: a program started by name in a session, with pipes or a terminal, that runs beside everything else.
 *
 * `spawn` gives a handle on a program that runs; `run` runs one to its end and judges it as an execution. An array of
 * arguments is found in PATH and never meets a shell; a string is given to `bash -c`.
 *
 * @since 0.1.0
 */
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as Sink from "effect/Sink"
import type * as Stream from "effect/Stream"
import * as Execution from "./Execution.ts"
import { Limits } from "./Limits.ts"
import type { Receipt } from "./Receipt.ts"
import type { LimitExceeded, PermissionDenied, SandboxError, UnsupportedCommand } from "./SandboxError.ts"

const text = Schema.String.check(
  Schema.makeFilter((it: string) => !it.includes("\0") && it.isWellFormed(), {
    expected: "well-formed text without NUL characters"
  })
)

/** Bytes of a command as it travels: in JSON. With 128 KiB of environment it fits one frame. */
const maxCommand = 96 * 1024

/**
 * What to start: a program with its arguments (the program is found in the session's PATH, and no shell reads any of it),
 * or a text for `bash -c`. Not empty, without NUL, as JSON at most 96 KiB.
 *
 * @since 0.1.0
 * @category models
 */
export const Command = Schema.Union([Schema.Array(text), text]).check(
  Schema.makeFilter((it: string | ReadonlyArray<string>) => it.length > 0 && it[0] !== "", {
    expected: "a command that is not empty"
  }),
  Schema.makeFilter((it: string | ReadonlyArray<string>) => Buffer.byteLength(JSON.stringify(it)) <= maxCommand, {
    expected: `at most ${maxCommand} bytes of command`
  })
)
/**
 * @since 0.1.0
 * @category models
 */
export type Command = typeof Command.Type

/**
 * A terminal's size in characters, `cols` and `rows` from 1 to 10,000 each.
 *
 * @since 0.1.0
 * @category models
 */
export const Size = Schema.Struct({
  cols: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 10_000 }, { expected: "1 to 10000 columns" })),
  rows: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 10_000 }, { expected: "1 to 10000 rows" }))
})
/**
 * @since 0.1.0
 * @category models
 */
export type Size = typeof Size.Type

/**
 * The signals that can be sent, by Linux's names.
 *
 * @since 0.1.0
 * @category models
 */
export const Signal = Schema.Literals([
  "SIGHUP",
  "SIGINT",
  "SIGQUIT",
  "SIGILL",
  "SIGTRAP",
  "SIGABRT",
  "SIGBUS",
  "SIGFPE",
  "SIGKILL",
  "SIGUSR1",
  "SIGSEGV",
  "SIGUSR2",
  "SIGPIPE",
  "SIGALRM",
  "SIGTERM",
  "SIGCHLD",
  "SIGCONT",
  "SIGSTOP",
  "SIGTSTP",
  "SIGTTIN",
  "SIGTTOU",
  "SIGURG",
  "SIGXCPU",
  "SIGXFSZ",
  "SIGVTALRM",
  "SIGPROF",
  "SIGWINCH",
  "SIGIO",
  "SIGPWR",
  "SIGSYS"
])
/**
 * @since 0.1.0
 * @category models
 */
export type Signal = typeof Signal.Type

const common = {
  cwd: Schema.optionalKey(
    text.check(Schema.isStartingWith("/", { expected: "an absolute path" }), Schema.isMaxLength(4096))
  ),
  env: Schema.optionalKey(Execution.Environment),
  user: Schema.optionalKey(Schema.Literals(["user", "root"]))
}

/**
 * How a process is started.
 *
 * - `cwd`: an absolute path in the guest; the user's home when absent.
 * - `env`: environment variables over the session's. With a terminal, TERM is `xterm-256color` unless it is set.
 * - `user`: `user` (uid 1000, no new privileges; the default) or `root` (the VM is the boundary).
 * - `pty`: gives it a terminal of that size; its stderr then comes on stdout. Pipes when absent.
 * - `limits`: for the process and all that it starts; what is absent comes from the session, except that without `timeMs`
 *   there is no time limit. Output that is read is not truncated; with `output: "fail"` too much of it ends the process.
 *
 * @since 0.1.0
 * @category models
 */
export const SpawnOptions = Schema.Struct({
  ...common,
  pty: Schema.optionalKey(Size),
  limits: Schema.optionalKey(Limits)
})
/**
 * @since 0.1.0
 * @category models
 */
export type SpawnOptions = typeof SpawnOptions.Type

/**
 * How a command is run to its end: `cwd`, `env` and `user` as in `SpawnOptions`; `stdin` is all it reads, at most 16 MiB,
 * nothing when absent; `limits` are an execution's; `changes` as in `Execution.Request`.
 *
 * @since 0.1.0
 * @category models
 */
export const RunOptions = Schema.Struct({
  ...common,
  stdin: Execution.Request.fields.stdin,
  limits: Schema.optionalKey(Limits),
  changes: Execution.Request.fields.changes
})
/**
 * @since 0.1.0
 * @category models
 */
export type RunOptions = typeof RunOptions.Type

/**
 * How a process ended. `exitCode` is what a shell would show, 128+n for a signal, whose name is `signal`. `usage` covers
 * the process and all that it started: `cpuMs` and `wallMs` in ms, `peakMemoryBytes` in bytes, `null` when not known.
 *
 * @since 0.1.0
 * @category models
 */
export interface Exit {
  readonly exitCode: number
  readonly signal: string | null
  readonly usage: Receipt["usage"]
  readonly receipt: Receipt
}

/**
 * Why a process has no `Exit`: it could not be started, a limit ended it, or the sandbox failed. A process that ended with
 * a code other than 0, or by a signal, has one.
 *
 * @since 0.1.0
 * @category errors
 */
export type Failure = UnsupportedCommand | PermissionDenied | LimitExceeded | SandboxError

/**
 * A process. It is ended, with all that it has started, when its scope closes (SIGTERM, one second later SIGKILL), and is
 * gone when the scope has closed. What it left running when it ended by itself stays until the session's end.
 *
 * The host holds at most 256 KiB of output that nobody has read; then the process has to wait, as with any pipe. So read
 * both `stdout` and `stderr`, or run the one of no interest with `Stream.runDrain`.
 *
 * @since 0.1.0
 * @category models
 */
export interface Process {
  /** Its process id in the guest. */
  readonly pid: number
  /** What it writes; with a terminal, all of it. A stream of bytes that can be read once, and ends with the process. */
  readonly stdout: Stream.Stream<Uint8Array, SandboxError>
  /** What it writes to stderr; nothing with a terminal. */
  readonly stderr: Stream.Stream<Uint8Array, SandboxError>
  /**
   * Takes what it reads, at its pace. The end of what is run into it ends the process's stdin (on a terminal it types ^D);
   * what comes after the process's end is thrown away.
   */
  readonly stdin: Sink.Sink<void, Uint8Array>
  /** Sends bytes to its stdin without ending it. */
  readonly write: (bytes: Uint8Array | string) => Effect.Effect<void>
  /** Sends a signal to the process and all that it has started. */
  readonly signal: (name: Signal) => Effect.Effect<void, SandboxError>
  /** Changes the size of its terminal; it gets SIGWINCH. Nothing happens without one. */
  readonly resize: (size: Size) => Effect.Effect<void, SandboxError>
  /** Waits for its end; the same every time. All its output has arrived by then, read or not. */
  readonly exit: Effect.Effect<Exit, Failure>
}
