/**
 * The five error channels.
 *
 * `PermissionDenied`, `UnsupportedCommand`, `LimitExceeded` and `TaskFailed` say why a *task* stopped and carry everything
 * it did until then. `SandboxError` says that the sandbox itself could not do its job; its `reason` tells which part, and
 * each reason knows whether trying again is safe. They are told apart by evidence from the guest, never by reading stderr.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import { Changes } from "./Changes.ts"
import { Ecosystem } from "./Packages.ts"
import { Name as LimitName } from "./Limits.ts"
import { Receipt } from "./Receipt.ts"

/**
 * What every finished execution has, failed or not: `stdout` and `stderr` as text (bytes that are not UTF-8 become
 * U+FFFD), the same as exact `bytes`, and the receipt. `outputFiles`: where in the guest everything is that follows the kept
 * head (the first half of `outputBytes`, rounded up) of an output longer than `outputBytes`; `null` for one that is not, or
 * that the disk had no room for. The files last as long as the session, unless its code removes them. `changes`: which files
 * are not what they were when it began, `null` unless that was asked for.
 *
 * @since 0.1.0
 * @category models
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
 * `operation` is what was tried, `target` the path, command or address, `rule` what refused it (the errno's name for the
 * guest's kernel) and `grant` what would allow it, in a sentence.
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
 * What was asked for does not exist here.
 *
 * `kind`: `command` (not found), `executable` (a file that is no program for this machine), `module` (not installed),
 * `language` or `feature` (not in this image). `available`: names that exist and come near, possibly none.
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
    const near = this.available.length === 0 ? "" : `; there is ${this.available.join(", ")}`
    return `unsupported ${this.kind}: ${JSON.stringify(this.name)} does not exist here${near}`
  }
}

/** The unit in which each limit's `allowed` and `observed` are counted. */
const unitOf = {
  time: "ms",
  memory: "bytes",
  output: "bytes",
  disk: "bytes",
  "file-size": "bytes",
  processes: "processes"
} as const satisfies Record<LimitName, string>

/**
 * A limit was hit. `allowed` and `observed` are in ms for `time`, in bytes for `memory`, `output`, `disk` and `file-size`, a
 * count for `processes`; either is `null` when it is not known. `stdout` and `stderr` hold what was written until then.
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

/** How a task failed: it ended with a non-zero code. @since 0.1.0 @category models */
export const ExitCode = Schema.TaggedStruct("ExitCode", { exitCode: Schema.Int })
/** How a task failed: a signal ended it, for example `SIGSEGV`. @since 0.1.0 @category models */
export const Signal = Schema.TaggedStruct("Signal", { signal: Schema.String })
/** How a task failed: an exception that nobody caught. @since 0.1.0 @category models */
export const Exception = Schema.TaggedStruct("Exception", {
  type: Schema.String,
  message: Schema.String,
  traceback: Schema.String
})

/**
 * The task ran and failed by its own doing.
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

/** The caller's request is not valid; nothing was started. `field` names it, `expected` says what would be right. @since 0.1.0 @category reasons */
export class InvalidInput extends Schema.TaggedError<InvalidInput>()("InvalidInput", {
  field: Schema.String,
  problem: Schema.String,
  expected: Schema.String
}) {
  /** Whether the same call may be made again. */
  readonly retry = "never" as const
  override get message(): string {
    return `invalid ${this.field}: ${this.problem}; expected ${this.expected}`
  }
}

/** This host lacks something: `requirement` names it, `found` and `needed` compare, `fix` says what to do. @since 0.1.0 @category reasons */
export class HostUnsupported extends Schema.TaggedError<HostUnsupported>()("HostUnsupported", {
  requirement: Schema.String,
  found: Schema.NullOr(Schema.String),
  needed: Schema.String,
  fix: Schema.String
}) {
  /** Whether the same call may be made again. */
  readonly retry = "never" as const
  override get message(): string {
    return `${this.requirement}: found ${this.found ?? "none"}, needs ${this.needed}; ${this.fix}`
  }
}

/** There is no usable image: not built, not pulled, damaged, or the build failed. `fix` says what to do. @since 0.1.0 @category reasons */
export class ImageUnavailable extends Schema.TaggedError<ImageUnavailable>()("ImageUnavailable", {
  image: Schema.String,
  problem: Schema.String,
  fix: Schema.String,
  cause: Schema.optionalKey(Schema.Defect())
}) {
  /** Whether the same call may be made again. */
  readonly retry = "safe" as const
  override get message(): string {
    return `image ${this.image}: ${this.problem}; ${this.fix}`
  }
}

/** A template could not be sealed, or a sealed one could not be used nor rebuilt. `key` names it. @since 0.1.0 @category reasons */
export class TemplateUnusable extends Schema.TaggedError<TemplateUnusable>()("TemplateUnusable", {
  key: Schema.String,
  problem: Schema.String,
  cause: Schema.optionalKey(Schema.Defect())
}) {
  /** Whether the same call may be made again. */
  readonly retry = "safe" as const
  override get message(): string {
    return `template ${this.key}: ${this.problem}`
  }
}

/**
 * A package registry could not be reached, or did not answer as it should, three times; or it `refused` to serve who asks, which
 * no further try will change.
 *
 * @since 0.1.0
 * @category reasons
 */
