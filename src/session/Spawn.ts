/** Starts programs in a session: `run` waits for the end, `spawn` returns a handle. */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import * as Sink from "effect/Sink"
import * as Stream from "effect/Stream"
import type * as Execution from "../Execution.ts"
import * as Agent from "../guest/Agent.ts"
import type { Evidence } from "../guest/Evidence.ts"
import { Sub } from "../guest/Frame.ts"
import { type Request, spawn as spawnMethod } from "../guest/Methods.ts"
import { decodeInput } from "../internal/decodeInput.ts"
import type { Limits } from "../Limits.ts"
import * as Process from "../Process.ts"
import type { Receipt } from "../Receipt.ts"
import { fail, ProtocolError, type LimitExceeded, SandboxError } from "../SandboxError.ts"
import * as Attempt from "./Attempt.ts"
import type { Context } from "./Context.ts"

const decodeCommand = decodeInput(Process.Command, "command")
const decodeSpawn = decodeInput(Process.SpawnOptions, "spawn options")
const decodeRun = decodeInput(Process.RunOptions, "run options")
const decodeSignal = decodeInput(Process.Signal, "signal")
const decodeSize = decodeInput(Process.Size, "size")

/** How long closing a process's scope waits for a guest that still answers to end the process. */
const closeTimeout = "10 seconds"

const requestOf = (
  command: Process.Command,
  { cwd, env, user = "user", ...options }: Process.SpawnOptions | Process.RunOptions,
  attempt: Attempt.Attempt,
  kind: "run" | "spawn"
): Request<typeof spawnMethod> => ({
  ...(typeof command === "string" ? { shell: command } : { argv: command }),
  cwd,
  env,
  user,
  pty: "pty" in options ? options.pty : undefined,
  // The result of `run` contains only a part of a long output: the guest writes the rest to files.
  ...attempt.enforced(kind === "run"),
  survives: kind === "spawn" || undefined
})

const begin = (
  context: Context,
  command: Process.Command,
  limits: Limits | undefined,
  timeMs: number | null | undefined,
  changes?: Process.RunOptions["changes"]
) =>
  Attempt.begin(context, {
    language: null,
    argv: typeof command === "string" ? ["bash", "-c", command] : command,
    code: null,
    limits: limits ?? {},
    changes,
    ...(timeMs !== undefined && { timeMs })
  })

/** Runs a command to its end in a session; see `Session.run`. */
export const run = Effect.fn("Process.run")(function* (
  context: Context,
  given: Process.Command,
  givenOptions: Process.RunOptions = {}
): Effect.fn.Return<Execution.Result, Execution.Failure, Scope.Scope> {
  const command = yield* decodeCommand(given)
  const options = yield* decodeRun(givenOptions)
  const attempt = yield* begin(context, command, options.limits, undefined, options.changes)
  const stdin = options.stdin === undefined ? new Uint8Array() : Buffer.from(options.stdin as string)
  const evidence = yield* context.running
    .withPermit(
      Effect.gen(function* () {
        const stream = yield* context.vm
          .open(spawnMethod, requestOf(command, options, attempt, "run"), [{ sub: Sub.stdin, bytes: stdin }])
          .pipe(Effect.catch((error) => attempt.lost(error, false)))
        const deadline = (yield* Clock.currentTimeMillis) + (attempt.timeMs ?? 0) + Attempt.graceMs
        return yield* Attempt.follow(attempt, stream, () => Effect.void, deadline)
      })
    )
    .pipe(Effect.catchTag("Refused", (refused) => attempt.refused(refused, false)))
  return yield* attempt.conclude(evidence)
}, Effect.scoped)

/**
 * Starts a process in a session; see `Session.spawn`. If the caller is interrupted before it has the handle, the process is
 * ended at once: without a handle nothing else could end it before the end of the scope.
 */
