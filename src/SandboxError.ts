/**
 * The five error channels.
 *
 * `PermissionDenied`, `UnsupportedCommand`, `LimitExceeded` and `TaskFailed` say why a *task* stopped. Each has the same fields
 * as a finished execution (`Execution.Result`): the output until then and the receipt. `SandboxError` says that the sandbox
 * itself failed; its `reason` says which part, and `retry` whether the same call may be made again. Evidence from the guest
 * decides between them, never the text on stderr.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import { Changes } from "./Changes.ts"
import { Ecosystem } from "./Packages.ts"
import { Name as LimitName } from "./Limits.ts"
import { Receipt } from "./Receipt.ts"

/**
 * The fields of every finished execution, failed or not.
 *
 * `stdout` and `stderr` are text (bytes that are not UTF-8 become U+FFFD), `bytes` has both as exact bytes. `outputFiles` has
 * paths in the guest, each `null` unless the output was longer than the limit `outputBytes` and the disk had room: the file
 * holds everything after the head that is kept here (the first half of `outputBytes`, rounded up), and lasts as long as the
 * session unless its code removes it. `changes` lists the files that differ from the start of the execution, `null` unless
 * requested.
 *
 * @internal
 */
export const resultFields = {
  stdout: Schema.String,
  stderr: Schema.String,
  bytes: Schema.Struct({ stdout: Schema.Uint8Array, stderr: Schema.Uint8Array }),
  outputFiles: Schema.Struct({ stdout: Schema.NullOr(Schema.String), stderr: Schema.NullOr(Schema.String) }),
  changes: Schema.NullOr(Changes),
  receipt: Receipt
}

/**
 * The policy or the guest's kernel refused something, and that ended the task.
 *
 * `operation` is what the task tried and `target` the path, command or address, `null` when it is not known. `rule` refused it:
 * a rule of the policy, or the name of the kernel's errno, such as `EACCES`. `grant` says in a sentence what would allow it.
 *
 * @since 0.1.0
 * @category errors
 */
export class PermissionDenied extends Schema.TaggedError<PermissionDenied>()("PermissionDenied", {
  operation: Schema.Literals(["file", "execute", "syscall", "network", "package", "port", "user"]),
  target: Schema.NullOr(Schema.String),
  rule: Schema.String,
  grant: Schema.String,
  ...resultFields
}) {
  override get message(): string {
    return `permission denied: ${this.operation}${this.target === null ? "" : ` ${JSON.stringify(this.target)}`} (${this.rule}); ${this.grant}`
  }
}

/**
 * The task needs something that does not exist in the guest.
 *
 * `kind`: `command` (not found), `executable` (a file that this machine cannot run), `module` (not installed), `language` or
 * `feature` (not in this image). `available`: similar names that do exist, possibly none.
 *
 * @since 0.1.0
 * @category errors
 */
export class UnsupportedCommand extends Schema.TaggedError<UnsupportedCommand>()("UnsupportedCommand", {
  kind: Schema.Literals(["command", "executable", "module", "language", "feature"]),
  name: Schema.String,
  available: Schema.Array(Schema.String),
  ...resultFields
}) {
  override get message(): string {
    const near = this.available.length === 0 ? "" : `; available: ${this.available.join(", ")}`
    return `unsupported ${this.kind}: ${JSON.stringify(this.name)} does not exist here${near}`
  }
}

/** The unit of each limit's `allowed` and `observed`. */
const unitOf = {
  time: "ms",
  memory: "bytes",
  output: "bytes",
  disk: "bytes",
  "file-size": "bytes",
  processes: "processes"
} as const satisfies Record<LimitName, string>

/**
 * The task reached a limit. `allowed` and `observed` are in ms for `time`, in bytes for `memory`, `output`, `disk` and
 * `file-size`, and a count for `processes`; each is `null` when it is not known.
 *
 * @since 0.1.0
 * @category errors
 */
