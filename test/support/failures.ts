/** One result, and one error of each channel. */
import * as Execution from "../../src/Execution.ts"
import {
  fail,
  LimitExceeded,
  NotStarted,
  PermissionDenied,
  TaskFailed,
  UnsupportedCommand
} from "../../src/SandboxError.ts"
import { fields } from "./receipts.ts"

export const done = new Execution.Result({
  ...fields({ outcome: "Success", exitCode: 0 }),
  result: { repr: "1", json: 1 }
})
export const failures = {
  PermissionDenied: new PermissionDenied({
    operation: "file",
    target: "/etc/shadow",
    rule: "EACCES",
    grant: "none",
    ...fields({ outcome: "PermissionDenied", exitCode: 1 })
  }),
  UnsupportedCommand: new UnsupportedCommand({
    kind: "command",
    name: "nope",
    available: [],
    ...fields({ outcome: "UnsupportedCommand", exitCode: 127 })
  }),
  LimitExceeded: new LimitExceeded({
    limit: "time",
    allowed: 1,
    observed: 2,
    ...fields({ outcome: "LimitExceeded", exitCode: null })
  }),
  TaskFailed: new TaskFailed({
    reason: { _tag: "ExitCode", exitCode: 3 },
    ...fields({ outcome: "TaskFailed", exitCode: 3 })
  })
}
export const notStarted = fail(new NotStarted({ problem: "lost" }))