export const spawn = Effect.fn("Process.spawn")(function* (
  context: Context,
  given: Process.Command,
  givenOptions: Process.SpawnOptions = {}
): Effect.fn.Return<Process.Process, SandboxError, Scope.Scope> {
  const command = yield* decodeCommand(given)
  const options = yield* decodeSpawn(givenOptions)
  const own = yield* Scope.fork(yield* Effect.scope)
  return yield* start(context, command, options).pipe(
    Scope.provide(own),
    Effect.onError((cause) => Scope.close(own, Exit.failCause(cause)))
  )
})

const start = Effect.fnUntraced(function* (
  context: Context,
  command: Process.Command,
  options: Process.SpawnOptions
): Effect.fn.Return<Process.Process, SandboxError, Scope.Scope> {
  const attempt = yield* begin(context, command, options.limits, options.limits?.timeMs ?? null)
  const stream = yield* context.vm
    .open(spawnMethod, requestOf(command, options, attempt, "spawn"))
    .pipe(Effect.catch((error) => attempt.lost(error, false)))

  const started = yield* Deferred.make<number, SandboxError>()
  const exited = yield* Deferred.make<Process.Exit, Process.Failure>()
  const outputs = {
    stdout: yield* Queue.make<Uint8Array, SandboxError | Cause.Done>(),
    stderr: yield* Queue.make<Uint8Array, SandboxError | Cause.Done>()
  }
  let unread = 0
  let leaving = false

  /** Passes output to its readers until the stream ends. The guest gets credit only for what they have read. */
  const follow = Agent.follow(
    stream,
    (it): Effect.Effect<void, SandboxError> => {
      if (it._tag === "Note") {
        Deferred.doneUnsafe(started, Effect.succeed(it.note.pid ?? 0))
        return attempt.began
      }
      if (it.sub === Sub.file) return attempt.changed(it.bytes)
      const name = it.sub === Sub.stderr ? "stderr" : "stdout"
      attempt[name].push(it.bytes)
      if (leaving) {
        stream.consumed(it.bytes.length)
      } else if (it.bytes.length > 0) {
        unread += it.bytes.length
        Queue.offerUnsafe(outputs[name], it.bytes)
      }
      return Effect.void
    },
    "later"
  ).pipe(
    Effect.catchTags({
      VmLost: (error) => attempt.lost(error, true),
      ChannelViolation: (error) => attempt.violated(error.problem),
      Refused: (refused) => attempt.refused(refused, false)
    })
  )

  const judge = (evidence: Evidence): Effect.Effect<Process.Exit, Process.Failure> =>
    attempt.conclude(evidence).pipe(
      Effect.catch(unlessItRan),
      Effect.map(({ receipt }) => ({
        exitCode: evidence.exitCode ?? 1,
        signal: evidence.signal,
        usage: evidence.usage,
        receipt
      }))
    )

  /** Reports the end to everything that waits for it; readers get it after the output. */
  const settle = (exit: Exit.Exit<Process.Exit, Process.Failure>): void => {
    Deferred.doneUnsafe(exited, exit)
    const error = Option.getOrUndefined(Exit.findErrorOption(exit))
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
      // The output is not read any more: the guest must not wait for credit.
      leaving = true
      stream.consumed(unread)
      yield* Effect.andThen(stream.order({ event: "close" }), Effect.exit(Deferred.await(exited))).pipe(
        Effect.timeoutOption(closeTimeout),
        Effect.raceFirst(context.vm.silence)
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
    signal: (name) => Effect.flatMap(decodeSignal(name), (signal) => stream.order({ event: "signal", signal })),
    resize: (size) =>
      Effect.flatMap(decodeSize(size), ({ cols, rows }) => stream.order({ event: "resize", cols, rows })),
    exit: Deferred.await(exited)
  }
})

/** The limits that end a process from outside: those processes have no `Exit`. */
const enforced: ReadonlySet<LimitExceeded["limit"]> = new Set(["time", "memory", "output"])

/** Some errors of an execution are none of a process: a process that ended by itself has an `Exit`. */
const unlessItRan = (error: Execution.Failure): Effect.Effect<{ readonly receipt: Receipt }, Process.Failure> => {
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