export class LimitExceeded extends Schema.TaggedError<LimitExceeded>()("LimitExceeded", {
  limit: LimitName,
  allowed: Schema.NullOr(Schema.Finite),
  observed: Schema.NullOr(Schema.Finite),
  ...resultFields
}) {
  override get message(): string {
    const unit = unitOf[this.limit]
    const allowed = this.allowed === null ? "" : `: ${this.allowed} ${unit} allowed`
    const observed = this.observed === null ? "" : `, ${this.observed} observed`
    return `${this.limit} limit exceeded${allowed}${observed}`
  }
}

/** How a task failed: it exited with this code, which is not 0. @since 0.1.0 @category models */
export const ExitCode = Schema.TaggedStruct("ExitCode", { exitCode: Schema.Int })
/** How a task failed: this signal ended it, for example `SIGSEGV`. @since 0.1.0 @category models */
export const Signal = Schema.TaggedStruct("Signal", { signal: Schema.String })
/** How a task failed: it did not catch this exception. @since 0.1.0 @category models */
export const Exception = Schema.TaggedStruct("Exception", {
  type: Schema.String,
  message: Schema.String,
  traceback: Schema.String
})

/**
 * The task ran and failed by itself; `reason` says how.
 *
 * @since 0.1.0
 * @category errors
 */
export class TaskFailed extends Schema.TaggedError<TaskFailed>()("TaskFailed", {
  reason: Schema.Union([ExitCode, Signal, Exception]),
  ...resultFields
}) {
  override get message(): string {
    switch (this.reason._tag) {
      case "ExitCode":
        return `task failed with exit code ${this.reason.exitCode}`
      case "Signal":
        return `task was ended by ${this.reason.signal}`
      case "Exception":
        return `task failed with ${this.reason.type}${this.reason.message === "" ? "" : `: ${this.reason.message}`}`
    }
  }
}

/**
 * The request is not valid and nothing was started: correct `field`, whose `problem` is this, to what is `expected`.
 *
 * @since 0.1.0
 * @category reasons
 */
export class InvalidInput extends Schema.TaggedError<InvalidInput>()("InvalidInput", {
  field: Schema.String,
  problem: Schema.String,
  expected: Schema.String
}) {
  /** Whether the same call may be made again, see `SandboxError.retry`. */
  readonly retry = "never" as const
  override get message(): string {
    return `invalid ${this.field}: ${this.problem}; expected ${this.expected}`
  }
}

/**
 * This host does not meet a `requirement` (`found` is `null` when it is missing): do what `fix` says; `exec-sandbox doctor` checks
 * all requirements.
 *
 * @since 0.1.0
 * @category reasons
 */
export class HostUnsupported extends Schema.TaggedError<HostUnsupported>()("HostUnsupported", {
  requirement: Schema.String,
  found: Schema.NullOr(Schema.String),
  needed: Schema.String,
  fix: Schema.String
}) {
  /** Whether the same call may be made again, see `SandboxError.retry`. */
  readonly retry = "never" as const
  override get message(): string {
    return `${this.requirement}: found ${this.found ?? "none"}, needs ${this.needed}; ${this.fix}`
  }
}

/**
 * There is no usable image, because it is missing or damaged, or its build or download failed: do what `fix` says, then try again.
 *
 * @since 0.1.0
 * @category reasons
 */
export class ImageUnavailable extends Schema.TaggedError<ImageUnavailable>()("ImageUnavailable", {
  image: Schema.String,
  problem: Schema.String,
  fix: Schema.String,
  cause: Schema.optionalKey(Schema.Defect())
}) {
  /** Whether the same call may be made again, see `SandboxError.retry`. */
  readonly retry = "safe" as const
  override get message(): string {
    return `image ${this.image}: ${this.problem}; ${this.fix}`
  }
}

/**
 * The template `key` could not be built, stored or used: resolve `problem`, such as a full disk, then try again, which builds the
 * template when it is missing or damaged.
 *
 * @since 0.1.0
 * @category reasons
 */
export class TemplateUnusable extends Schema.TaggedError<TemplateUnusable>()("TemplateUnusable", {
  key: Schema.String,
  problem: Schema.String,
  cause: Schema.optionalKey(Schema.Defect())
}) {
  /** Whether the same call may be made again, see `SandboxError.retry`. */
  readonly retry = "safe" as const
  override get message(): string {
    return `template ${this.key}: ${this.problem}`
  }
}

