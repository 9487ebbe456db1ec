/**
 * Session: a caller's exclusive hold on one VM. Executions of one language share their state and run one after another;
 * different interpreters run side by side.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { createHash, randomUUID } from "node:crypto"
import * as Execution from "./Execution.ts"
import { Sub } from "./guest/Frame.ts"
import { Evidence, type ExecOpen, Note, type Reset } from "./guest/Protocol.ts"
import { decodeInput } from "./internal/decodeInput.ts"
import * as Output from "./internal/Output.ts"
import type { Limits } from "./Limits.ts"
import type { Receipt, StartPath } from "./Receipt.ts"
import {
  fail,
  InvalidInput,
  LimitExceeded,
  NotStarted,
  OutcomeUnknown,
  PermissionDenied,
  ProtocolError,
  SessionClosed,
  TaskFailed,
  UnsupportedCommand
} from "./SandboxError.ts"
import { type Vm, VmLost } from "./Vm.ts"

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
}

/** Where a session's VM came from, for its receipts. Times in ms. */
export interface Origin {
  readonly image: string
  readonly template: string
  readonly startPath: StartPath
  readonly acquireMs: number
  readonly handoverMs: number
  readonly languages: ReadonlyArray<string>
}

/** How long after an execution's time limit the guest may take to say how it ended; it kills one second after the limit. */
const graceMs = 20_000

const decodeRequest = decodeInput(Execution.Request, "request")
const decodeEvidence = Schema.decodeUnknownOption(Evidence)
const decodeNote = Schema.decodeUnknownOption(Note)

const isStarted = (note: unknown): boolean => {
  const decoded = decodeNote(note)
  return Option.isSome(decoded) && decoded.value.event === "started"
}

