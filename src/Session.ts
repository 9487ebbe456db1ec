/**
 * Session: a caller's exclusive hold on one VM. Executions of one language share their state and run one after another;
 * different interpreters run side by side.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import type { HttpClient } from "effect/http/HttpClient"
import type * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type { Changes, Mark } from "./Changes.ts"
import * as Egress from "./egress/Egress.ts"
import * as Execution from "./Execution.ts"
import type { Files } from "./Files.ts"
import { Sub } from "./guest/Frame.ts"
import type { ExecOpen } from "./guest/Protocol.ts"
import * as Attempt from "./session/Attempt.ts"
import { decodeInput } from "./internal/decodeInput.ts"
import * as Guest from "./session/Guest.ts"
import * as GuestFiles from "./files/make.ts"
import * as Idle from "./session/Idle.ts"
import * as Parking from "./session/Parking.ts"
import * as SessionChanges from "./changes/Marks.ts"
import * as SessionNetwork from "./session/Network.ts"
import * as SessionPorts from "./ports/Expose.ts"
import type { Limits } from "./Limits.ts"
import * as NetworkPolicy from "./NetworkPolicy.ts"
import type { Ports } from "./Ports.ts"
import * as Process from "./Process.ts"
import type { Publisher } from "./Receipts.ts"
import type { SessionOptions } from "./Sandbox.ts"
import { fail, type SandboxError, SessionClosed, SnapshotFailed } from "./SandboxError.ts"
import type { Snapshot, SnapshotOptions } from "./Snapshot.ts"
import type { Vm } from "./Vm.ts"

/**
 * A caller's hold on one VM, for as long as its scope is open.
 *
 * @since 0.1.0
 * @category models
 */
export interface Session {
  /** Names the session in receipts: `ses-` and 16 hex digits. */
  readonly id: string
  /**
   * Executes code and waits for its end.
   *
   * Fails with `PermissionDenied`, `UnsupportedCommand`, `LimitExceeded` or `TaskFailed` when the task did not succeed,
   * each with all output and the receipt, and with `SandboxError` when the sandbox could not do its job. Interrupting it
   * ends the code's whole process tree; the session stays usable.
   */
  readonly exec: (request: Execution.Request) => Effect.Effect<Execution.Result, Execution.Failure>
  /**
   * Executes code and gives its output as it is written, then the result. A reader that stops reading stops the code's
   * writing (back-pressure), and one that leaves ends the code.
   */
  readonly stream: (request: Execution.Request) => Stream.Stream<Execution.Event, Execution.Failure>
  /**
   * What processes, timers and threads write after their execution has ended; it is never part of another execution's
   * output. At most 256 KiB wait for a reader: what is written beyond that is let go, and counted. It ends with the session;
   * several readers share it, each event going to one of them.
   */
  readonly output: Stream.Stream<LateOutput>
  /**
   * Starts a program, or a text for `bash -c`, beside everything else in the session, and gives a handle on it. Closing
   * the scope ends it with all that it has started. That a program could not be started is an error of its `exit`.
   */
  readonly spawn: (
    command: Process.Command,
    options?: Process.SpawnOptions
  ) => Effect.Effect<Process.Process, SandboxError, Scope.Scope>
  /**
   * Runs a program, or a text for `bash -c`, to its end and judges it as `exec` judges code: the same result, the same
   * errors, the same default time limit. Interrupting it ends the program's whole process tree. Of one session 128 run at a
   * time; more wait, which is none of their time.
   */
  readonly run: (
    command: Process.Command,
    options?: Process.RunOptions
  ) => Effect.Effect<Execution.Result, Execution.Failure>
  /** The session's files. A lost VM fails what is under way with `SessionClosed`: its disk is gone with it. */
  readonly files: Files
  /** The servers that run in the guest, reached over a port of the host. */
  readonly ports: Ports
  /**
   * An HTTP client for the servers that run in the guest; no port of the host is used. The guest is `http://localhost:PORT`,
   * and any other address an `InvalidUrlError`. At most 64 requests are under way at a time, the rest wait.
   */
  readonly http: HttpClient
  /** Marks this moment, so that `changes` can tell what is different since. */
  readonly mark: Effect.Effect<Mark, SandboxError>
  /**
   * Which files are not what they were when the session began, or at a mark. `InvalidInput` for a mark of another session,
   * or one that is not kept any more.
   */
  readonly changes: (options?: ChangesOptions) => Effect.Effect<Changes, SandboxError>
  /** What the session may reach, and what it has tried to. */
  readonly network: NetworkPolicy.Network
  /**
   * Parks the session now: its VM is saved and its process ended, so that it takes no memory of the host, until something is
   * asked of the session again; then it wakes and goes on as it was. What runs in the background stands still meanwhile. False
   * when the session is in use: while something is executed, a spawned program runs, files are read or watched, or a connection
   * into or out of it is open. Fails with `SnapshotFailed` when it cannot be saved; the session then stays as it is. See
   * `SessionOptions.parkAfterMs` for having it done by itself.
   */
  readonly park: Effect.Effect<boolean, SandboxError>
  /** Ends the session and its VM now, as the end of its scope does; done when the VM is dead. */
  readonly close: Effect.Effect<void>
  /**
   * Saves the session as it is at one moment, while it runs on; see `Snapshot` for what it is, `Snapshot.notCaptured` for what
   * is not in it, and `Sandbox.session({ from })` for starting from it. An execution that is under way at that moment is, in
   * what starts from the snapshot, one that was interrupted then. Fails with `SnapshotFailed`, or with `CapacityExceeded`: it
   * takes a QEMU beside the session's for a moment.
   */
  readonly snapshot: (options?: SnapshotOptions) => Effect.Effect<Snapshot, SandboxError>
  /**
   * `n` sessions, 1 to 100, that go on from where this one is at one moment, while it runs on; nothing of it is stored. They
   * are independent of it, live as long as the scope, and have its env, each of its limits, idle time, network policy and secrets
   * where `options` says nothing else. Each is a success or an error by itself; that nothing could be captured fails the whole with
   * `SnapshotFailed`.
   */
  readonly fork: (
    n: number,
    options?: Omit<SessionOptions, "from">
  ) => Effect.Effect<ReadonlyArray<Result.Result<Session, SandboxError>>, SandboxError, Scope.Scope>
}