export class PackagesUnavailable extends Schema.TaggedError<PackagesUnavailable>()("PackagesUnavailable", {
  ecosystem: Ecosystem,
  refused: Schema.Boolean,
  problem: Schema.String
}) {
  /** Whether the same call may be made again. */
  get retry(): "safe" | "never" {
    return this.refused ? "never" : "safe"
  }
  override get message(): string {
    return `${this.ecosystem} packages: ${this.problem}`
  }
}

/** A VM did not come up. `stage` is the step that failed; `console` holds the end of what QEMU and the guest's kernel said. @since 0.1.0 @category reasons */
export class BootFailed extends Schema.TaggedError<BootFailed>()("BootFailed", {
  stage: Schema.Literals(["launch", "monitor", "boot", "seal", "restore", "handover"]),
  problem: Schema.String,
  console: Schema.String
}) {
  /** Whether the same call may be made again. */
  readonly retry = "safe" as const
  override get message(): string {
    return `VM failed at ${this.stage}: ${this.problem}${this.console === "" ? "" : `\n${this.console}`}`
  }
}

/** Memory in MiB and slots for VMs. */
const Share = Schema.Struct({ memoryMiB: Schema.Finite, cpus: Schema.Finite })
const share = (it: typeof Share.Type): string => `${it.memoryMiB} MiB and ${it.cpus} CPU slots`

/**
 * The host had no room for the VM within the wait allowed. `asked` is what the VM is charged, `free` what could be given at
 * the end, `total` what there is at the best, each with `memoryMiB` and `cpus` (slots); `waiting` counts the other callers
 * in the queue. More than `total` can never be had: that fails at once.
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
  /** Whether the same call may be made again. */
  get retry(): "safe" | "never" {
    return this.asked.memoryMiB > this.total.memoryMiB || this.asked.cpus > this.total.cpus ? "never" : "safe"
  }
  override get message(): string {
    return this.retry === "never"
      ? `no capacity: asked for ${share(this.asked)}, this host can give ${share(this.total)} at the most`
      : `no capacity after ${this.waitedMs} ms: asked for ${share(this.asked)}, free ${share(this.free)}, ${this.waiting} others waiting`
  }
}

/** The VM was lost before the code reached it: it certainly did not run. @since 0.1.0 @category reasons */
export class NotStarted extends Schema.TaggedError<NotStarted>()("NotStarted", {
  problem: Schema.String
}) {
  /** Whether the same call may be made again. */
  readonly retry = "safe" as const
  override get message(): string {
    return `not started: ${this.problem}`
  }
}

/** The VM was lost after the code was handed over: it may have run, in part or whole. @since 0.1.0 @category reasons */
export class OutcomeUnknown extends Schema.TaggedError<OutcomeUnknown>()("OutcomeUnknown", {
  problem: Schema.String,
  receipt: Receipt
}) {
  /** Whether the same call may be made again. */
  readonly retry = "unsafe" as const
  override get message(): string {
    return `outcome unknown: ${this.problem}`
  }
}

/** The session is over; nothing more runs in it. @since 0.1.0 @category reasons */
export class SessionClosed extends Schema.TaggedError<SessionClosed>()("SessionClosed", {
  session: Schema.String,
  problem: Schema.String
}) {
  /** Whether the same call may be made again. */
  readonly retry = "never" as const
  override get message(): string {
    return `session ${this.session} is closed: ${this.problem}`
  }
}

/**
 * A snapshot could not be taken or used. `snapshot` is the name or id it was asked for by, `null` for one that has none yet.
 * `kind`: `unknown` (there is none of that name), `exists` (there is one already), `damaged` (its files are not as they were
 * stored), `foreign` (it belongs to an image, a QEMU or a kind of host that is not here), `store-full` (the store's limit or
 * the disk), `unsupported` (this session cannot be captured), `capture` (taking it failed; the session runs on unless its VM
 * is lost).
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
  /** Whether the same call may be made again. */
  get retry(): "safe" | "never" {
    return this.kind === "capture" ? "safe" : "never"
  }
  override get message(): string {
    return `snapshot${this.snapshot === null ? "" : ` ${this.snapshot}`}: ${this.problem}`
  }
}

/** The guest broke the channel's rules; its VM was destroyed. @since 0.1.0 @category reasons */
export class ProtocolError extends Schema.TaggedError<ProtocolError>()("ProtocolError", {
  problem: Schema.String
}) {
  /** Whether the same call may be made again. */
  readonly retry = "unsafe" as const
  override get message(): string {
    return `the guest broke the protocol: ${this.problem}`
  }
}

/**
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
/**
 * @since 0.1.0
 * @category reasons
 */
export type Reason = typeof Reason.Type

/**
 * The sandbox could not do its job. `reason` tells which part; open it with `Effect.catchReason("SandboxError", "InvalidInput", …)`.
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
  /** `safe`: the code certainly did not run, try again. `unsafe`: it may have run. `never`: the same call fails again. */
  get retry(): "safe" | "unsafe" | "never" {
    return this.reason.retry
  }
}

/** Wraps a reason. @since 0.1.0 @category constructors */
export const fail = (reason: Reason): SandboxError => new SandboxError({ reason })
