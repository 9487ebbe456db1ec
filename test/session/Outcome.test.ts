import { assert, describe, it } from "@effect/vitest"
import type { Evidence } from "../../src/guest/Evidence.ts"
import { classify, type Outcome, stopReason } from "../../src/session/Outcome.ts"

const nothing: Evidence = {
  exitCode: 0,
  signal: null,
  exception: null,
  commands: [],
  limits: [],
  state: "kept",
  result: null,
  usage: { cpuMs: 1, peakMemoryBytes: 7_000_000, wallMs: 1 }
}
type ExceptionEvidence = NonNullable<Evidence["exception"]>
const raised = (exception: Partial<ExceptionEvidence>, rest: Partial<Evidence> = {}): Evidence => ({
  ...nothing,
  exitCode: 1,
  exception: {
    type: "OSError",
    message: "m",
    traceback: "t",
    errno: null,
    path: null,
    module: null,
    code: null,
    ...exception
  },
  ...rest
})
const time = { limit: "time", allowed: 1000, observed: 1003 } as const
const memory = { limit: "memory", allowed: 100, observed: 100 } as const
const disk = { limit: "disk", allowed: 4096, observed: 4096 } as const
const fileSize = { limit: "file-size", allowed: 1024, observed: 1024 } as const
const processes = { limit: "processes", allowed: 64, observed: 64 } as const
const command = (kind: Evidence["commands"][number]["kind"], exitCode: number): Evidence => ({
  ...nothing,
  exitCode,
  commands: [{ name: "foo", kind, path: kind === "not-found" ? null : "/tmp/foo" }]
})