/** How copies of a session are made; `Sandbox` knows. */
export interface Copying {
  readonly snapshot: (source: CopySource, options: SnapshotOptions | undefined) => Effect.Effect<Snapshot, SandboxError>
  readonly fork: (
    source: CopySource,
    n: number,
    options: Omit<SessionOptions, "from"> | undefined
  ) => ReturnType<Session["fork"]>
}

/** What is to be known of a session to copy it. */
export interface CopySource {
  readonly session: string
  /** The languages that something was run in. */
  readonly languages: ReadonlyArray<Execution.Language>
}

/**
 * Output that came after the end of its execution, whose receipt has this `sequence` (`null` when it is one of more than
 * 4096 executions ago); or, as `Dropped`, how many bytes were let go at this point.
 *
 * @since 0.1.0
 * @category models
 */
export type LateOutput =
  | { readonly _tag: "Stdout"; readonly sequence: number | null; readonly bytes: Uint8Array }
  | { readonly _tag: "Stderr"; readonly sequence: number | null; readonly bytes: Uint8Array }
  | { readonly _tag: "Dropped"; readonly bytes: number }

/**
 * What `changes` is asked: `since` when (the session's start when absent), and as in `Changes.Options`.
 *
 * @since 0.1.0
 * @category options
 */
export type ChangesOptions = SessionChanges.Options
/** A session that nobody knows how to copy. */
const cannotCopy = fail(
  new SnapshotFailed({ snapshot: null, kind: "unsupported", problem: "this session cannot be captured" })
)
const uncopyable: Copying = {
  snapshot: () => Effect.fail(cannotCopy),
  fork: () => Effect.fail(cannotCopy)
}

/** How long a session may be idle, in ms, when nothing is said. */
export const defaultIdleMs = 300_000

/** Executions whose numbers are remembered for their late output. */
const maxRemembered = 4096

const decodeRequest = decodeInput(Execution.Request, "request")

/** Where a session's VM came from, for its receipts. */
export type Origin = Attempt.Origin

