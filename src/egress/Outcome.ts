/**
 * When a failed task is one that the network policy stopped.
 *
 * Two things must be known, and neither is read from stderr: a connection of the execution was refused, and what the task
 * failed with is that refusal. The guest's connect was answered with an errno of its own; an exception with this errno, or
 * one that was caused by such an exception, is the refusal. Of a program that fails by its exit code the agent knows which
 * process met which refusal, and whether the exit code is that process's or was handed on from it.
 */
import type { Entry } from "./Ledger.ts"
import type { Outcome } from "../Execution.ts"
import { hostText, parseHost } from "../network/Target.ts"

/** What the guest's evidence says about a failed connect: the errno of an exception, and the connect of a program. */
interface Evidence {
  readonly exception: { readonly errno: string | null; readonly causeErrno?: string } | null
  readonly refused?: { readonly host: string; readonly port: number } | undefined
}

const entryOf = (evidence: Evidence, refused: ReadonlyArray<Entry>): Entry | undefined => {
  const { exception, refused: met } = evidence
  if (met !== undefined) {
    const host = parseHost(met.host)
    const name = host === undefined ? met.host : hostText(host)
    return refused.findLast((it) => it.name === name && it.port === met.port)
  }
  const errno = exception?.errno ?? exception?.causeErrno ?? null
  return errno === null ? undefined : refused.findLast((it) => it.errno === errno)
}

/** How a connect and the search for a name fail where there is no network, and mostly only there. */
const nowhere = new Set(["ENETUNREACH", "EAI_AGAIN"])

/** Where nothing can be reached there is no ledger, nor anybody to whom a program could have said whom it wants. */
const withoutNetwork = ({ exception, refused }: Evidence): Outcome | undefined => {
  const errno = exception?.errno ?? exception?.causeErrno ?? ""
  if (refused === undefined && !nowhere.has(errno)) return undefined
  return {
    _tag: "PermissionDenied",
    operation: "network",
    target: refused === undefined ? null : `${refused.host}:${refused.port}`,
    rule: "none",
    grant: "a network policy that allows it, in place of none"
  }
}

/** Turns a task's failure into a refusal where it is one. `refused`: undefined where nothing can be reached. */
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
    grant: entry.grant ?? "none: this is not reached under any policy"
  }
}
