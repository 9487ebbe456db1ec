/**
 * One attempt to run something in a session, be it code, a command or a process: what it wrote, when it began, how it
 * ended, and the receipt that says so. The only place where receipts are written and where evidence becomes an error.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { createHash, randomUUID } from "node:crypto"
import type { Egress } from "../egress/Egress.ts"
import * as Execution from "../Execution.ts"
import { Sub } from "../guest/Frame.ts"
import type { ChangesOpen } from "../guest/ChangeProtocol.ts"
import { Evidence, Note, type Reset } from "../guest/Protocol.ts"
import type { Limits } from "../Limits.ts"
import type { Receipt, StartPath } from "../Receipt.ts"
import type { Publisher } from "../Receipts.ts"
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
import { type Vm, VmLost, type VmStream } from "../Vm.ts"
import * as ChangeReport from "../changes/Report.ts"
import * as Deadlines from "./Deadlines.ts"
import { diskShare } from "../vm/diskShare.ts"
import * as NetworkOutcome from "../egress/Outcome.ts"
import * as Counts from "../telemetry/Counts.ts"
import * as Output from "./Output.ts"
import * as Parking from "./Parking.ts"
import * as PortLedger from "../ports/Ledger.ts"

/** Where a session's VM came from, for its receipts. Times in ms. */
export interface Origin {
  readonly image: string
  /** `null` when it was started from a snapshot. */
  readonly template: string | null
  readonly startPath: StartPath
  readonly acquireMs: number
  readonly handoverMs: number
  readonly languages: ReadonlyArray<string>
}

/** The session as its attempts see it. */
export interface Holder {
  readonly id: string
  readonly vm: Vm
  readonly origin: Origin
  readonly limits: Required<Limits>
  readonly receipts: Publisher
  readonly ports: PortLedger.PortLedger
  readonly egress: Egress
  readonly deadlines: Deadlines.Deadlines
  /** For the commands that are run to their end: too many at once would starve each other of their time. */
  readonly running: Semaphore.Semaphore
  /** Of a VM that may be parked. */
  readonly presence?: Parking.Presence
  /** How many attempts there have been. */
  sequence: number
  /** Why nothing more runs in it, once it is closed. */
  closed: string | undefined
}

/** Commands that are run at one time, each of which takes its time to start; more wait. */
const maxRunning = 128

/** Begins a session of these. */
export const hold = (
  of: Pick<Holder, "vm" | "origin" | "limits" | "receipts" | "egress" | "presence">
): Effect.Effect<Holder, never, Scope.Scope> =>
  Effect.map(Deadlines.make, (deadlines) => ({
    ...of,
    id: name("ses"),
    ports: PortLedger.make(),
    deadlines,
    running: Semaphore.makeUnsafe(maxRunning),
    sequence: 0,
    closed: undefined
  }))

const name = (kind: "ses" | "exe"): string => `${kind}-${randomUUID().replaceAll("-", "").slice(0, 16)}`

/** What is attempted, for its receipt. A process may have no time limit. */
export interface Subject {
  readonly language: Execution.Language | null
  readonly argv: ReadonlyArray<string> | null
  readonly code: Uint8Array | null
  readonly limits: Limits
  readonly timeMs?: number | null
  readonly changes?: typeof ChangeReport.Asked.Type | undefined
}

export interface Attempt {
  /** The receipt's. */
  readonly sequence: number
  /** By the host's clock, ms. */
  readonly openedAt: number
  readonly timeMs: number | null
  /** Each `null` when the session's own limit holds. */
  readonly ownMemoryBytes: number | null
  readonly ownProcesses: number | null
  /** 0 is no limit. */
  readonly ownFileSizeBytes: number | null
  readonly outputBytes: number
  readonly outputFails: boolean
  readonly stdout: Output.Output
  readonly stderr: Output.Output
  /** What is asked about changed files. */
  readonly changes: ChangesOpen | null
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
  readonly refused: (reset: Reset | undefined, poisoned: boolean) => Effect.Effect<never, SandboxError>
  /** Fails because there is no such thing here; nothing has run. */
  readonly unsupported: (
    missing: Pick<UnsupportedCommand, "kind" | "name" | "available">
  ) => Effect.Effect<never, UnsupportedCommand>
  /** Fails because a policy refuses it; nothing has run. */
  readonly denied: (
    what: Pick<PermissionDenied, "operation" | "target" | "rule" | "grant">
  ) => Effect.Effect<never, PermissionDenied>
  /** The evidence of an END; a guest that sends anything else is destroyed. */
  readonly evidence: (value: unknown) => Effect.Effect<Evidence, SandboxError>
  /** The result that evidence stands for, or the error. */
  readonly conclude: (
    outcome: Execution.Outcome,
    evidence: Evidence
  ) => Effect.Effect<Execution.Result, Execution.Failure>
}

const decodeEvidence = Schema.decodeUnknownOption(Evidence)
const decodeNote = Schema.decodeUnknownOption(Note)

/** The process id in a NOTE that says that something has started; 0 for an execution, which has none. */
export const startedPid = (note: unknown): number | undefined => {
  const decoded = decodeNote(note)
  return Option.isSome(decoded) && decoded.value.event === "started" ? (decoded.value.pid ?? 0) : undefined
}

/** How long after its time limit the guest may take to say how something ended; it kills one second after the limit. */
export const graceMs = 20_000

const mebibyte = 1024 * 1024

const sha256 = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex")

/**
 * Begins an attempt, unless the session is closed or has not the memory that is asked for. One that has come to no end when
 * the scope closes was cancelled.
 */
