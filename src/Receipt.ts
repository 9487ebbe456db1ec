/**
 * The receipt: what happened in one execution and why it stopped, as data.
 *
 * Every execution has one, whether it succeeded or failed, and every error of a task carries it. Nothing in a receipt is
 * guessed: a value that is not known is `null`, never 0.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import { Counts } from "./Changes.ts"

/**
 * Why an execution stopped. The set is closed: a program can switch over it.
 *
 * @since 0.1.0
 * @category models
 */
export const StopReason = Schema.Literals([
  "completed",
  "failed",
  "permission",
  "unsupported",
  "time-limit",
  "memory-limit",
  "output-limit",
  "processes-limit",
  "file-size-limit",
  "disk-limit",
  "cancelled",
  "sandbox-failure"
])
/** See the schema of the same name. @since 0.1.0 @category models */
export type StopReason = typeof StopReason.Type

/**
 * What happened to the interpreter's state: `kept` (variables and cwd are as the execution left them), `reset` (the
 * interpreter was restarted: its state is lost, files are kept) or `closed` (the VM is gone).
 *
 * @since 0.1.0
 * @category models
 */
export const State = Schema.Literals(["kept", "reset", "closed"])
/** See the schema of the same name. @since 0.1.0 @category models */
export type State = typeof State.Type

/**
 * How the VM was obtained, and why each faster path was missed.
 *
 * `kind`: `pool` (a ready clone), `restore` (a clone made from the template now), `boot` (the template was built first) or
 * `snapshot` (a session that was started from a snapshot or forked; `from` is then the id of the snapshot or of the forked
 * session). `missed`: one entry for each faster path, for example `{ kind: "restore", reason: "no template for this key" }`.
 *
 * @since 0.1.0
 * @category models
 */
export const StartPath = Schema.Struct({
  kind: Schema.Literals(["pool", "restore", "boot", "snapshot"]),
  from: Schema.optionalKey(Schema.String),
  missed: Schema.Array(Schema.Struct({ kind: Schema.Literals(["pool", "restore"]), reason: Schema.String }))
})
/** See the schema of the same name. @since 0.1.0 @category models */
export type StartPath = typeof StartPath.Type

/**
 * What separated the guest from the host.
 *
 * `accelerator` is how QEMU runs the guest's CPU; `boundary` is `hardware` under KVM and HVF and `emulated` under TCG, which
 * QEMU's own policy does not count as a security boundary. `seccomp`: QEMU's system-call filter is on. `user`: the name or id of
 * the unprivileged user that QEMU runs as, `null` when it runs as the caller. `parentDeath`: the kernel kills QEMU when this
 * process dies. `cgroup`: the host cgroup that limits QEMU, `null` when there is none.
 *
 * @since 0.1.0
 * @category models
 */
export const Isolation = Schema.Struct({
  accelerator: Schema.Literals(["kvm", "hvf", "tcg"]),
  boundary: Schema.Literals(["hardware", "emulated"]),
  seccomp: Schema.Boolean,
  user: Schema.NullOr(Schema.String),
  parentDeath: Schema.Boolean,
  cgroup: Schema.NullOr(Schema.String)
})
/** See the schema of the same name. @since 0.1.0 @category models */
export type Isolation = typeof Isolation.Type

/**
 * A connection that a program in the guest tried to make during the execution.
 *
 * `name` is the requested host, a name or an address. `rule` is the rule of the policy that
 * granted it, as the caller wrote it (or `all`, or the answer of `ask`), or why it was refused: `none`, `not-granted`, `loopback`,
 * `private`, `carrier`, `link-local`, `metadata`, `multicast`, `reserved`, `host-address`, `sni`, `invalid-name`,
 * `too-many-connections`, `secret`, `http-host`, `http-syntax`, `http-version`, the answer of `ask`, or `undecided` when the receipt
 * was written before the decision. `reason` says more, for example why a granted host could not be reached, and is `null` when
 * there is no more to say. `bytesIn` counts bytes into the guest and `bytesOut` bytes out of it, until the receipt was written.
 * `secrets` names the secrets that were put into requests, and is present only where the host has any; see `Secrets`.
 *
 * @since 0.1.0
 * @category models
 */
export const NetworkAttempt = Schema.Struct({
  name: Schema.String,
  port: Schema.Int,
  decision: Schema.Literals(["allow", "deny"]),
  rule: Schema.String,
  reason: Schema.NullOr(Schema.String),
  bytesIn: Schema.Finite,
  bytesOut: Schema.Finite,
  secrets: Schema.optionalKey(Schema.Array(Schema.String))
})
/** See the schema of the same name. @since 0.1.0 @category models */
export type NetworkAttempt = typeof NetworkAttempt.Type

