/**
 * One attempt to run something in a session, be it code, a command or a process: what it wrote, when it began, how it
 * ended, and the receipt that says so. The only place where receipts are written and where evidence becomes an error.
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
import { type Context, newId } from "./Context.ts"
import type * as Deadlines from "./Deadlines.ts"
import * as NetworkOutcome from "./NetworkOutcome.ts"
import { classify, type Outcome, stopReason } from "./Outcome.ts"
import * as Output from "./Output.ts"

type Refused = Agent.Refused

/** What is attempted, for its receipt. A process may have no time limit. */
export interface Subject {
  readonly language: Execution.Language | null
  readonly argv: ReadonlyArray<string> | null
  readonly code: Uint8Array | null
  readonly limits: Limits
  readonly timeMs?: number | null
  readonly changes?: Asked | undefined
}

export interface Attempt {
  /** The receipt's. */
  readonly sequence: number
  /** By the host's clock, ms. */
  readonly openedAt: number
  readonly timeMs: number | null
  /** What the guest is asked to enforce and to report; `spill`: output beyond `outputBytes` goes to files. */
  readonly enforced: (spill: boolean) => Enforced
  readonly stdout: Output.Output
  readonly stderr: Output.Output
  /** Takes a part of the report of changed files. */
  readonly changed: (bytes: Uint8Array) => Effect.Effect<void, SandboxError>
  /** What takes a while and is for the receipt: best done while the guest works. */
  readonly prepare: () => void
  /** It has begun; only the first time counts. */
  readonly began: Effect.Effect<void>
  /** Until the attempt's scope closes, destroys the VM of a guest that does not enforce its limits by then; see `Deadlines`. */
  readonly until: (deadline: number) => Deadlines.Watch
  /** Fails because the VM is lost. */
  readonly lost: (error: VmLost, handedOver: boolean) => Effect.Effect<never, SandboxError>
  /** Fails because the agent refused, or ended the stream without a result. `poisoned`: the VM must not be used any more. */
  readonly refused: (refused: Refused, poisoned: boolean) => Effect.Effect<never, SandboxError>
  /** Fails because the guest broke the protocol, and destroys it. */
  readonly violated: (problem: string) => Effect.Effect<never, SandboxError>
  /** Fails because there is no such thing here; nothing has run. */
  readonly unsupported: (
    missing: Pick<UnsupportedCommand, "kind" | "name" | "available">
  ) => Effect.Effect<never, UnsupportedCommand>
  /** Fails because a policy refuses it; nothing has run. */
  readonly denied: (
    what: Pick<PermissionDenied, "operation" | "target" | "rule" | "grant">
  ) => Effect.Effect<never, PermissionDenied>
  /** The result that evidence stands for, or the error. */
  readonly conclude: (evidence: Evidence) => Effect.Effect<Execution.Result, Execution.Failure>
}

/** The limits in a request to the guest; those of the session are absent. */
type Enforced = Pick<
  Request<typeof exec>,
  "timeMs" | "memoryBytes" | "processes" | "fileSizeBytes" | "outputBytes" | "outputFail" | "spill" | "changes"
>

/** How long after its time limit the guest may take to say how something ended; it kills one second after the limit. */
export const graceMs = 20_000

const mebibyte = 1024 * 1024

const sha256 = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex")

/**
 * Begins an attempt, unless the session is closed or has not the memory that is asked for. One that has come to no end when
 * the scope closes was cancelled.
 */