/** Makes a session over a VM that has been handed over. It is closed when the scope is, or when the VM is lost. */
export const make = Effect.fnUntraced(function* (
  machine: Vm,
  origin: Origin,
  limits: Required<Limits>,
  receipts: Publisher,
  idleMs: number = defaultIdleMs,
  copying: Copying = uncopyable,
  way?: Egress.Egress,
  parking?: Parking.Parking
): Effect.fn.Return<Session, never, Scope.Scope> {
  const idle = yield* Idle.make(
    idleMs,
    () => {
      holder.closed ??= `it was idle for ${idleMs} ms`
    },
    machine.destroy
  )
  const vm = Idle.watching(machine, idle)
  const presence = parking ?? Parking.always
  const egress = way ?? (yield* Egress.make(NetworkPolicy.none))
  const holder = yield* Attempt.hold({ vm, origin, limits, receipts, egress, presence })
  let outstandingMs = 0
  /** From the channel's number of an execution to the receipt's, oldest first. */
  const sequences = new Map<number, number>()
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      holder.closed ??= "its scope has ended"
    })
  )

  const over = Effect.suspend(() =>
    Effect.fail(fail(new SessionClosed({ session: holder.id, problem: holder.closed ?? "it was closed" })))
  )
  const used = new Set<Execution.Language>()
  /** Keeps the session from being closed for idleness, or parked, meanwhile. */
  const copy = <A, R>(
    effect: (source: CopySource) => Effect.Effect<A, SandboxError, R>
  ): Effect.Effect<A, SandboxError, R> =>
    Effect.acquireUseRelease(
      Scope.make(),
      (using) =>
        holder.closed === undefined
          ? Effect.andThen(
              Scope.provide(Effect.andThen(idle.use, Parking.using(presence)), using),
              Effect.suspend(() => effect({ session: holder.id, languages: [...used] }))
            )
          : over,
      (using, exit) => Scope.close(using, exit)
    )

  const execute = Effect.fn("Session.exec")(function* (
    input: Execution.Request,
    emit: (event: Execution.Event) => Effect.Effect<void>,
    keep: boolean
  ): Effect.fn.Return<Execution.Result, Execution.Failure, Scope.Scope> {
    const request = yield* decodeRequest(input)
    const code = Buffer.from(request.code)
    const stdin = request.stdin === undefined ? new Uint8Array() : Buffer.from(request.stdin as string)
    const attempt = yield* Attempt.begin(holder, {
      language: request.language,
      argv: null,
      code,
      limits: request.limits ?? {},
      changes: request.changes
    })
    if (!origin.languages.includes(request.language)) {
      const { languages } = origin
      return yield* attempt.unsupported({ kind: "language", name: request.language, available: languages })
    }
    used.add(request.language)
    const open: ExecOpen = {
      method: "exec",
      language: request.language,
      codeBytes: code.length,
      stdinBytes: stdin.length,
      env: request.env,
      cwd: request.cwd,
      timeoutMs: attempt.timeMs ?? undefined,
      memoryBytes: attempt.ownMemoryBytes ?? undefined,
      processes: attempt.ownProcesses ?? undefined,
      fileSizeBytes: attempt.ownFileSizeBytes ?? undefined,
      outputBytes: attempt.outputBytes,
      outputFail: attempt.outputFails || undefined,
      keep: (keep && !attempt.outputFails) || undefined,
      changes: attempt.changes ?? undefined
    }
    const inputs = [
      { sub: Sub.code, bytes: code },
      { sub: Sub.stdin, bytes: stdin }
    ]
    const stream = yield* vm
      .open(open, stdin.length === 0 ? inputs.slice(0, 1) : inputs)
      .pipe(Effect.catch((error) => attempt.lost(error, false)))
    attempt.prepare()
    sequences.set(stream.id, attempt.sequence)
    if (sequences.size > maxRemembered) for (const oldest of sequences.keys()) if (sequences.delete(oldest)) break
    // Executions may have to wait for all before them.
    const patience = (attempt.timeMs ?? 0) + Attempt.graceMs
    outstandingMs += patience
    yield* Effect.addFinalizer(() =>
      Effect.sync(() => {
        outstandingMs -= patience
      })
    )
    const last = yield* Attempt.follow(attempt, stream, emit, (yield* Clock.currentTimeMillis) + outstandingMs)
    // The agent could not make the interpreter ready or different: this VM must not be used any more.
    // One that died while the code was on its way has a successor.
    if (last === undefined || "code" in last) return yield* attempt.refused(last, last?.code !== "lost")
    const result = yield* attempt.conclude(Execution.classify(last), last)
    yield* emit({ _tag: "Done", result })
    return result
  }, Effect.scoped)

  const guest = Guest.make(vm, {
    id: holder.id,
    closed: () => holder.closed,
    close: (problem) => {
      holder.closed ??= problem
    },
    presence
  })
  const { http, ports } = yield* SessionPorts.make(guest, holder.ports, machine.failure)

  return {
    id: holder.id,
    spawn: (command, options) => Process.spawn(holder, command, options),
    run: (command, options) => Process.run(holder, command, options),
    exec: (request) => execute(request, () => Effect.void, true),
    files: GuestFiles.make(guest),
    ...SessionChanges.make(guest, holder.id),
    ports,
    http,
    network: SessionNetwork.make(holder),
    close: Effect.suspend(() => {
      holder.closed ??= "it was closed"
      return machine.destroy
    }),
    park: Effect.suspend(() => (holder.closed === undefined ? (parking?.park ?? Effect.succeed(false)) : over)),
    snapshot: (options) => copy((source) => copying.snapshot(source, options)),
    fork: (n, options) => copy((source) => copying.fork(source, n, options)),
    output: Stream.fromPull(
      Effect.succeed(
        Effect.map(vm.lateOutput, (pieces) =>
          Arr.map(pieces, (piece): LateOutput => {
            if (piece._tag === "Dropped") return piece
            return { _tag: piece._tag, sequence: sequences.get(piece.stream) ?? null, bytes: piece.bytes }
          })
        )
      )
    ),
    stream: (request) =>
      Stream.callback<Execution.Event, Execution.Failure>(
        (queue) =>
          execute(
            request,
            (event) => Effect.asVoid(holder.deadlines.standStill(Queue.offer(queue, event))),
            false
          ).pipe(
            Effect.andThen(Queue.end(queue)),
            Effect.catchCause((cause) => Queue.failCause(queue, cause))
          ),
        { bufferSize: 16, strategy: "suspend" }
      )
  }
})