export const begin = Effect.fnUntraced(function* (
  holder: Holder,
  subject: Subject
): Effect.fn.Return<Attempt, SandboxError, Scope.Scope> {
  const { limits, origin, vm } = holder
  if (holder.closed !== undefined) {
    return yield* fail(new SessionClosed({ session: holder.id, problem: holder.closed }))
  }
  const allowed = { ...limits, ...subject.limits }
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
  const presence = holder.presence ?? Parking.always
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
  const first = holder.sequence++ === 0
  const sequence = holder.sequence
  const openedAt = yield* Clock.currentTimeMillis
  let startedAt: number | undefined
  let codeSha256: string | null = null
  let over = false
  const ports = holder.ports.record()
  ends.push(ports.stop)
  const network = holder.egress.watch()
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
      id: name("exe"),
      session: holder.id,
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
        return holder.receipts.publish(receipt).pipe(Effect.andThen(Counts.receipt(receipt)), Effect.as(receipt))
      })
    )
  cancelled = Effect.suspend(() => (over ? Effect.void : publish("Cancelled", "cancelled", undefined)))

  const unknown = (problem: string) =>
    Effect.flatMap(publish("SandboxError", "sandbox-failure", undefined), (known) =>
      Effect.fail(fail(new OutcomeUnknown({ problem, receipt: known })))
    )

  const changes = ChangeReport.openOf(subject.changes)
  const report = changes === null ? null : ChangeReport.make(changes)

  const violated = Effect.fnUntraced(function* (problem: string) {
    over = true
    yield* vm.destroy
    holder.closed ??= "its guest broke the protocol"
    return yield* fail(new ProtocolError({ problem }))
  })

  const outputFails = allowed.output === "fail"
  /** The guest ends what writes too much; that it was too much is for us to say. */
  const overflowing = (outcome: Execution.Outcome): Execution.Outcome => {
    const observed = Math.max(stdout.total(), stderr.total())
    return !outputFails || observed <= allowed.outputBytes || outcome._tag === "LimitExceeded"
      ? outcome
      : { _tag: "LimitExceeded", limit: "output", allowed: allowed.outputBytes, observed }
  }

  const conclude = Effect.fnUntraced(function* (given: Execution.Outcome, evidence: Evidence) {
    const outcome = NetworkOutcome.refine(overflowing(given), evidence, network?.refused())
    const common = {
      stdout: stdout.text(),
      stderr: stderr.text(),
      bytes: { stdout: stdout.bytes(), stderr: stderr.bytes() },
      outputFiles: evidence.rest ?? noFiles,
      changes: report === null || evidence.changes === undefined ? null : yield* report.finish(evidence.changes),
      receipt: yield* publish(outcome._tag, Execution.stopReason(outcome), evidence)
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
      const watch = holder.deadlines.watch(deadline, vm.destroy)
      ends.push(watch.letGo)
      return watch
    },
    ownMemoryBytes: allowed.memoryMiB === limits.memoryMiB ? null : memoryBytes,
    timeMs,
    ownFileSizeBytes: allowed.fileSizeMiB === limits.fileSizeMiB ? null : diskShare(allowed.fileSizeMiB),
    outputBytes: allowed.outputBytes,
    outputFails,
    ownProcesses: allowed.processes === limits.processes ? null : allowed.processes,
    stdout,
    stderr,
    changes,
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
      holder.closed ??= error.problem
      over = true
      if (error.violation) return yield* fail(new ProtocolError({ problem: error.problem }))
      if (!handedOver) return yield* fail(new NotStarted({ problem: error.problem }))
      return yield* unknown(error.problem)
    }),
    refused: Effect.fnUntraced(function* (reset, poisoned) {
      over = true
      if (reset?.code === "invalid") {
        return yield* fail(
          new InvalidInput({ field: "request", problem: reset.message, expected: "what the guest accepts" })
        )
      }
      const problem = reset?.message ?? "the stream ended without a result"
      if (poisoned) {
        yield* vm.destroy
        holder.closed ??= problem
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
      ),
    evidence: Effect.fnUntraced(function* (value) {
      const evidence = decodeEvidence(value)
      return Option.isSome(evidence) ? evidence.value : yield* violated("evidence that is not understood")
    })
  }
})

/**
 * Follows a stream to its end, gathering the output, and gives the evidence or the agent's refusal. The guest enforces the
 * limits; `deadline`, in ms of the host's clock, is for one that does not.
 */
export const follow = Effect.fnUntraced(function* (
  attempt: Attempt,
  stream: VmStream,
  emit: (event: Execution.Event) => Effect.Effect<void>,
  deadline: number
): Effect.fn.Return<Evidence | Reset | undefined, SandboxError, Scope.Scope> {
  const { isOverdue } = attempt.until(deadline)
  const next = Effect.catch(stream.takeAll, (error) => {
    if (Cause.isDone(error)) return Effect.void
    return attempt.lost(isOverdue() ? new VmLost({ problem: overdue, violation: false }) : error, true)
  })
  for (;;) {
    const events = yield* next
    if (events === undefined) return undefined
    for (const event of events) {
      switch (event._tag) {
        case "Data": {
          if (event.bytes.length === 0) break
          if (event.sub === Sub.file) {
            yield* attempt.changed(event.bytes)
            break
          }
          const standard = event.sub === Sub.stderr ? "Stderr" : "Stdout"
          ;(standard === "Stderr" ? attempt.stderr : attempt.stdout).push(event.bytes)
          yield* emit({ _tag: standard, bytes: event.bytes })
          break
        }
        case "Note": {
          if (startedPid(event.value) !== undefined) yield* attempt.began
          break
        }
        case "Reset":
          return event
        case "End":
          return yield* attempt.evidence(event.value)
      }
    }
  }
})

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
