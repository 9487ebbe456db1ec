import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Request } from "../src/Execution.ts"
import type { Evidence } from "../src/guest/Evidence.ts"
import { decodeInput } from "../src/internal/decodeInput.ts"
import type { SandboxError } from "../src/SandboxError.ts"
import { classify, type Outcome, stopReason } from "../src/session/Outcome.ts"

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
    ["a good end", nothing, { _tag: "Success" }, "completed"],
    [
      "a good end that met a missing command and the process limit on its way",
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
      "a file that is no program",
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
      "a full disk of which the guest says how full",
      raised({ errno: "ENOSPC" }, { limits: [disk] }),
      { _tag: "LimitExceeded", limit: "disk", allowed: 4096, observed: 4096 },
      "disk-limit"
    ],
    [
      "a command that failed having filled the disk",
      { ...nothing, exitCode: 1, limits: [disk] },
      { _tag: "LimitExceeded", limit: "disk", allowed: 4096, observed: 4096 },
      "disk-limit"
    ],
    [
      "a child of Python that failed having filled the disk",
      raised({ type: "CalledProcessError" }, { limits: [disk] }),
      { _tag: "LimitExceeded", limit: "disk" },
      "disk-limit"
    ],
    [
      "an exception of its own on a full disk",
      raised({ type: "ValueError" }, { limits: [disk] }),
      { _tag: "TaskFailed" },
      "failed"
    ],
    ["a good end on a full disk", { ...nothing, limits: [disk] }, { _tag: "Success" }, "completed"],
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
    ["a file that no limit of ours stopped", raised({ errno: "EFBIG" }), { _tag: "TaskFailed" }, "failed"],
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
      "an exception of its own after it met the process limit",
      raised({ type: "ValueError" }, { limits: [processes] }),
      { _tag: "TaskFailed" },
      "failed"
    ],
    [
      "the time limit, honoured with exit 0",
      { ...nothing, limits: [time] },
      { _tag: "LimitExceeded", limit: "time", allowed: 1000, observed: 1003 },
      "time-limit"
    ],
    [
      "the time limit beats the exception it caused",
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

describe("Execution", () => {
  describe("classify", () => {
    for (const [name, evidence, expected, reason] of cases) {
      it(name, () => {
        const outcome = classify(evidence)
        assert.deepStrictEqual({ ...outcome, ...expected }, outcome)
        assert.strictEqual(stopReason(outcome), reason)
      })
    }
  })

  describe("Request", () => {
    const decode = decodeInput(Request, "request")
    const good = { language: "python", code: "1" }
    const refusals: ReadonlyArray<readonly [string, unknown, string, RegExp]> = [
      ["no object", null, "request", /object/],
      ["empty code", { ...good, code: "" }, "code", /not empty/],
      ["blank code", { ...good, code: " \n" }, "code", /not empty/],
      ["code with NUL", { ...good, code: "a\0b" }, "code", /without NUL/],
      ["17 MiB of code", { ...good, code: "x".repeat(17 * 1024 * 1024) }, "code", /at most 16777216 bytes/],
      [
        "9 Mi characters of two bytes",
        { ...good, code: "é".repeat(9 * 1024 * 1024) },
        "code",
        /at most 16777216 bytes/
      ],
      ["17 MiB of stdin", { ...good, stdin: Buffer.alloc(17 * 1024 * 1024) }, "stdin", /at most 16777216 bytes/],
      ["an unknown language", { ...good, language: "cobol" }, "language", /"python" \| "javascript"/],
      ["a misspelt field", { ...good, cdw: "/" }, "cdw", /no excess property/],
      ["an environment name with =", { ...good, env: { "A=B": "x" } }, "env", /neither '=' nor NUL/],
      ["an empty environment name", { ...good, env: { "": "x" } }, "env", /neither '=' nor NUL/],
      ["an environment value with NUL", { ...good, env: { A: "\0" } }, "env.A", /without NUL/],
      ["too much environment", { ...good, env: { A: "x".repeat(200_000) } }, "env", /at most 131072 bytes/],
      [
        "too much environment once it is escaped",
        { ...good, env: { A: "\x01".repeat(30_000) } },
        "env",
        /at most 131072/
      ],
      ["an environment name with a lone surrogate", { ...good, env: { "\ud800": "x" } }, "env", /^well-formed/],
      ["an environment value with a lone surrogate", { ...good, env: { A: "\udc80" } }, "env.A", /^well-formed/],
      ["an environment that is a list", { ...good, env: ["A=B"] }, "env", /./],
      ["code with a lone surrogate", { ...good, code: "print('\ud800')" }, "code", /^well-formed/],
      ["code that is bytes", { ...good, code: Buffer.from("1") }, "code", /./],
      ["stdin with a lone surrogate", { ...good, stdin: "\udfff" }, "stdin", /^well-formed text, or bytes/],
      ["stdin that is a number", { ...good, stdin: 1 }, "stdin", /./],
      ["an empty cwd", { ...good, cwd: "" }, "cwd", /./],
      ["a cwd with a lone surrogate", { ...good, cwd: "/\udc80" }, "cwd", /^well-formed/],
      ["a cwd with NUL", { ...good, cwd: "/\0" }, "cwd", /without NUL/],
      ["a cwd longer than any path", { ...good, cwd: "/".repeat(4097) }, "cwd", /4096/],
      ["an unknown limit", { ...good, limits: { diskGiB: 1 } }, "limits.diskGiB", /no excess property/],
      ["an endless limit", { ...good, limits: { timeMs: Infinity } }, "limits.timeMs", /./],
      ["a limit that is a text", { ...good, limits: { memoryMiB: "512" } }, "limits.memoryMiB", /./],
      [
        "another way to handle output",
        { ...good, limits: { output: "drop" } },
        "limits.output",
        /"truncate" \| "fail"/
      ],
      ["no processes", { ...good, limits: { processes: 0 } }, "limits.processes", /./],
      ["negative output", { ...good, limits: { outputBytes: -1 } }, "limits.outputBytes", /./],
      ["too little memory", { ...good, limits: { memoryMiB: 127 } }, "limits.memoryMiB", /from 128 to 65536/],
      ["no time", { ...good, limits: { timeMs: 0 } }, "limits.timeMs", /from 1 to/],
      ["half a millisecond", { ...good, limits: { timeMs: 0.5 } }, "limits.timeMs", /integer/]
    ]
    for (const [name, input, field, expected] of refusals) {
      it.effect(`refuses ${name}`, () =>
        Effect.gen(function* () {
          const error: SandboxError = yield* Effect.flip(decode(input))
          assert.strictEqual(error.reason._tag, "InvalidInput")
          assert.strictEqual(error.retry, "never")
          if (error.reason._tag !== "InvalidInput") return
          assert.strictEqual(error.reason.field, field)
          assert.match(error.reason.expected, expected)
          assert.isBelow(error.message.length, 400)
        })
      )
    }
    it.effect("takes any names the OS takes, and 16 MiB", () =>
      Effect.gen(function* () {
        const code = "#".repeat(16 * 1024 * 1024)
        const env = { "a.b-c d": "1", ü: "" }
        assert.deepStrictEqual(yield* decode({ language: "bash", code, env }), { language: "bash", code, env })
      })
    )
  })
})
