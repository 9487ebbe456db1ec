/**
 * Process: a program started by name in a session, with pipes or a terminal, that runs beside everything else.
 *
 * `spawn` gives a handle on a program that runs; `run` runs one to its end and judges it as an execution. An array of
 * arguments is found in PATH and never meets a shell; a string is given to `bash -c`.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as EffectExit from "effect/Exit"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import * as Sink from "effect/Sink"
import * as Stream from "effect/Stream"
import * as Execution from "./Execution.ts"
import { Sub } from "./guest/Frame.ts"
import type { Evidence, Reset, SpawnOpen } from "./guest/Protocol.ts"
import * as Attempt from "./session/Attempt.ts"
import { decodeInput } from "./internal/decodeInput.ts"
import { Limits } from "./Limits.ts"
import type { Receipt } from "./Receipt.ts"
import {
  fail,
  ProtocolError,
  type LimitExceeded,
  type PermissionDenied,
  SandboxError,
  type UnsupportedCommand
} from "./SandboxError.ts"

const text = Schema.String.check(
  Schema.makeFilter((it: string) => !it.includes("\0") && it.isWellFormed(), {
    expected: "well-formed text without NUL characters"
  })
)

/** Bytes of a command as it travels: in JSON. With 128 KiB of environment it fits one frame. */
const maxCommand = 96 * 1024

const Command = Schema.Union([Schema.Array(text), text]).check(
  Schema.makeFilter((it: string | ReadonlyArray<string>) => it.length > 0 && it[0] !== "", {
    expected: "a command that is not empty"
  }),
  Schema.makeFilter((it: string | ReadonlyArray<string>) => Buffer.byteLength(JSON.stringify(it)) <= maxCommand, {
    expected: `at most ${maxCommand} bytes of command`
  })
)

/**
 * What to start: a program with its arguments (the program is found in the session's PATH, and no shell reads any of it),
 * or a text for `bash -c`. Not empty, without NUL, as JSON at most 96 KiB.
 *
 * @since 0.1.0
 * @category models
 */
export type Command = ReadonlyArray<string> | string

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

const decodeCommand = decodeInput(Command, "command")
const decodeSpawn = decodeInput(SpawnOptions, "spawn options")
const decodeRun = decodeInput(RunOptions, "run options")
const decodeSignal = decodeInput(Signal, "signal")
const decodeSize = decodeInput(Size, "size")

/** How long a process may take to be gone, in a guest that lives, before its caller goes on without it. */
const goneWithin = "10 seconds"

/** Of a command that is run, the guest keeps what the result will not hold of a long output. */
const openOf = (
  command: Command,
  options: SpawnOptions | RunOptions,
  attempt: Attempt.Attempt,
  kind: "run" | "spawn"
): SpawnOpen => ({
  method: "spawn",
  argv: typeof command === "string" ? null : command,
  shell: typeof command === "string" ? command : null,
  cwd: options.cwd ?? null,
  env: options.env ?? {},
  user: options.user ?? "user",
  pty: "pty" in options ? options.pty : null,
  timeoutMs: attempt.timeMs,
  memoryBytes: attempt.ownMemoryBytes,
  processes: attempt.ownProcesses,
  fileSizeBytes: attempt.ownFileSizeBytes,
  outputBytes: attempt.outputBytes,
  outputFail: attempt.outputFails,
  keep: kind === "run" && !attempt.outputFails,
  changes: attempt.changes,
  survives: kind === "spawn"
})

const begin = (
  holder: Attempt.Holder,
  command: Command,
  limits: Limits | undefined,
  timeMs: number | null | undefined,
  changes?: RunOptions["changes"]
) =>
  Attempt.begin(holder, {
    language: null,
    argv: typeof command === "string" ? ["bash", "-c", command] : command,
    code: null,
    limits: limits ?? {},
    changes,
    ...(timeMs !== undefined && { timeMs })
  })

