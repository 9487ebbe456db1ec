/**
 * One attempt to run code, a command or a process in a session: its output, when it began, how it ended, and its receipt.
 * Only this module publishes receipts and turns evidence into errors.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { createHash } from "node:crypto"
import * as ChangeReport from "../changes/Report.ts"
import type { Asked } from "../Changes.ts"
import * as Execution from "../Execution.ts"
import * as Agent from "../guest/Agent.ts"
import type { Evidence } from "../guest/Evidence.ts"
import { Sub } from "../guest/Frame.ts"
import type { exec, Request, spawn } from "../guest/Methods.ts"
import * as Counts from "../telemetry/Counts.ts"
import { type Limits, resolve } from "../Limits.ts"
import type { Receipt } from "../Receipt.ts"
import {
  fail,
  InvalidInput,
  LimitExceeded,
  NotStarted,
  OutcomeUnknown,
  PermissionDenied,
  ProtocolError,
  type SandboxError,
  SessionClosed,
  TaskFailed,
  UnsupportedCommand
} from "../SandboxError.ts"
import { VmLost, type VmStream } from "../Vm.ts"
import { diskShare } from "../vm/diskShare.ts"
import * as AttemptReceipt from "./AttemptReceipt.ts"
import type { Context } from "./Context.ts"
import type * as Deadlines from "./Deadlines.ts"
import * as NetworkOutcome from "./NetworkOutcome.ts"
import { classify, type Outcome, stopReason } from "./Outcome.ts"
import * as Output from "./Output.ts"

type Refused = Agent.Refused

/** What an attempt runs, for its receipt. `timeMs` is the time limit, `null` for none; when absent it is that of `limits`. */
export interface Subject {
  readonly language: Execution.Language | null
  readonly argv: ReadonlyArray<string> | null
  readonly code: Uint8Array | null
  readonly limits: Limits
  readonly timeMs?: number | null
  readonly changes?: Asked | undefined
}

export interface Attempt {
  /** The number of this attempt in the session, as in the receipt. */
  readonly sequence: number
  /** When it was requested, in ms of the host's clock. */
  readonly openedAt: number
  /** The time limit in ms; `null` when there is none. */
  readonly timeMs: number | null
  /** The limits that the guest enforces, and what it reports. With `spill`, it writes output beyond `outputBytes` to files. */
  readonly enforced: (spill: boolean) => Enforced
  readonly stdout: Output.Output
  readonly stderr: Output.Output
  /** Adds the next bytes of the report of changed files. */
  readonly changed: (bytes: Uint8Array) => Effect.Effect<void, SandboxError>
  /** Computes what the receipt needs and takes a while. Call it while the guest works. */
  readonly prepare: () => void
  /** Records that the work has begun; only the first call counts. */
  readonly began: Effect.Effect<void>
  /** Destroys the VM if the attempt's scope is still open at `deadline`, in ms of the host's clock; see `Deadlines`. */
  readonly until: (deadline: number) => Deadlines.Watch
  /** Fails because the VM was lost. `handedOver`: the guest may have received the request. */
  readonly lost: (error: VmLost, handedOver: boolean) => Effect.Effect<never, SandboxError>
  /** Fails because the agent refused, or ended the stream without a result. `poisoned`: the VM must not be used any more. */
  readonly refused: (refused: Refused, poisoned: boolean) => Effect.Effect<never, SandboxError>
  /** Fails because the guest broke the protocol, and destroys the VM. */
  readonly violated: (problem: string) => Effect.Effect<never, SandboxError>
  /** Fails because the VM does not have what was requested; nothing has run. */
  readonly unsupported: (
    missing: Pick<UnsupportedCommand, "kind" | "name" | "available">
  ) => Effect.Effect<never, UnsupportedCommand>
  /** Fails because a policy refuses it; nothing has run. */
  readonly denied: (
    what: Pick<PermissionDenied, "operation" | "target" | "rule" | "grant">
  ) => Effect.Effect<never, PermissionDenied>
  /** Publishes the receipt and turns evidence into the result or the error. */
  readonly conclude: (evidence: Evidence) => Effect.Effect<Execution.Result, Execution.Failure>
}

/** The limits in a request to the guest. Those that equal the session's are absent. */
type Enforced = Pick<
  Request<typeof exec>,
  "timeMs" | "memoryBytes" | "processes" | "fileSizeBytes" | "outputBytes" | "outputFail" | "spill" | "changes"
>

/** How long after a time limit the guest may take to report the end, in ms; it kills one second after the limit. */
export const graceMs = 20_000

const mebibyte = 1024 * 1024

const sha256 = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex")

/**
 * Begins an attempt. Fails when the session is closed, or when the limits ask for more than the session has. An attempt that
 * has not ended when the scope closes gets the outcome `Cancelled`.
 */
