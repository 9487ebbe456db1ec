/** The JSON value that `run --json` prints: the receipt, the output and, after a failure, the error. */
import * as Schema from "effect/Schema"
import type { Failure, Result } from "../Execution.ts"
import { LimitExceeded, PermissionDenied, SandboxError, TaskFailed, UnsupportedCommand } from "../SandboxError.ts"

const encode = Schema.encodeSync(
  Schema.toCodecJson(Schema.Union([PermissionDenied, UnsupportedCommand, LimitExceeded, TaskFailed, SandboxError]))
)

/** Fields that are printed outside the error, or left out: bytes, and files of a VM that is gone. */
const elsewhere = new Set(["stdout", "stderr", "bytes", "outputFiles", "changes", "receipt"])

/** An error or reason as data: `tag`, and its own fields. */
const described = (value: Schema.Json): Schema.Json => {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return value
  return Object.fromEntries(
    Object.entries(value)
      .filter(([name]) => !elsewhere.has(name))
      .map(([name, field]) => (name === "_tag" ? ["tag", field] : [name, name === "reason" ? described(field) : field]))
  )
}

/** The value for a successful execution. */
export const ofResult = ({ changes, receipt, result, stderr, stdout }: Result): object => ({
  ...receipt,
  stdout,
  stderr,
  result,
  ...(changes !== null && { changes })
})

/** The value for a failed execution. When nothing is known about it, the receipt is missing and the output is `null`. */
export const ofFailure = (failure: Failure): object => {
  const error = { message: failure.message, ...(described(encode(failure)) as object) }
  if (failure._tag !== "SandboxError") {
    const { changes, receipt, stderr, stdout } = failure
    return { ...receipt, stdout, stderr, error, ...(changes !== null && { changes }) }
  }
  const { reason, retry } = failure
  return {
    ...(reason._tag === "OutcomeUnknown" ? reason.receipt : { outcome: "SandboxError", stopReason: "sandbox-failure" }),
    stdout: null,
    stderr: null,
    error: { ...error, retry }
  }
}