/** Runs a command to its end in a session; see `Session.run`. */
export const run = Effect.fn("Process.run")(function* (
  holder: Attempt.Holder,
  given: Command,
  givenOptions: RunOptions = {}
): Effect.fn.Return<Execution.Result, Execution.Failure, Scope.Scope> {
  const command = yield* decodeCommand(given)
  const options = yield* decodeRun(givenOptions)
  const attempt = yield* begin(holder, command, options.limits, undefined, options.changes)
  const stdin = options.stdin === undefined ? new Uint8Array() : Buffer.from(options.stdin as string)
  const last = yield* holder.running.withPermit(
    Effect.gen(function* () {
      const stream = yield* holder.vm
        .open(openOf(command, options, attempt, "run"), [{ sub: Sub.stdin, bytes: stdin }])
        .pipe(Effect.catch((error) => attempt.lost(error, false)))
      const deadline = (yield* Clock.currentTimeMillis) + (attempt.timeMs ?? 0) + Attempt.graceMs
      return yield* Attempt.follow(attempt, stream, () => Effect.void, deadline)
    })
  )
  if (last === undefined || "code" in last) return yield* attempt.refused(last, false)
  return yield* attempt.conclude(Execution.classify(last), last)
}, Effect.scoped)

/**
 * Starts a process in a session; see `Session.spawn`. One whose caller gets no handle, because it was interrupted meanwhile,
 * is ended at once: nobody else could before the end of the scope.
 */
export const spawn = Effect.fn("Process.spawn")(function* (
  holder: Attempt.Holder,
  given: Command,
  givenOptions: SpawnOptions = {}
): Effect.fn.Return<Process, SandboxError, Scope.Scope> {
  const command = yield* decodeCommand(given)
  const options = yield* decodeSpawn(givenOptions)
  const own = yield* Scope.fork(yield* Effect.scope)
  return yield* start(holder, command, options).pipe(
    Scope.provide(own),
    Effect.onError((cause) => Scope.close(own, EffectExit.failCause(cause)))
  )
})

