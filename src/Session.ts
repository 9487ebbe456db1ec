/**
 * Session: a caller's exclusive hold on one VM. Executions of one language share their state and run one after another;
 * different interpreters run side by side.
 *
 * @since 0.1.0
 */
import type * as Effect from "effect/Effect"
import type { HttpClient } from "effect/http/HttpClient"
import type * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type * as Stream from "effect/Stream"
import type { Changes, Mark } from "./Changes.ts"
import type { Options as ReportOptions } from "./changes/Marks.ts"
import type * as Execution from "./Execution.ts"
import type { Files } from "./Files.ts"
import type * as NetworkPolicy from "./NetworkPolicy.ts"
import type { Ports } from "./Ports.ts"
import type * as Process from "./Process.ts"
import type { SandboxError } from "./SandboxError.ts"
import type { ForkOptions } from "./session/Options.ts"
import type { Snapshot, SnapshotOptions } from "./Snapshot.ts"

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
    options?: ForkOptions
  ) => Effect.Effect<ReadonlyArray<Result.Result<Session, SandboxError>>, SandboxError, Scope.Scope>
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
export type ChangesOptions = ReportOptions

/**
 * How long a session may be idle before it is closed, in ms, where `idleMs` is absent.
 *
 * @since 0.1.0
 * @category constants
 */
export const defaultIdleMs = 300_000