/**
 * The use of one port of the guest while an execution ran. `host` and `port` are the host's address and port where it was
 * exposed, and `null` for the session's HTTP client. `connections` counts connections, `refused` those of them that reached no
 * server, and those beyond the limit on connections. `bytesIn` counts bytes into the guest, `bytesOut` bytes out of it.
 *
 * @since 0.1.0
 * @category models
 */
export const PortUse = Schema.Struct({
  guestPort: Schema.Int,
  host: Schema.NullOr(Schema.String),
  port: Schema.NullOr(Schema.Int),
  connections: Schema.Int,
  refused: Schema.Int,
  bytesIn: Schema.Finite,
  bytesOut: Schema.Finite
})
/** See the schema of the same name. @since 0.1.0 @category models */
export type PortUse = typeof PortUse.Type

/**
 * The receipt of one execution.
 *
 * Units: `…Ms` milliseconds (fractions allowed), `…Bytes` bytes, `startedAt` ISO 8601 in UTC by the host's clock.
 * `sequence` counts the executions of a session from 1. `timing.queueMs` is the wait behind earlier executions of the same
 * language, `acquireMs` the time to get the VM and `handoverMs` the time to make it unique (both `null` after the first
 * execution of a session), `wakeMs` the time that a parked session took to wake (`null` when it was awake), `executeMs` the time
 * from the start of the code in the interpreter to its end. `usage` comes from the guest's cgroup counters and covers the
 * interpreter's whole process tree. `ports` lists every port that was exposed at any time during the execution, and every port
 * that the HTTP client used. `egress` holds the first 200 connections that the session tried to make while the execution ran, and
 * `egressOmitted` counts the others; both are `null` when the session's policy was `None`, under which the guest's kernel refuses
 * them. `filesChanged` counts changed files when a report was requested. The library does not wait for a cancelled execution to
 * end, so its `state`, `exitCode` and `usage` are `null`.
 *
 * @since 0.1.0
 * @category models
 */
export const Receipt = Schema.Struct({
  version: Schema.Literal(1),
  id: Schema.String,
  session: Schema.String,
  sequence: Schema.Int,
  startedAt: Schema.String,
  language: Schema.NullOr(Schema.String),
  argv: Schema.NullOr(Schema.Array(Schema.String)),
  codeSha256: Schema.NullOr(Schema.String),
  image: Schema.String,
  template: Schema.NullOr(Schema.String),
  startPath: StartPath,
  isolation: Isolation,
  limits: Schema.Struct({
    timeMs: Schema.NullOr(Schema.Finite),
    memoryBytes: Schema.Finite,
    outputBytes: Schema.Finite,
    output: Schema.Literals(["truncate", "fail"]),
    processes: Schema.Finite,
    fileSizeBytes: Schema.Finite,
    diskBytes: Schema.Finite
  }),
  outcome: Schema.Literals([
    "Success",
    "PermissionDenied",
    "UnsupportedCommand",
    "LimitExceeded",
    "TaskFailed",
    "SandboxError",
    "Cancelled"
  ]),
  stopReason: StopReason,
  exitCode: Schema.NullOr(Schema.Int),
  signal: Schema.NullOr(Schema.String),
  state: Schema.NullOr(State),
  output: Schema.Struct({
    stdoutBytes: Schema.Finite,
    stderrBytes: Schema.Finite,
    truncated: Schema.Boolean
  }),
  usage: Schema.Struct({
    cpuMs: Schema.NullOr(Schema.Finite),
    peakMemoryBytes: Schema.NullOr(Schema.Finite),
    wallMs: Schema.NullOr(Schema.Finite)
  }),
  timing: Schema.Struct({
    queueMs: Schema.NullOr(Schema.Finite),
    acquireMs: Schema.NullOr(Schema.Finite),
    handoverMs: Schema.NullOr(Schema.Finite),
    wakeMs: Schema.NullOr(Schema.Finite),
    executeMs: Schema.NullOr(Schema.Finite)
  }),
  egress: Schema.NullOr(Schema.Array(NetworkAttempt)),
  egressOmitted: Schema.NullOr(Schema.Int),
  ports: Schema.NullOr(Schema.Array(PortUse)),
  filesChanged: Schema.NullOr(Counts)
})
/** See the schema of the same name. @since 0.1.0 @category models */
export type Receipt = typeof Receipt.Type
