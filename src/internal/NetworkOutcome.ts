/**
 * When a failed task is one that the network policy stopped.
 *
 * Two things must be known, and neither is read from stderr: a connection of the execution was refused, and what the task
 * failed with is that refusal. The guest's connect was answered with an errno of its own; an exception with this errno, or
 * one that was caused by such an exception, is the refusal.
 */
import type { Entry } from "../egress/Ledger.ts"
import type { Outcome } from "../Execution.ts"
import type { Evidence } from "../guest/Protocol.ts"

/** Turns a task's failure into a refusal where it is one. */
export const refine = (outcome: Outcome, evidence: Evidence, refused: ReadonlyArray<Entry>): Outcome => {
  if (outcome._tag !== "TaskFailed") return outcome
  const errno = evidence.exception?.errno ?? evidence.exception?.causeErrno ?? null
  const entry = errno === null ? undefined : refused.findLast((it) => it.errno === errno)
  if (entry === undefined) return outcome
  return {
    _tag: "PermissionDenied",
    operation: "network",
    target: `${entry.name}:${entry.port}`,
    rule: entry.rule,
    grant: entry.grant ?? "none: this is not reached under any policy"
  }
}
