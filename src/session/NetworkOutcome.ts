/**
 * Decides whether a failed task was stopped by the network policy.
 *
 * Two things must be true, and neither is read from stderr: a connection of the execution was refused, and the task failed
 * because of it. A refused connect fails in the guest with a known errno; an exception with this errno, or one caused by such
 * an exception, comes from the refusal. For a program that fails with an exit code, the agent knows which process got which
 * refusal, and whether the exit code comes from that process.
 */
import type { Entry } from "../egress/Ledger.ts"
import type { Evidence } from "../guest/Evidence.ts"
import { hostText, parseHost } from "../network/Target.ts"
import type { Outcome } from "./Outcome.ts"

const entryOf = (evidence: Evidence, refused: ReadonlyArray<Entry>): Entry | undefined => {
  const { exception, refused: reported } = evidence
  if (reported !== undefined) {
    const host = parseHost(reported.host)
    const name = host === undefined ? reported.host : hostText(host)
    return refused.findLast((it) => it.name === name && it.port === reported.port)
  }
  const errno = exception?.errno ?? exception?.causeErrno ?? null
  return errno === null ? undefined : refused.findLast((it) => it.errno === errno)
}

/** How connecting and resolving fail without a network; both are rare with one. */
const unreachable = new Set(["ENETUNREACH", "EAI_AGAIN"])

/** Without a network there is no ledger, so the name that a program wanted to reach is not known. */
const withoutNetwork = ({ exception, refused }: Evidence): Outcome | undefined => {
  const errno = exception?.errno ?? exception?.causeErrno ?? ""
  if (refused === undefined && !unreachable.has(errno)) return undefined
  return {
    _tag: "PermissionDenied",
    operation: "network",
    target: refused === undefined ? null : `${refused.host}:${refused.port}`,
    rule: "none",
    grant: "give the session a network policy that allows it"
  }
}

/** Turns a task's failure into `PermissionDenied` when a refusal caused it. `refused`: undefined without a network. */
export const refine = (outcome: Outcome, evidence: Evidence, refused: ReadonlyArray<Entry> | undefined): Outcome => {
  if (outcome._tag !== "TaskFailed") return outcome
  if (refused === undefined) return withoutNetwork(evidence) ?? outcome
  const entry = entryOf(evidence, refused)
  if (entry === undefined) return outcome
  return {
    _tag: "PermissionDenied",
    operation: "network",
    target: `${entry.name}:${entry.port}`,
    rule: entry.rule,
    grant: entry.grant ?? "none: no policy allows this"
  }
}
