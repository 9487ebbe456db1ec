/** How an execution ends: exit code, line on stderr, and the value of `--json`. */
import { assert, describe, it } from "@effect/vitest"
import * as Exit from "effect/Exit"
import { constants } from "node:os"
import { endingOf, endingOfDefect, endingOfExit, Leave, lineOf, signalCode } from "../../src/cli/ending.ts"
import * as json from "../../src/cli/json.ts"
import { Result } from "../../src/Execution.ts"
import {
  BootFailed,
  fail,
  HostUnsupported,
  InvalidInput,
  LimitExceeded,
  NotStarted,
  OutcomeUnknown,
  PermissionDenied,
  type Reason,
  TaskFailed,
  TemplateUnusable,
  UnsupportedCommand
} from "../../src/SandboxError.ts"
import { receipt as receiptWith } from "../support/receipts.ts"

const receipt = receiptWith({
  image: "img",
  template: "tpl",
  limits: {
    timeMs: 1000,
    memoryBytes: 134217728,
    outputBytes: 1,
    output: "truncate",
    processes: 16,
    fileSizeBytes: 1,
    diskBytes: 1
  },
  outcome: "TaskFailed",
  stopReason: "failed",
  exitCode: 3,
  output: { stdoutBytes: 2, stderrBytes: 2, truncated: false },
  usage: { cpuMs: null, peakMemoryBytes: null, wallMs: null },
  timing: { queueMs: null, acquireMs: null, handoverMs: null, wakeMs: null, executeMs: null }
})
const bytes = { stdout: Buffer.from("o\n"), stderr: Buffer.from("e\n") }
const ran = { stdout: "o\n", stderr: "e\n", bytes, outputFiles: { stdout: null, stderr: null }, changes: null, receipt }
const noFile = new PermissionDenied({
  operation: "file",
  target: "/etc/shadow",
  rule: "EACCES",
  grant: "use a path that user may access",
  ...ran
})
const noCommand = (available: ReadonlyArray<string>) =>
  new UnsupportedCommand({ kind: "command", name: "fooo", available, ...ran })
const limit = (name: LimitExceeded["limit"], allowed: number | null, observed: number | null) =>
  new LimitExceeded({ limit: name, allowed, observed, ...ran })
const failed = (reason: TaskFailed["reason"]) => new TaskFailed({ reason, ...ran })