export const begin = Effect.fnUntraced(function* (
  context: Context,
  subject: Subject
): Effect.fn.Return<Attempt, SandboxError, Scope.Scope> {
  const { limits, vm } = context
  if (context.closed !== undefined) {
    return yield* fail(new SessionClosed({ session: context.id, problem: context.closed }))
  }
  const allowed = resolve(subject.limits, limits)
  if (allowed.memoryMiB > limits.memoryMiB) {
    return yield* fail(
      new InvalidInput({
        field: "limits.memoryMiB",
        problem: `got ${allowed.memoryMiB}`,
        expected: `at most the session's ${limits.memoryMiB}`
      })
    )
  }
  if (allowed.diskMiB !== limits.diskMiB) {
    return yield* fail(
      new InvalidInput({
        field: "limits.diskMiB",
        problem: `got ${allowed.diskMiB}`,
        expected: `the session's ${limits.diskMiB}, because its executions share one disk`
      })
    )
  }
  const { presence } = context
  const awake = presence.enter()
  let left = false
  const leave = (): void => {
    if (!left) presence.leave()
    left = true
  }
  /** Run when the scope closes, the last one first, after the receipt of a cancelled attempt. */
  const finalizers = [leave]
  let cancelled: Effect.Effect<unknown> = Effect.void
  yield* Effect.addFinalizer(() =>
    Effect.andThen(
      Effect.suspend(() => cancelled),
      Effect.sync(() => {
        for (const finalize of finalizers.toReversed()) finalize()
      })
    )
  )
  const wakeMs = awake ? null : yield* presence.awake
  const timeMs = subject.timeMs === undefined ? allowed.timeMs : subject.timeMs
  const memoryBytes = allowed.memoryMiB * mebibyte
  const sequence = ++context.sequence
  const openedAt = yield* Clock.currentTimeMillis
  let startedAt: number | undefined
  let codeSha256: string | null = null
  let over = false
  const ports = context.ports.record()
  finalizers.push(ports.stop)
  const network = context.egress.watch()
  if (network !== undefined) finalizers.push(network.stop)
  const stdout = Output.make(allowed.outputBytes)
  const stderr = Output.make(allowed.outputBytes)

  const write = (
    endedAt: number,
    outcome: Receipt["outcome"],
    reason: Receipt["stopReason"],
    evidence: Evidence | undefined
  ): Receipt =>
    AttemptReceipt.make({
      context,
      subject,
      codeSha256: subject.code === null ? null : (codeSha256 ??= sha256(subject.code)),
      allowed,
      timeMs,
      sequence,
      openedAt,
      startedAt,
      endedAt,
      wakeMs,
      outcome,
      reason,
      evidence,
      stdout,
      stderr,
      network,
      ports
    })

  /** Publishes the one receipt of this attempt. */
  const publish = (outcome: Receipt["outcome"], reason: Receipt["stopReason"], evidence: Evidence | undefined) =>
    Effect.uninterruptible(
      Effect.flatMap(Clock.currentTimeMillis, (now) => {
        over = true
        leave()
        const receipt = write(now, outcome, reason, evidence)
        return context.receipts.publish(receipt).pipe(Effect.andThen(Counts.receipt(receipt)), Effect.as(receipt))
      })
    )
  cancelled = Effect.suspend(() => (over ? Effect.void : publish("Cancelled", "cancelled", undefined)))

  const unknown = (problem: string) =>
    Effect.flatMap(publish("SandboxError", "sandbox-failure", undefined), (known) =>
      Effect.fail(fail(new OutcomeUnknown({ problem, receipt: known })))
    )

  const changes = ChangeReport.asked(subject.changes)
  const report = changes === undefined ? null : ChangeReport.make(changes)

  const violated = Effect.fnUntraced(function* (problem: string) {
    over = true
    yield* vm.destroy
    context.closed ??= "its guest broke the protocol"
    return yield* fail(new ProtocolError({ problem }))
  })

  const outputFails = allowed.output === "fail"
  /** The guest ends a task that writes too much, but the host decides that this was the cause. */
  const overflowing = (outcome: Outcome): Outcome => {
    const observed = Math.max(stdout.total(), stderr.total())
    return !outputFails || observed <= allowed.outputBytes || outcome._tag === "LimitExceeded"
      ? outcome
      : { _tag: "LimitExceeded", limit: "output", allowed: allowed.outputBytes, observed }
  }

  const conclude = Effect.fnUntraced(function* (evidence: Evidence) {
    const outcome = NetworkOutcome.refine(overflowing(classify(evidence)), evidence, network?.refused())
    const common = {
      stdout: stdout.text(),
      stderr: stderr.text(),
      bytes: { stdout: stdout.bytes(), stderr: stderr.bytes() },
      outputFiles: evidence.rest ?? noFiles,
      changes: report === null || evidence.changes === undefined ? null : yield* report.finish(evidence.changes),
      receipt: yield* publish(outcome._tag, stopReason(outcome), evidence)
    }
    switch (outcome._tag) {
      case "Success":
        return new Execution.Result({ ...common, result: evidence.result })
      case "PermissionDenied":
        return yield* new PermissionDenied({ ...withoutTag(outcome), ...common })
      case "UnsupportedCommand":
        return yield* new UnsupportedCommand({ available: [], ...withoutTag(outcome), ...common })
      case "LimitExceeded": {
        const known = outcome.allowed ?? (outcome.limit === "memory" ? memoryBytes : null)
        return yield* new LimitExceeded({ ...withoutTag(outcome), allowed: known, ...common })
      }
      case "TaskFailed":
        return yield* new TaskFailed({ reason: outcome.reason, ...common })
    }
  })

  return {
    sequence,
    openedAt,
    until: (deadline) => {
      const watch = context.deadlines.watch(deadline, vm.destroy)
      finalizers.push(watch.cancel)
      return watch
    },
    timeMs,
    enforced: (spill) => ({
      timeMs: timeMs ?? undefined,
      memoryBytes: allowed.memoryMiB === limits.memoryMiB ? undefined : memoryBytes,
      processes: allowed.processes === limits.processes ? undefined : allowed.processes,
      fileSizeBytes: allowed.fileSizeMiB === limits.fileSizeMiB ? undefined : diskShare(allowed.fileSizeMiB),
      outputBytes: allowed.outputBytes,
      outputFail: outputFails || undefined,
      spill: (spill && !outputFails) || undefined,
      changes
    }),
    stdout,
    stderr,
    changed: (bytes) => (report?.push(bytes) === true ? Effect.void : violated("an invalid report of changed files")),
    conclude,
    prepare: () => {
      if (subject.code !== null) codeSha256 ??= sha256(subject.code)
    },
    began: Effect.map(Clock.currentTimeMillis, (now) => {
      startedAt ??= now
    }),
    lost: Effect.fnUntraced(function* (error, handedOver) {
      context.closed ??= error.problem
      over = true
      if (error.violation) return yield* fail(new ProtocolError({ problem: error.problem }))
      if (!handedOver) return yield* fail(new NotStarted({ problem: error.problem }))
      return yield* unknown(error.problem)
    }),
    violated,
    refused: Effect.fnUntraced(function* ({ code, problem }, poisoned) {
      over = true
      if (code === "invalid") {
        return yield* fail(new InvalidInput({ field: "request", problem, expected: "what the guest accepts" }))
      }
      if (poisoned) {
        yield* vm.destroy
        context.closed ??= problem
      }
      if (startedAt === undefined) return yield* fail(new NotStarted({ problem }))
      return yield* unknown(problem)
    }),
    unsupported: (missing) =>
      Effect.flatMap(publish("UnsupportedCommand", "unsupported", noEvidence), (receipt) =>
        Effect.fail(new UnsupportedCommand({ ...missing, ...nothing, receipt }))
      ),
    denied: (what) =>
      Effect.flatMap(publish("PermissionDenied", "permission", noEvidence), (receipt) =>
        Effect.fail(new PermissionDenied({ ...what, ...nothing, receipt }))
      )
  }
})