/**
 * A package registry could not be reached, or failed three times: try again later. When it `refused` this caller, another try
 * fails too, until the credentials for the registry are right.
 *
 * @since 0.1.0
 * @category reasons
 */
export class PackagesUnavailable extends Schema.TaggedError<PackagesUnavailable>()("PackagesUnavailable", {
  ecosystem: Ecosystem,
  refused: Schema.Boolean,
  problem: Schema.String
}) {
  /** Whether the same call may be made again, see `SandboxError.retry`. */
  get retry(): "safe" | "never" {
    return this.refused ? "never" : "safe"
  }
  override get message(): string {
    return `${this.ecosystem} packages: ${this.problem}`
  }
}

/**
 * A VM did not start: try again, and if it fails every time look at `stage`, the step that failed, and at `console`, the last
 * output of QEMU and the guest's kernel.
 *
 * @since 0.1.0
 * @category reasons
 */
export class BootFailed extends Schema.TaggedError<BootFailed>()("BootFailed", {
  stage: Schema.Literals(["launch", "monitor", "boot", "seal", "restore", "handover"]),
  problem: Schema.String,
  console: Schema.String
}) {
  /** Whether the same call may be made again, see `SandboxError.retry`. */
  readonly retry = "safe" as const
  override get message(): string {
    return `VM failed at ${this.stage}: ${this.problem}${this.console === "" ? "" : `\n${this.console}`}`
  }
}

/** Memory in MiB, and CPU slots. */
const Share = Schema.Struct({ memoryMiB: Schema.Finite, cpus: Schema.Finite })
const share = (it: typeof Share.Type): string => `${it.memoryMiB} MiB and ${it.cpus} CPU slots`

/**
 * The host had no room for the VM within the allowed wait: try again later, close sessions, or ask for less if `retry` is `never`.
 *
 * `asked` is what the VM needs, `free` what was free at the end of the wait and `total` the most that this host can give, each
 * with `memoryMiB` and `cpus` (slots). A VM that needs more than `total` fails at once. `waiting` counts the other callers in the
 * queue, `waitedMs` is the wait in ms.
 *
 * @since 0.1.0
 * @category reasons
 */
export class CapacityExceeded extends Schema.TaggedError<CapacityExceeded>()("CapacityExceeded", {
  asked: Share,
  free: Share,
  total: Share,
  waiting: Schema.Int,
  waitedMs: Schema.Finite
}) {
  /** Whether the same call may be made again, see `SandboxError.retry`. */
  get retry(): "safe" | "never" {
    return this.asked.memoryMiB > this.total.memoryMiB || this.asked.cpus > this.total.cpus ? "never" : "safe"
  }
  override get message(): string {
    return this.retry === "never"
      ? `no capacity: asked for ${share(this.asked)}, this host can give ${share(this.total)} at the most`
      : `no capacity after ${this.waitedMs} ms: asked for ${share(this.asked)}, free ${share(this.free)}, ${this.waiting} others waiting`
  }
}

/**
 * The VM was lost before the code reached it, so the code did not run: run it again, in a new session if the session is closed.
 *
 * @since 0.1.0
 * @category reasons
 */
export class NotStarted extends Schema.TaggedError<NotStarted>()("NotStarted", {
  problem: Schema.String
}) {
  /** Whether the same call may be made again, see `SandboxError.retry`. */
  readonly retry = "safe" as const
  override get message(): string {
    return `not started: ${this.problem}`
  }
}

/**
 * The VM was lost after the code was handed over, so all, some or none of it may have run: before running it again, check what it
 * does outside the VM; `receipt` has what is known.
 *
 * @since 0.1.0
 * @category reasons
 */
export class OutcomeUnknown extends Schema.TaggedError<OutcomeUnknown>()("OutcomeUnknown", {
  problem: Schema.String,
  receipt: Receipt
}) {
  /** Whether the same call may be made again, see `SandboxError.retry`. */
  readonly retry = "unsafe" as const
  override get message(): string {
    return `outcome unknown: ${this.problem}`
  }
}