export const begin = Effect.fnUntraced(function* (
  context: Context,
  subject: Subject
): Effect.fn.Return<Attempt, SandboxError, Scope.Scope> {
  const { limits, origin, vm } = context
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
  const there = presence.enter()
  let left = false
  const leave = (): void => {
    if (!left) presence.leave()
    left = true
  }
  /** What its scope's end does, the last first, and before all that what it says of a cancelled one. */
  const ends = [leave]
  let cancelled: Effect.Effect<unknown> = Effect.void
  yield* Effect.addFinalizer(() =>
    Effect.andThen(
      Effect.suspend(() => cancelled),
      Effect.sync(() => {
        for (const end of ends.toReversed()) end()
      })
    )
  )
  const wakeMs = there ? null : yield* presence.awake
  const timeMs = subject.timeMs === undefined ? allowed.timeMs : subject.timeMs
  const memoryBytes = allowed.memoryMiB * mebibyte
  const first = context.sequence++ === 0
  const sequence = context.sequence
  const openedAt = yield* Clock.currentTimeMillis
  let startedAt: number | undefined
  let codeSha256: string | null = null
  let over = false
  const ports = context.ports.record()
  ends.push(ports.stop)
  const network = context.egress.watch()
  if (network !== undefined) ends.push(network.stop)
  const stdout = Output.make(allowed.outputBytes)
  const stderr = Output.make(allowed.outputBytes)

  const write = (
    ended: number,
    outcome: Receipt["outcome"],
    reason: Receipt["stopReason"],
    evidence: Evidence | undefined
  ): Receipt => {
    // The guest says that something has begun when it is not over at once; else its end says so.
    const wallMs = evidence?.usage.wallMs ?? null
    const begunAt =
      wallMs === null ? startedAt : Math.max(openedAt, Math.min(startedAt ?? ended, Math.round(ended - wallMs)))
    return {
      version: 1,
      id: newId("exe"),
      session: context.id,
      sequence,
      startedAt: new Date(openedAt).toISOString(),
      language: subject.language,
      argv: subject.argv,
      codeSha256: subject.code === null ? null : (codeSha256 ??= sha256(subject.code)),
      image: origin.image,
      template: origin.template,
      startPath: origin.startPath,
      isolation: vm.isolation,
      limits: {
        timeMs,
        memoryBytes,
        outputBytes: allowed.outputBytes,
        output: allowed.output,
        processes: allowed.processes,
        fileSizeBytes: allowed.fileSizeMiB * mebibyte,
        diskBytes: allowed.diskMiB * mebibyte
      },
      outcome,
      stopReason: reason,
      exitCode: evidence?.exitCode ?? null,
      signal: evidence?.signal ?? null,
      state: evidence === undefined ? (outcome === "Cancelled" ? null : "closed") : evidence.state,
      output: {
        stdoutBytes: stdout.total(),
        stderrBytes: stderr.total(),
        truncated: stdout.truncated() || stderr.truncated()
      },
      usage: evidence?.usage ?? { cpuMs: null, peakMemoryBytes: null, wallMs: null },
      timing: {
        queueMs: begunAt === undefined ? null : begunAt - openedAt,
        acquireMs: first ? origin.acquireMs : null,
        handoverMs: first ? origin.handoverMs : null,
        wakeMs,
        executeMs: begunAt === undefined ? null : ended - begunAt
      },
      egress: network?.attempts() ?? null,
      egressOmitted: network?.omitted() ?? null,
      ports: ports.uses(),
      filesChanged: countsOf(evidence)
    }
  }

  /** The attempt's one receipt, published. */
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
  /** The guest ends what writes too much; that it was too much is for us to say. */
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
        const here = outcome.allowed ?? (outcome.limit === "memory" ? memoryBytes : null)
        return yield* new LimitExceeded({ ...withoutTag(outcome), allowed: here, ...common })
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
      ends.push(watch.letGo)
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
    changed: (bytes) =>
      report?.push(bytes) === true ? Effect.void : violated("a report of changed files that is not understood"),
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
 * Follows a stream to its end, gathering the output, and gives the evidence. Fails with `Refused` where the agent gives none.
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

/** The receipt's word for what changed. */
const countsOf = (evidence: Evidence | undefined): Receipt["filesChanged"] => {
  if (evidence?.changes === undefined) return null
  const { created, deleted, modified, renamed, unexamined } = evidence.changes
  return { created, modified, deleted, renamed, unexamined }
}

const noFiles = { stdout: null, stderr: null }

/** The output of what never ran. */
const nothing = {
  stdout: "",
  stderr: "",
  bytes: { stdout: new Uint8Array(), stderr: new Uint8Array() },
  outputFiles: noFiles,
  changes: null
}

/** What is known of an attempt that never reached the guest. */
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
