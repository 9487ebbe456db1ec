/**
 * Process: a program that runs in a session, with pipes or a terminal, at the same time as everything else.
 *
 * `spawn` returns a handle of a running program; `run` runs one to its end and returns a result as an execution does. An
 * array is a program, found in PATH, and its arguments, without a shell; a string is a script for `bash -c`.
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

/** The most bytes of a command as JSON, which is how it is sent. Together with 128 KiB of environment it fits one frame. */
const maxCommand = 96 * 1024

/**
 * What to start: a program and its arguments (the program is found in the session's PATH, and no shell reads any of it),
 * or a script for `bash -c`. Not empty, without NUL, as JSON at most 96 KiB.
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
 * A terminal's size in characters: `cols` and `rows`, from 1 to 10,000 each.
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
 * The signals that can be sent, by their names in Linux.
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
 * The options of `spawn`.
 *
 * - `cwd`: an absolute path in the guest; the user's home when absent.
 * - `env`: environment variables in addition to the session's, which they replace. With a terminal, TERM is `xterm-256color`
 *   unless it is set.
 * - `user`: `user` (uid 1000, no new privileges; the default) or `root` (the VM is the boundary).
 * - `pty`: the process gets a terminal of this size, and its stderr comes on stdout. Pipes when absent.
 * - `limits`: for the process and all that it starts; what is absent comes from the session, except that without `timeMs`
 *   there is no time limit. The `stdout` and `stderr` streams are not truncated; with `output: "fail"`, more than
 *   `outputBytes` of one ends the process.
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
 * The options of `run`: `cwd`, `env` and `user` as in `SpawnOptions`; `stdin`, `limits` and `changes` as in
 * `Execution.Request`.
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
 * How a process ended. `exitCode` is what a shell would show: 128 + n after signal number n, whose name is then in `signal`
 * (`null` otherwise). `usage` covers the process and all that it started: `cpuMs` and `wallMs` in ms, `peakMemoryBytes` in
 * bytes, each `null` when not known.
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
 * Why a process has no `Exit`: it could not be started, a limit ended it, or the sandbox failed. A process that ended by
 * itself, even with a code other than 0 or by a signal, has an `Exit`.
 *
 * @since 0.1.0
 * @category errors
 */
export type Failure = UnsupportedCommand | PermissionDenied | LimitExceeded | SandboxError

/**
 * A handle of a process. Closing its scope ends the process and all that it has started (SIGTERM, one second later SIGKILL);
 * they are gone when the scope has closed. If the process ends by itself, what it leaves running stays until the session ends.
 *
 * The host buffers at most 256 KiB of unread output; then the process has to wait, as with any pipe. So read both `stdout`
 * and `stderr`, or discard the one that you do not need with `Stream.runDrain`.
 *
 * @since 0.1.0
 * @category models
 */
export interface Process {
  /** Its process id in the guest. */
  readonly pid: number
  /** The bytes of its stdout, with a terminal also of its stderr. They can be read once; the stream ends with the process. */
  readonly stdout: Stream.Stream<Uint8Array, SandboxError>
  /** The bytes of its stderr; nothing with a terminal. */
  readonly stderr: Stream.Stream<Uint8Array, SandboxError>
  /**
   * Sends bytes to its stdin, with back-pressure. The end of the stream that is run into this sink ends the stdin (with a
   * terminal it types ^D). Bytes are dropped once the process has ended.
   */
  readonly stdin: Sink.Sink<void, Uint8Array>
  /** Sends bytes, or text as UTF-8, to its stdin without ending it. */
  readonly write: (bytes: Uint8Array | string) => Effect.Effect<void>
  /** Sends a signal to the process and all that it has started. */
  readonly signal: (name: Signal) => Effect.Effect<void, SandboxError>
  /** Changes the size of its terminal and sends SIGWINCH. Does nothing without a terminal. */
  readonly resize: (size: Size) => Effect.Effect<void, SandboxError>
  /** Waits for its end; every call has the same result. All its output has arrived at the host by then. */
  readonly exit: Effect.Effect<Exit, Failure>
}
