/**
 * Session: exclusive use of one VM. Executions of one language share their state and run one after another; different
 * languages, processes and file operations run at the same time.
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
 * Exclusive use of one VM, for as long as its scope is open.
 *
 * @since 0.1.0
 * @category models
 */
export interface Session {
  /** The session's id in receipts: `ses-` and 16 hex digits. */
  readonly id: string
  /**
   * Executes code and waits for its end.
   *
   * Fails with `PermissionDenied`, `UnsupportedCommand`, `LimitExceeded` or `TaskFailed` when the task did not succeed,
   * each with the output so far and the receipt, and with `SandboxError` when the sandbox could not do its job. Interrupting
   * it ends the code's whole process tree; the session stays usable.
   */
  readonly exec: (request: Execution.Request) => Effect.Effect<Execution.Result, Execution.Failure>
  /**
   * Executes code and streams its output as it is written, then the result. A reader that stops reading blocks the code's
   * writes (back-pressure); ending the stream early ends the code.
   */
  readonly stream: (request: Execution.Request) => Stream.Stream<Execution.Event, Execution.Failure>
  /**
   * What processes, timers and threads write after their execution has ended; it is never part of another execution's
   * output. At most 256 KiB are buffered for a reader: more is dropped, and counted. The stream ends with the session; with
   * several readers, each event goes to one of them.
   */
  readonly output: Stream.Stream<LateOutput>
  /**
   * Starts a program, or a script for `bash -c`, and returns a handle. It runs at the same time as everything else in the
   * session. Closing the scope ends it and all that it has started. If it cannot be started, its `exit` fails.
   */
  readonly spawn: (
    command: Process.Command,
    options?: Process.SpawnOptions
  ) => Effect.Effect<Process.Process, SandboxError, Scope.Scope>
  /**
   * Runs a program, or a script for `bash -c`, to its end, with the same results, errors and default time limit as `exec`.
   * Interrupting it ends the program's whole process tree. At most 128 run at a time in one session; more wait, which does not
   * count towards their time limit.
   */
  readonly run: (
    command: Process.Command,
    options?: Process.RunOptions
  ) => Effect.Effect<Execution.Result, Execution.Failure>
  /** The session's files. When the VM is lost, its disk is lost too: operations under way fail with `SessionClosed`. */
  readonly files: Files
  /** Exposes servers that run in the guest on ports of the host. */
  readonly ports: Ports
  /**
   * An HTTP client for the servers that run in the guest; it uses no port of the host. The guest is `http://localhost:PORT`;
   * any other address fails with `InvalidUrlError`. At most 64 requests are under way at a time, the rest wait.
   */
  readonly http: HttpClient
  /** Marks this moment, so that `changes` can report what has changed since. */
  readonly mark: Effect.Effect<Mark, SandboxError>
  /**
   * Reports which files differ from when the session began, or from a mark. Fails with `InvalidInput` for a mark of another
   * session, or one that is no longer kept.
   */
  readonly changes: (options?: ChangesOptions) => Effect.Effect<Changes, SandboxError>
  /** The session's network policy, and the connections that it has tried. */
  readonly network: NetworkPolicy.Network
  /**
   * Parks the session now: saves its VM and ends the VM's process, so that it takes no memory of the host. The next use of the
   * session wakes it, and it continues as it was; background work stands still meanwhile. Returns false when the session is in
   * use: while something is executed, a spawned program runs, files are read or watched, or a connection into or out of it is
   * open. Fails with `SnapshotFailed` when it cannot be saved; the session then stays as it is. `SessionOptions.parkAfterMs`
   * parks automatically.
   */
  readonly park: Effect.Effect<boolean, SandboxError>
  /** Ends the session and its VM now, as closing its scope does. It returns when the VM is dead. */
  readonly close: Effect.Effect<void>
  /**
   * Saves the session as it is at one moment; the session continues to run. See `Snapshot` for what a snapshot is,
   * `Snapshot.notCaptured` for what is not in it, and `Sandbox.session({ from })` to start from it. In a session that starts from
   * the snapshot, an execution that was under way counts as interrupted. Fails with `SnapshotFailed`, or with `CapacityExceeded`,
   * because it needs a second QEMU for a moment.
   */
  readonly snapshot: (options?: SnapshotOptions) => Effect.Effect<Snapshot, SandboxError>
  /**
   * Opens `n` sessions, 1 to 100, that continue from the state of this one, which continues to run; nothing is stored. They are
   * independent of it and live as long as the scope. What is absent in `options` is as in this session: env, each limit, idle
   * time, network policy and secrets. Each element is a session or the error that it failed with; if the state could not be
   * captured, the whole call fails with `SnapshotFailed`.
   */
  readonly fork: (
    n: number,
    options?: ForkOptions
  ) => Effect.Effect<ReadonlyArray<Result.Result<Session, SandboxError>>, SandboxError, Scope.Scope>
}

/**
 * Output that was written after the end of its execution. `sequence` is that of the execution's receipt, `null` when more than
 * 4,096 executions have begun since. `Dropped`: how many bytes were dropped at this point.
 *
 * @since 0.1.0
 * @category models
 */
export type LateOutput =
  | { readonly _tag: "Stdout"; readonly sequence: number | null; readonly bytes: Uint8Array }
  | { readonly _tag: "Stderr"; readonly sequence: number | null; readonly bytes: Uint8Array }
  | { readonly _tag: "Dropped"; readonly bytes: number }

/**
 * The options of `changes`: `since`, a mark (the session's start when absent), and those of `Changes.Options`.
 *
 * @since 0.1.0
 * @category options
 */
export type ChangesOptions = ReportOptions

/**
 * How long a session may be idle before it is closed, in ms, when `idleMs` is absent.
 *
 * @since 0.1.0
 * @category constants
 */
export const defaultIdleMs = 300_000