/**
 * The session has ended for the `problem` given and runs nothing more: open a new one.
 *
 * @since 0.1.0
 * @category reasons
 */
export class SessionClosed extends Schema.TaggedError<SessionClosed>()("SessionClosed", {
  session: Schema.String,
  problem: Schema.String
}) {
  /** Whether the same call may be made again, see `SandboxError.retry`. */
  readonly retry = "never" as const
  override get message(): string {
    return `session ${this.session} is closed: ${this.problem}`
  }
}

/**
 * A snapshot could not be taken or used: `kind` says why and what to do.
 *
 * - `unknown`: no snapshot has this name or id; `Snapshots.list` has those that exist.
 * - `exists`: a snapshot has this name already; choose another name, or remove it first.
 * - `damaged`: its files are not as they were stored; remove it and take a new one.
 * - `foreign`: it needs another image, QEMU or kind of host; use it there, or take a new one here.
 * - `store-full`: the store's limit or the disk is reached; remove snapshots or raise the limit.
 * - `unsupported`: this session cannot be captured.
 * - `capture`: taking it failed; try again. The session goes on unless its VM was lost.
 *
 * `snapshot` is the name or id that the caller gave, `null` for a snapshot without one.
 *
 * @since 0.1.0
 * @category reasons
 */
export class SnapshotFailed extends Schema.TaggedError<SnapshotFailed>()("SnapshotFailed", {
  snapshot: Schema.NullOr(Schema.String),
  kind: Schema.Literals(["unknown", "exists", "damaged", "foreign", "store-full", "unsupported", "capture"]),
  problem: Schema.String,
  cause: Schema.optionalKey(Schema.Defect())
}) {
  /** Whether the same call may be made again, see `SandboxError.retry`. */
  get retry(): "safe" | "never" {
    return this.kind === "capture" ? "safe" : "never"
  }
  override get message(): string {
    return `snapshot${this.snapshot === null ? "" : ` ${this.snapshot}`}: ${this.problem}`
  }
}

/**
 * The guest broke the protocol and its VM was destroyed; the code may have run and may be hostile: check before running it again.
 *
 * @since 0.1.0
 * @category reasons
 */
export class ProtocolError extends Schema.TaggedError<ProtocolError>()("ProtocolError", {
  problem: Schema.String
}) {
  /** Whether the same call may be made again, see `SandboxError.retry`. */
  readonly retry = "unsafe" as const
  override get message(): string {
    return `the guest broke the protocol: ${this.problem}`
  }
}

/**
 * Which part of the sandbox failed. Each reason says what it means and what to do, has a `message` of one or more lines, and
 * `retry`, whether the same call may be made again (see `SandboxError.retry`).
 *
 * @since 0.1.0
 * @category reasons
 */
export const Reason = Schema.Union([
  InvalidInput,
  HostUnsupported,
  ImageUnavailable,
  TemplateUnusable,
  PackagesUnavailable,
  BootFailed,
  CapacityExceeded,
  NotStarted,
  OutcomeUnknown,
  SessionClosed,
  SnapshotFailed,
  ProtocolError
])
/** See the schema of the same name. @since 0.1.0 @category reasons */
export type Reason = typeof Reason.Type

/**
 * The sandbox failed. `reason` says which part; handle one reason with `Effect.catchReason("SandboxError", "InvalidInput", …)`.
 *
 * @since 0.1.0
 * @category errors
 */
export class SandboxError extends Schema.TaggedError<SandboxError>()("SandboxError", {
  reason: Reason
}) {
  override get message(): string {
    return this.reason.message
  }
  /** `safe`: the code did not run, so try again. `unsafe`: it may have run. `never`: the same call would fail again. */
  get retry(): "safe" | "unsafe" | "never" {
    return this.reason.retry
  }
}

/** Makes a `SandboxError` of a reason. @since 0.1.0 @category constructors */
export const fail = (reason: Reason): SandboxError => new SandboxError({ reason })