const cases: ReadonlyArray<readonly [string, Evidence, Partial<Outcome> & { readonly _tag: Outcome["_tag"] }, string]> =
  [
    ["a success", nothing, { _tag: "Success" }, "completed"],
    [
      "a success after a missing command and the process limit",
      { ...nothing, commands: [{ name: "x", kind: "not-found", path: null }], limits: [processes] },
      { _tag: "Success" },
      "completed"
    ],
    [
      "exit 3",
      { ...nothing, exitCode: 3 },
      { _tag: "TaskFailed", reason: { _tag: "ExitCode", exitCode: 3 } },
      "failed"
    ],
    ["exit 126 typed by the user", { ...nothing, exitCode: 126 }, { _tag: "TaskFailed" }, "failed"],
    ["exit 127 typed by the user", { ...nothing, exitCode: 127 }, { _tag: "TaskFailed" }, "failed"],
    [
      "a missing command that did not decide the code",
      { ...command("not-found", 3) },
      { _tag: "TaskFailed", reason: { _tag: "ExitCode", exitCode: 3 } },
      "failed"
    ],
    [
      "a missing command",
      command("not-found", 127),
      { _tag: "UnsupportedCommand", kind: "command", name: "foo" },
      "unsupported"
    ],
    [
      "a file that is not a program",
      command("not-executable", 126),
      { _tag: "UnsupportedCommand", kind: "executable", name: "/tmp/foo" },
      "unsupported"
    ],
    [
      "a file that may not be executed",
      command("permission", 126),
      { _tag: "PermissionDenied", operation: "execute", target: "/tmp/foo", rule: "EACCES" },
      "permission"
    ],
    ...(["EACCES", "EPERM", "EROFS"] as const).map(
      (errno) =>
        [
          `an exception with ${errno}`,
          raised({ errno, path: "/etc/shadow" }),
          { _tag: "PermissionDenied", operation: "file", target: "/etc/shadow", rule: errno },
          "permission"
        ] as const
    ),
    [
      "a program that an exception says may not be executed",
      raised({ errno: "EACCES", path: "/tmp/foo" }, { commands: command("permission", 1).commands }),
      { _tag: "PermissionDenied", operation: "execute", target: "/tmp/foo" },
      "permission"
    ],
    [
      "a program that an exception says does not exist",
      raised({ errno: "ENOENT", path: "foo" }, { commands: command("not-found", 1).commands }),
      { _tag: "UnsupportedCommand", kind: "command", name: "foo" },
      "unsupported"
    ],
    [
      "a file that does not exist",
      raised({ errno: "ENOENT", path: "foo", type: "FileNotFoundError" }),
      { _tag: "TaskFailed", reason: { _tag: "Exception", type: "FileNotFoundError", message: "m", traceback: "t" } },
      "failed"
    ],
    [
      "a missing module",
      raised({ type: "ModuleNotFoundError", module: "numpy" }),
      { _tag: "UnsupportedCommand", kind: "module", name: "numpy" },
      "unsupported"
    ],
    [
      "MemoryError",
      raised({ type: "MemoryError" }),
      { _tag: "LimitExceeded", limit: "memory", observed: 7_000_000 },
      "memory-limit"
    ],
    ["a full disk", raised({ errno: "ENOSPC" }), { _tag: "LimitExceeded", limit: "disk" }, "disk-limit"],
    [
      "a full disk with the guest's numbers",
      raised({ errno: "ENOSPC" }, { limits: [disk] }),
      { _tag: "LimitExceeded", limit: "disk", allowed: 4096, observed: 4096 },
      "disk-limit"
    ],
    [
      "a command that filled the disk and failed",
      { ...nothing, exitCode: 1, limits: [disk] },
      { _tag: "LimitExceeded", limit: "disk", allowed: 4096, observed: 4096 },
      "disk-limit"
    ],
    [
      "a child of Python that filled the disk and failed",
      raised({ type: "CalledProcessError" }, { limits: [disk] }),
      { _tag: "LimitExceeded", limit: "disk" },
      "disk-limit"
    ],
    [
      "an unrelated exception on a full disk",
      raised({ type: "ValueError" }, { limits: [disk] }),
      { _tag: "TaskFailed" },
      "failed"
    ],
    ["a success on a full disk", { ...nothing, limits: [disk] }, { _tag: "Success" }, "completed"],
    [
      "a missing command on a full disk",
      { ...command("not-found", 127), limits: [disk] },
      { _tag: "UnsupportedCommand" },
      "unsupported"
    ],
    [
      "a file that became too large",
      raised({ errno: "EFBIG" }, { limits: [fileSize] }),
      { _tag: "LimitExceeded", limit: "file-size", allowed: 1024, observed: 1024 },
      "file-size-limit"
    ],
    ["EFBIG without a limit", raised({ errno: "EFBIG" }), { _tag: "TaskFailed" }, "failed"],
    [
      "SIGXFSZ at the limit",
      { ...nothing, exitCode: 153, signal: "SIGXFSZ", state: "reset", limits: [fileSize] },
      { _tag: "LimitExceeded", limit: "file-size" },
      "file-size-limit"
    ],
    [
      "SIGXFSZ without a limit",
      { ...nothing, exitCode: 153, signal: "SIGXFSZ", state: "reset" },
      { _tag: "TaskFailed", reason: { _tag: "Signal", signal: "SIGXFSZ" } },
      "failed"
    ],
    ["a full quota", raised({ errno: "EDQUOT" }), { _tag: "LimitExceeded", limit: "disk" }, "disk-limit"],
    [
      "fork refused at the process limit",
      raised({ errno: "EAGAIN", type: "BlockingIOError" }, { limits: [processes] }),
      { _tag: "LimitExceeded", limit: "processes", allowed: 64, observed: 64 },
      "processes-limit"
    ],
    [
      "an unrelated exception after the process limit",
      raised({ type: "ValueError" }, { limits: [processes] }),
      { _tag: "TaskFailed" },
      "failed"
    ],
    [
      "the time limit, after which the code ended with exit 0",
      { ...nothing, limits: [time] },
      { _tag: "LimitExceeded", limit: "time", allowed: 1000, observed: 1003 },
      "time-limit"
    ],
    [
      "the time limit, before the exception that it caused",
      raised({ type: "KeyboardInterrupt" }, { exitCode: 130, limits: [time] }),
      { _tag: "LimitExceeded", limit: "time" },
      "time-limit"
    ],
    [
      "the memory limit",
      { ...nothing, exitCode: 137, signal: "SIGKILL", limits: [memory], state: "reset" },
      { _tag: "LimitExceeded", limit: "memory", allowed: 100, observed: 100 },
      "memory-limit"
    ],
    [
      "a signal",
      { ...nothing, exitCode: 139, signal: "SIGSEGV" },
      { _tag: "TaskFailed", reason: { _tag: "Signal", signal: "SIGSEGV" } },
      "failed"
    ],
    [
      "a forbidden system call",
      { ...nothing, exitCode: 159, signal: "SIGSYS" },
      { _tag: "PermissionDenied", operation: "syscall" },
      "permission"
    ]
  ]

describe("classify", () => {
  for (const [name, evidence, expected, reason] of cases) {
    it(name, () => {
      const outcome = classify(evidence)
      assert.deepStrictEqual({ ...outcome, ...expected }, outcome)
      assert.strictEqual(stopReason(outcome), reason)
    })
  }
})