describe("ending", () => {
  it("passes the program's own exit code through without a message", () => {
    assert.deepStrictEqual(endingOf(failed({ _tag: "ExitCode", exitCode: 125 })), { code: 125 })
    assert.deepStrictEqual(endingOf(failed({ _tag: "Signal", signal: "SIGSEGV" })), {
      code: 128 + constants.signals.SIGSEGV
    })
    assert.deepStrictEqual(endingOf(failed({ _tag: "Exception", type: "ValueError", message: "x", traceback: "" })), {
      code: 3
    })
  })

  it.each([
    [noFile, 126, 'permission denied: file "/etc/shadow" (EACCES); use a path that user may access'],
    [noCommand([]), 127, 'unsupported command: "fooo" does not exist here; use an image that has it'],
    [noCommand(["foo"]), 127, 'unsupported command: "fooo" does not exist here; available: foo'],
    [limit("time", 1000, null), 124, "time limit exceeded: 1000 ms allowed; -t SECONDS allows more"],
    [limit("memory", 1024, 2048), 137, "memory limit exceeded: 1024 bytes allowed, 2048 observed; -m MIB allows more"],
    [limit("disk", null, null), 1, "disk limit exceeded"],
    [limit("processes", 16, null), 1, "processes limit exceeded: 16 processes allowed"],
    [limit("output", 10, 11), 1, "output limit exceeded: 10 bytes allowed, 11 observed"]
  ])("%s", (error, code, why) => assert.deepStrictEqual(endingOf(error), { code, why }))

  const reasons: ReadonlyArray<readonly [Reason, number, string]> = [
    [new InvalidInput({ field: "env", problem: "got 1", expected: "text" }), 2, "invalid env: got 1; expected text"],
    [
      new HostUnsupported({ requirement: "QEMU", found: null, needed: "7.2", fix: "install it" }),
      125,
      "QEMU: found none, needs 7.2; install it"
    ],
    [
      new BootFailed({ stage: "boot", problem: "no answer", console: "panic\nmore" }),
      125,
      "VM failed at boot: no answer; it is safe to try again"
    ],
    [new TemplateUnusable({ key: "k", problem: "full" }), 125, "template k: full; it is safe to try again"],
    [new NotStarted({ problem: "gone" }), 125, "not started: gone; it is safe to try again"],
    [new OutcomeUnknown({ problem: "gone", receipt }), 125, "outcome unknown: gone; the code may have run"]
  ]
  it.each(reasons)("%s", (reason, code, why) => assert.deepStrictEqual(endingOf(fail(reason)), { code, why }))

  it("names a defect in one line", () => {
    const { code, why } = endingOfDefect(new TypeError("x is not a function"))
    assert.strictEqual(code, 125)
    assert.match(
      lineOf(why ?? ""),
      /^exec-sandbox: internal error: TypeError: x is not a function at .*ending\.test\.ts.*\n$/
    )
    assert.deepStrictEqual(endingOfDefect("odd"), { code: 125, why: "internal error: odd; please report it" })
  })

  it("is 0, the error's code, or 130 after an interruption", () => {
    assert.deepStrictEqual(endingOfExit(Exit.void), { code: 0 })
    assert.deepStrictEqual(endingOfExit(Exit.fail(noFile)).code, 126)
    assert.deepStrictEqual(endingOfExit(Exit.fail(new Leave({ code: 7 }))).code, 7)
    assert.deepStrictEqual(endingOfExit(Exit.die("odd")).code, 125)
    assert.deepStrictEqual(endingOfExit(Exit.interrupt(1)).code, 130)
  })

  it("counts signals as shells do", () => {
    assert.deepStrictEqual(
      ["SIGHUP", "SIGINT", "SIGKILL", "SIGTERM", "SIGNOPE"].map(signalCode),
      [129, 130, 137, 143, 1]
    )
  })
})

describe("json", () => {
  const { bytes: _, changes: __, outputFiles: ___, receipt: ____, ...texts } = ran

  it("of a result is the receipt, the output and the value", () => {
    const result = new Result({ ...ran, result: { repr: "2", json: 2 } })
    assert.deepStrictEqual(json.ofResult(result), { ...receipt, ...texts, result: { repr: "2", json: 2 } })
  })

  it("of a failure is the receipt, the output and the error's own fields", () => {
    assert.deepStrictEqual(json.ofFailure(noFile), {
      ...receipt,
      ...texts,
      error: {
        tag: "PermissionDenied",
        message: noFile.message,
        operation: "file",
        target: "/etc/shadow",
        rule: "EACCES",
        grant: "use a path that user may access"
      }
    })
    assert.deepStrictEqual(json.ofFailure(failed({ _tag: "ExitCode", exitCode: 3 })), {
      ...receipt,
      ...texts,
      error: {
        tag: "TaskFailed",
        message: "task failed with exit code 3",
        reason: { tag: "ExitCode", exitCode: 3 }
      }
    })
  })

  it("of a sandbox failure has what is known", () => {
    assert.deepStrictEqual(json.ofFailure(fail(new NotStarted({ problem: "gone" }))), {
      outcome: "SandboxError",
      stopReason: "sandbox-failure",
      stdout: null,
      stderr: null,
      error: {
        tag: "SandboxError",
        message: "not started: gone",
        retry: "safe",
        reason: { tag: "NotStarted", problem: "gone" }
      }
    })
    const unknown = json.ofFailure(fail(new OutcomeUnknown({ problem: "gone", receipt })))
    assert.deepStrictEqual(unknown, {
      ...receipt,
      stdout: null,
      stderr: null,
      error: {
        tag: "SandboxError",
        message: "outcome unknown: gone",
        retry: "unsafe",
        reason: { tag: "OutcomeUnknown", problem: "gone" }
      }
    })
  })

  it("keeps a foreign cause as data", () => {
    const error = fail(new TemplateUnusable({ key: "k", problem: "p", cause: new Error("deep") }))
    assert.include(JSON.stringify(json.ofFailure(error)), "deep")
  })
})
