/** Makes the receipt of one attempt from what the host and the guest know about it. */
import type { Watch } from "../egress/Ledger.ts"
import type { Evidence } from "../guest/Evidence.ts"
import type { Limits } from "../Limits.ts"
import type { Recording } from "../ports/Ledger.ts"
import type { Receipt } from "../Receipt.ts"
import { type Context, newId } from "./Context.ts"
import type { Output } from "./Output.ts"

/** Everything that a receipt is made from. Times in ms, those with `At` by the host's clock. */
interface Facts {
  readonly context: Context
  readonly subject: Pick<Receipt, "language" | "argv">
  readonly codeSha256: string | null
  /** The limits of the attempt, the session's included. */
  readonly allowed: Required<Limits>
  readonly timeMs: number | null
  readonly sequence: number
  readonly openedAt: number
  /** When the guest reported the start; undefined when it did not. */
  readonly startedAt: number | undefined
  readonly endedAt: number
  /** How long the session took to wake; `null` when it was awake. */
  readonly wakeMs: number | null
  readonly outcome: Receipt["outcome"]
  readonly reason: Receipt["stopReason"]
  /** Undefined when the guest sent none. */
  readonly evidence: Evidence | undefined
  readonly stdout: Output
  readonly stderr: Output
  /** Undefined without a network. */
  readonly network: Pick<Watch, "attempts" | "omitted"> | undefined
  readonly ports: Recording
}

const mebibyte = 1024 * 1024

/** The receipt's counts of changed files. */
const countsOf = (evidence: Evidence | undefined): Receipt["filesChanged"] => {
  if (evidence?.changes === undefined) return null
  const { created, deleted, modified, renamed, unexamined } = evidence.changes
  return { created, modified, deleted, renamed, unexamined }
}

export const make = (facts: Facts): Receipt => {
  const { allowed, context, endedAt, evidence, network, openedAt, outcome, startedAt, stderr, stdout, subject } = facts
  const { origin } = context
  const first = facts.sequence === 1
  // The guest reports the start only of work that does not end at once; otherwise the end implies it.
  const wallMs = evidence?.usage.wallMs ?? null
  const begunAt =
    wallMs === null ? startedAt : Math.max(openedAt, Math.min(startedAt ?? endedAt, Math.round(endedAt - wallMs)))
  return {
    version: 1,
    id: newId("exe"),
    session: context.id,
    sequence: facts.sequence,
    startedAt: new Date(openedAt).toISOString(),
    language: subject.language,
    argv: subject.argv,
    codeSha256: facts.codeSha256,
    image: origin.image,
    template: origin.template,
    startPath: origin.startPath,
    isolation: context.vm.isolation,
    limits: {
      timeMs: facts.timeMs,
      memoryBytes: allowed.memoryMiB * mebibyte,
      outputBytes: allowed.outputBytes,
      output: allowed.output,
      processes: allowed.processes,
      fileSizeBytes: allowed.fileSizeMiB * mebibyte,
      diskBytes: allowed.diskMiB * mebibyte
    },
    outcome,
    stopReason: facts.reason,
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
      wakeMs: facts.wakeMs,
      executeMs: begunAt === undefined ? null : endedAt - begunAt
    },
    egress: network?.attempts() ?? null,
    egressOmitted: network?.omitted() ?? null,
    ports: facts.ports.uses(),
    filesChanged: countsOf(evidence)
  }
}