const start = Effect.fnUntraced(function* (
  holder: Attempt.Holder,
  command: Command,
  options: SpawnOptions
): Effect.fn.Return<Process, SandboxError, Scope.Scope> {
  const attempt = yield* begin(holder, command, options.limits, options.limits?.timeMs ?? null)
  const stream = yield* holder.vm
    .open(openOf(command, options, attempt, "spawn"), [])
    .pipe(Effect.catch((error) => attempt.lost(error, false)))

  const started = yield* Deferred.make<number, SandboxError>()
  const exited = yield* Deferred.make<Exit, Failure>()
  const outputs = {
    stdout: yield* Queue.make<Uint8Array, SandboxError | Cause.Done>(),
    stderr: yield* Queue.make<Uint8Array, SandboxError | Cause.Done>()
  }
  let unread = 0
  let leaving = false

  /** Hands output on to its readers until the stream ends; what they have read is granted anew. */
  const follow = Effect.gen(function* () {
    for (;;) {
      const events = yield* Effect.catchIf(stream.take, Cause.isDone, () => Effect.void)
      if (events === undefined) return undefined
      for (const event of events) {
        switch (event._tag) {
          case "Data": {
            const name = event.sub === Sub.stderr ? "stderr" : "stdout"
            attempt[name].push(event.bytes)
            if (leaving) {
              stream.consumed(event.bytes.length)
            } else if (event.bytes.length > 0) {
              unread += event.bytes.length
              Queue.offerUnsafe(outputs[name], event.bytes)
            }
            break
          }
          case "Note": {
            const pid = Attempt.startedPid(event.value)
            if (pid === undefined) break
            yield* attempt.began
            Deferred.doneUnsafe(started, Effect.succeed(pid))
            break
          }
          case "Reset":
            return event
          case "End":
            return yield* attempt.evidence(event.value)
        }
      }
    }
  }).pipe(Effect.catchTag("VmLost", (error) => attempt.lost(error, true)))

  const judge = (last: Evidence | Reset | undefined): Effect.Effect<Exit, Failure> => {
    if (last === undefined || "code" in last) return attempt.refused(last, false)
    return attempt.conclude(Execution.classify(last), last).pipe(
      Effect.catch(unlessItRan),
      Effect.map(({ receipt }) => ({
        exitCode: last.exitCode ?? 1,
        signal: last.signal,
        usage: last.usage,
        receipt
      }))
    )
  }

  /** Everything that waits learns of the end, the readers of its output after they have read it. */
  const settle = (exit: EffectExit.Exit<Exit, Failure>): void => {
    Deferred.doneUnsafe(exited, exit)
    const error = Option.getOrUndefined(EffectExit.findErrorOption(exit))
    const failure = error instanceof SandboxError ? error : undefined
    Deferred.doneUnsafe(
      started,
      Effect.fail(failure ?? fail(new ProtocolError({ problem: "a process that ended before it started" })))
    )
    for (const queue of Object.values(outputs)) {
      if (failure === undefined) Queue.endUnsafe(queue)
      else Queue.failCauseUnsafe(queue, Cause.fail(failure))
    }
  }
  yield* follow.pipe(Effect.flatMap(judge), Effect.exit, Effect.map(settle), Effect.forkScoped)

  yield* Effect.addFinalizer(() =>
    Effect.gen(function* () {
      if (yield* Deferred.isDone(exited)) return
      // Nobody reads any more: the guest must not wait for it.
      leaving = true
      stream.consumed(unread)
      yield* Effect.andThen(stream.note({ event: "close" }), Effect.exit(Deferred.await(exited))).pipe(
        Effect.timeoutOption(goneWithin),
        Effect.raceFirst(holder.vm.silence)
      )
    })
  )

  const reader = (queue: Queue.Queue<Uint8Array, SandboxError | Cause.Done>) =>
    Stream.fromPull(
      Effect.succeed(
        Effect.map(Queue.take(queue), (bytes): readonly [Uint8Array] => {
          if (!leaving) {
            unread -= bytes.length
            stream.consumed(bytes.length)
          }
          return [bytes]
        })
      )
    )
  const oneAtATime = yield* Semaphore.make(1)
  const write = (bytes: Uint8Array, end: boolean) =>
    Effect.asVoid(oneAtATime.withPermit(stream.write(Sub.stdin, bytes, end)))

  return {
    pid: yield* Deferred.await(started),
    stdout: reader(outputs.stdout),
    stderr: reader(outputs.stderr),
    stdin: Sink.mapEffect(
      Sink.forEach((bytes: Uint8Array) => write(bytes, false)),
      () => write(new Uint8Array(), true)
    ),
    write: (bytes) => write(typeof bytes === "string" ? Buffer.from(bytes) : bytes, false),
    signal: (name) => Effect.flatMap(decodeSignal(name), (signal) => stream.note({ event: "signal", signal })),
    resize: (size) =>
      Effect.flatMap(decodeSize(size), ({ cols, rows }) => stream.note({ event: "resize", cols, rows })),
    exit: Deferred.await(exited)
  }
})

/** The limits that end a process from outside. */
const enforced: ReadonlySet<LimitExceeded["limit"]> = new Set(["time", "memory", "output"])

/** Not every error of an execution is one of a process: what ran and ended by itself has an exit. */
const unlessItRan = (error: Execution.Failure): Effect.Effect<{ readonly receipt: Receipt }, Failure> => {
  switch (error._tag) {
    case "TaskFailed":
      return Effect.succeed(error)
    case "LimitExceeded":
      return enforced.has(error.limit) ? Effect.fail(error) : Effect.succeed(error)
    case "PermissionDenied":
      return error.operation === "syscall" ? Effect.succeed(error) : Effect.fail(error)
    default:
      return Effect.fail(error)
  }
}