/**
 * Collects the output of a stream until it ends and returns the evidence. Fails with `Refused` when the agent sends none.
 * The guest enforces the limits; `deadline`, in ms of the host's clock, is for a guest that does not.
 */
export const follow = <M extends typeof exec | typeof spawn>(
  attempt: Attempt,
  stream: VmStream<M>,
  emit: (event: Execution.Event) => Effect.Effect<void>,
  deadline: number
): Effect.Effect<Evidence, SandboxError | Refused> => {
  const { isOverdue } = attempt.until(deadline)
  return Agent.follow(stream, (it): Effect.Effect<void, SandboxError> => {
    if (it._tag === "Note") return attempt.began
    if (it.bytes.length === 0) return Effect.void
    if (it.sub === Sub.file) return attempt.changed(it.bytes)
    const standard = it.sub === Sub.stderr ? "Stderr" : "Stdout"
    ;(standard === "Stderr" ? attempt.stderr : attempt.stdout).push(it.bytes)
    return emit({ _tag: standard, bytes: it.bytes })
  }).pipe(
    Effect.catchTags({
      VmLost: (error) => attempt.lost(isOverdue() ? new VmLost({ problem: overdue, violation: false }) : error, true),
      ChannelViolation: (error) => attempt.violated(error.problem)
    })
  )
}

const overdue = "the guest did not end the execution within its limits"

const noFiles = { stdout: null, stderr: null }

/** The output of a task that never ran. */
const nothing = {
  stdout: "",
  stderr: "",
  bytes: { stdout: new Uint8Array(), stderr: new Uint8Array() },
  outputFiles: noFiles,
  changes: null
}

/** The evidence of an attempt that never reached the guest. */
const noEvidence: Evidence = {
  exitCode: null,
  signal: null,
  exception: null,
  commands: [],
  limits: [],
  state: "kept",
  result: null,
  usage: { cpuMs: null, peakMemoryBytes: null, wallMs: null }
}

const withoutTag = <T extends { readonly _tag: string }>(value: T): Omit<T, "_tag"> => {
  const { _tag, ...rest } = value
  return rest
}