/** Makes a session over a VM that has been handed over. It is closed when the scope is, or when the VM is lost. */
export const make = Effect.fnUntraced(function* (
  vm: Vm,
  origin: Origin,
  limits: Required<Limits>
): Effect.fn.Return<Session, never, Scope.Scope> {
  const id = `ses-${randomUUID().replaceAll("-", "").slice(0, 16)}`
  let sequence = 0
  let closed: string | undefined
  let outstandingMs = 0
  const overdue = Effect.andThen(
    vm.destroy,
    Effect.fail(new VmLost({ problem: "the guest did not end the execution within its limits", violation: false }))
  )
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      closed ??= "its scope has ended"
    })
  )

  const run = Effect.fn("Session.exec")(function* (
    input: Execution.Request,
    emit: (event: Execution.Event) => Effect.Effect<void>
  ): Effect.fn.Return<Execution.Result, Execution.Failure, Scope.Scope> {
    const request = yield* decodeRequest(input)
    if (closed !== undefined) return yield* fail(new SessionClosed({ session: id, problem: closed }))
    const allowed = { ...limits, ...request.limits }
    if (allowed.memoryMiB > limits.memoryMiB) {
      return yield* fail(
        new InvalidInput({
          field: "limits.memoryMiB",
          problem: `got ${allowed.memoryMiB}`,
          expected: `at most the session's ${limits.memoryMiB}`
        })
      )
    }
    const first = sequence++ === 0
    const number = sequence
    const openedAt = yield* Clock.currentTimeMillis
    let startedAt: number | undefined
    const stdout = Output.make(allowed.outputBytes)
    const stderr = Output.make(allowed.outputBytes)
    const code = Buffer.from(request.code)
    const stdin = request.stdin === undefined ? new Uint8Array() : Buffer.from(request.stdin as string)

    const receipt = (
      ended: number,
      outcome: Receipt["outcome"],
      reason: Receipt["stopReason"],
      evidence: Evidence | undefined
    ): Receipt => ({
      version: 1,
      id: `exe-${randomUUID().replaceAll("-", "").slice(0, 16)}`,
      session: id,
      sequence: number,
      startedAt: new Date(openedAt).toISOString(),
      language: request.language,
      argv: null,
      codeSha256: createHash("sha256").update(code).digest("hex"),
      image: origin.image,
      template: origin.template,
      startPath: origin.startPath,
      isolation: vm.isolation,
      limits: {
        timeMs: allowed.timeMs,
        memoryBytes: allowed.memoryMiB * 1024 * 1024,
        outputBytes: allowed.outputBytes,
        processes: allowed.processes
      },
      outcome,
      stopReason: reason,
      exitCode: evidence?.exitCode ?? null,
      signal: evidence?.signal ?? null,
      state: evidence?.state ?? "closed",
      output: {
        stdoutBytes: stdout.total(),
        stderrBytes: stderr.total(),
        truncated: stdout.truncated() || stderr.truncated()
      },
      usage: evidence?.usage ?? { cpuMs: null, peakMemoryBytes: null, wallMs: null },
      timing: {
        queueMs: startedAt === undefined ? null : startedAt - openedAt,
        acquireMs: first ? origin.acquireMs : null,
        handoverMs: first ? origin.handoverMs : null,
        executeMs: startedAt === undefined ? null : ended - startedAt
      },
      egress: null,
      ports: null,
      filesChanged: null
    })

    const result = (ended: number, outcome: Receipt["outcome"], reason: Receipt["stopReason"], evidence: Evidence) => ({
      stdout: stdout.text(),
      stderr: stderr.text(),
      bytes: { stdout: stdout.bytes(), stderr: stderr.bytes() },
      receipt: receipt(ended, outcome, reason, evidence)
    })

    const lost = Effect.fnUntraced(function* (error: VmLost, handedOver: boolean) {
      closed ??= error.problem
      if (error.violation) return yield* fail(new ProtocolError({ problem: error.problem }))
      if (!handedOver) return yield* fail(new NotStarted({ problem: error.problem }))
      const ended = yield* Clock.currentTimeMillis
      return yield* fail(
        new OutcomeUnknown({
          problem: error.problem,
          receipt: receipt(ended, "SandboxError", "sandbox-failure", undefined)
        })
      )
    })

    if (!origin.languages.includes(request.language)) {
      const evidence: Evidence = { ...noEvidence, exitCode: null }
      const ended = yield* Clock.currentTimeMillis
      return yield* new UnsupportedCommand({
        kind: "language",
        name: request.language,
        available: origin.languages,
        ...result(ended, "UnsupportedCommand", "unsupported", evidence)
      })
    }

    const open: ExecOpen = {
      method: "exec",
      language: request.language,
      codeBytes: code.length,
      stdinBytes: stdin.length,
      env: request.env ?? {},
      cwd: request.cwd ?? null,
      timeoutMs: allowed.timeMs,
      memoryBytes: allowed.memoryMiB === limits.memoryMiB ? null : allowed.memoryMiB * 1024 * 1024
    }
    const stream = yield* vm
      .open(open, [
        { sub: Sub.code, bytes: code },
        { sub: Sub.stdin, bytes: stdin }
      ])
      .pipe(Effect.catch((error) => lost(error, false)))

    // The guest enforces the limits; this is for one that does not. Executions may have to wait for all before them.
    const patience = allowed.timeMs + graceMs
    outstandingMs += patience
    yield* Effect.addFinalizer(() =>
      Effect.sync(() => {
        outstandingMs -= patience
      })
    )
    const deadline = openedAt + outstandingMs
    let last: Evidence | Reset | undefined
    while (last === undefined) {
      const left = deadline - (yield* Clock.currentTimeMillis)
      const events = yield* Effect.catchIf(stream.takeAll, Cause.isDone, () => Effect.void).pipe(
        Effect.timeoutOrElse({ duration: Math.max(left, graceMs), orElse: () => overdue }),
        Effect.catch((error) => lost(error, true))
      )
      if (events === undefined) break
      for (const event of events) {
        switch (event._tag) {
          case "Data": {
            if (event.bytes.length === 0) break
            const standard = event.sub === Sub.stderr ? "Stderr" : "Stdout"
            ;(standard === "Stderr" ? stderr : stdout).push(event.bytes)
            yield* emit({ _tag: standard, bytes: event.bytes })
            break
          }
          case "Note": {
            if (startedAt === undefined && isStarted(event.value)) startedAt = yield* Clock.currentTimeMillis
            break
          }
          case "Reset": {
            last = event
            break
          }
          case "End": {
            const evidence = decodeEvidence(event.value)
            if (Option.isNone(evidence)) {
              yield* vm.destroy
              closed ??= "its guest broke the protocol"
              return yield* fail(new ProtocolError({ problem: "evidence that is not understood" }))
            }
            last = evidence.value
          }
        }
      }
    }
    const ended = yield* Clock.currentTimeMillis
    if (last === undefined || "code" in last) {
      if (last !== undefined && last.code === "invalid") {
        return yield* fail(
          new InvalidInput({ field: "request", problem: last.message, expected: "what the guest accepts" })
        )
      }
      // The agent could not make the interpreter ready or different: this VM must not be used any more.
      yield* vm.destroy
      const problem = last === undefined ? "the stream ended without a result" : last.message
      closed ??= problem
      if (startedAt === undefined) return yield* fail(new NotStarted({ problem }))
      return yield* fail(
        new OutcomeUnknown({ problem, receipt: receipt(ended, "SandboxError", "sandbox-failure", undefined) })
      )
    }
    const outcome = Execution.classify(last)
    const common = result(ended, outcome._tag, Execution.stopReason(outcome), last)
    switch (outcome._tag) {
      case "Success": {
        const done = new Execution.Result({ ...common, result: last.result })
        yield* emit({ _tag: "Done", result: done })
        return done
      }
      case "PermissionDenied":
        return yield* new PermissionDenied({ ...withoutTag(outcome), ...common })
      case "UnsupportedCommand":
        return yield* new UnsupportedCommand({ kind: outcome.kind, name: outcome.name, available: [], ...common })
      case "LimitExceeded": {
        const allowedHere = outcome.allowed ?? (outcome.limit === "memory" ? allowed.memoryMiB * 1024 * 1024 : null)
        return yield* new LimitExceeded({ ...withoutTag(outcome), allowed: allowedHere, ...common })
      }
      case "TaskFailed":
        return yield* new TaskFailed({ reason: outcome.reason, ...common })
    }
  }, Effect.scoped)

  return {
    id,
    exec: (request) => run(request, () => Effect.void),
    stream: (request) =>
      Stream.callback<Execution.Event, Execution.Failure>(
        (queue) =>
          run(request, (event) => Effect.asVoid(Queue.offer(queue, event))).pipe(
            Effect.andThen(Queue.end(queue)),
            Effect.catchCause((cause) => Queue.failCause(queue, cause))
          ),
        { bufferSize: 16, strategy: "suspend" }
      )
  }
})

/** What is known of an execution that never reached an interpreter. */
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
