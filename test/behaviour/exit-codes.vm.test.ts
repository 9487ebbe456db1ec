/** The exit code is the one that the code ended with. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import type { Language } from "../../src/Execution.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { ended, executing, fresh, session } from "../support/executions.ts"

type Case = readonly [code: string, exitCode: number, stderr?: string]
const codes: ReadonlyArray<readonly [Language, ReadonlyArray<Case>]> = [
  [
    "python",
    [
      ["import sys; sys.exit(3)", 3],
      ["import sys; sys.exit()", 0],
      ["sys.exit(True)", 1],
      ["sys.exit(False)", 0],
      ["sys.exit(None)", 0],
      ["sys.exit(256)", 0],
      ["sys.exit(257)", 1],
      ["sys.exit(-1)", 255],
      ["sys.exit(2 ** 80)", 255],
      ["sys.exit('msg')", 1, "msg\n"],
      ["sys.exit('')", 1, "\n"],
      ["sys.exit([1])", 1, "[1]\n"],
      ["sys.exit(1.5)", 1, "1.5\n"],
      ["exit(4)", 4],
      ["raise SystemExit(5)", 5],
      ["raise SystemExit", 0],
      ["try:\n    sys.exit(6)\nfinally:\n    print('finally')", 6],
      ["try:\n    sys.exit(7)\nexcept SystemExit: pass", 0],
      ["def f(): sys.exit(8)\nf()", 8],
      ["import asyncio\nasync def m(): sys.exit(9)\nasyncio.run(m())", 9],
      ["1 / 0", 1],
      ["raise KeyboardInterrupt", 130],
      ["x = 1", 0]
    ]
  ],
  [
    "javascript",
    [
      ["process.exit(4)", 4],
      ["process.exit()", 0],
      ["process.exit('5')", 5],
      ["process.exit(256)", 0],
      ["process.exit(-1)", 255],
      ["process.exitCode = 6", 6],
      ["process.exitCode = 6; process.exit()", 6],
      ["process.exitCode = 6; process.exit(0)", 0],
      ["1", 0],
      ["throw new Error('x')", 1],
      ["await Promise.reject(1)", 1],
      ["Promise.reject(new Error('unhandled')); 1", 1],
      ["(async () => { throw new Error('trailing') })()", 1],
      ["try { process.exit(7) } finally { console.log('not reached') }", 7],
      ["await new Promise(() => {})", 13],
      ["await null; process.exit(8)", 8],
      ["await new Promise((r) => setTimeout(() => process.exit(9), 10))", 9],
      ["process.exitCode = undefined; 1", 0]
    ]
  ],
  [
    "typescript",
    [
      ["const n: number = 4; process.exit(n)", 4],
      ["throw new TypeError('x') as Error", 1],
      ["const ok: boolean = true", 0]
    ]
  ],
  [
    "bash",
    [
      ["exit 5", 5],
      ["exit", 0],
      ["false; exit", 1],
      ["exit 256", 0],
      ["exit -1", 255],
      ["(exit 3)", 3],
      ["false", 1],
      ["true", 0],
      ["false; true", 0],
      ["f() { return 7; }; f", 7],
      ["f() { exit 8; }; f; echo no", 8],
      ["false | true", 0],
      ["set -o pipefail; (exit 9) | true; s=$?; set +o pipefail; (exit $s)", 9],
      ["set -e; (exit 4); echo no", 4],
      ["set +e; ! true", 1],
      ["[[ 1 == 2 ]]", 1],
      ["(( 0 ))", 1],
      ["let x=0", 1],
      ["if; then", 2],
      ["exit nonsense", 2],
      ["echo ${nope:?missing}", 1],
      ["x=$(exit 6)", 6],
      ["trap 'exit 11' EXIT; exit 3", 11],
      ["grep -q x /dev/null", 1],
      ["sleep 60 & kill $!; wait $!", 143],
      ["bash -c 'kill -9 $$'", 137]
    ]
  ]
]
/** Signals to the interpreter itself: they end it with 128 + n and their name, but SIGINT only interrupts the code. */
const signals: ReadonlyArray<readonly [Language, string, number, string | null]> = [
  ["python", "import os\nos._exit(6)", 6, null],
  ["python", "import os\nos.kill(os.getpid(), 9)", 137, "SIGKILL"],
  ["python", "import os\nos.kill(os.getpid(), 15)", 143, "SIGTERM"],
  ["python", "import ctypes\nctypes.string_at(0)", 139, "SIGSEGV"],
  ["python", "import os, subprocess\nsubprocess.Popen(['sleep', '60'])\nos._exit(7)", 7, null],
  ["javascript", "process.abort()", 134, "SIGABRT"],
  ["javascript", "process.kill(process.pid, 'SIGTERM'); await new Promise((r) => setTimeout(r, 5000))", 143, "SIGTERM"],
  // The interpreter cannot report the end of the execution.
  [
    "javascript",
    "for (let n = 1; n < 50; n++) require('fs').rmSync(`/run/exec-sandbox/javascript-${n}/out`, { force: true })",
    70,
    null
  ],
  ["bash", "kill -TERM $$; sleep 5", 143, "SIGTERM"],
  ["bash", "kill -SEGV $$; sleep 5", 139, "SIGSEGV"],
  ["bash", "exec sh -c 'exit 12'", 12, null],
  ["bash", "kill -KILL $$", 137, "SIGKILL"]
]

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("exit codes", (it) => {
  describe("9: exit codes are true", () => {
    for (const [language, cases] of codes) {
      it.effect(`${language}: ${cases.length} ways to end the code, and the interpreter survives each`, () =>
        Effect.gen(function* () {
          const exec = yield* fresh
          for (const [code, exitCode, stderr] of cases) {
            const { receipt, stderr: written } = yield* ended(exec(language, code))
            assert.deepStrictEqual([receipt.exitCode, receipt.signal, receipt.state], [exitCode, null, "kept"], code)
            assert.strictEqual(receipt.outcome, exitCode === 0 ? "Success" : "TaskFailed", code)
            if (stderr !== undefined) assert.strictEqual(written, stderr, code)
          }
        }).pipe(Effect.scoped)
      )
    }

    it.effect(
      "javascript: `exit` is emitted once when code exits, and `beforeExit` when nothing is left to wait for",
      () =>
        Effect.gen(function* () {
          const it = yield* session()
          const exec = executing(it)
          const bye = "process.on('exit', (code) => console.log('bye', code, process.exitCode))"
          const cases: ReadonlyArray<readonly [string, number, string]> = [
            [`${bye}; 0`, 0, ""],
            ["process.exit(3)", 3, "bye 3 3\n"],
            ["process.exit(3)", 3, ""],
            [`${bye}; setTimeout(() => process.exit(), 5); await new Promise(() => {})`, 0, "bye 0 undefined\n"],
            ["await new Promise((r) => setTimeout(r, 5)); console.log('timers go on')", 0, "timers go on\n"],
            ["for (let i = 4; i < 7; i++) setImmediate(() => process.exit(i)); await new Promise(() => {})", 4, ""],
            ["await new Promise((r) => setImmediate(r)); console.log('immediates too')", 0, "immediates too\n"],
            ["process.on('exit', () => { process.exitCode = 5 }); process.exit(3)", 5, ""],
            ["process.on('exit', () => process.exit(9)); process.exit(0)", 9, ""],
            [
              "process.on('exit', () => { throw new Error('no') }); try { process.exit(0) } catch (e) { console.log(e.message) }",
              0,
              "no\n"
            ],
            ["process.on('exit', () => { throw new Error('no') }); process.exit(0)", 1, ""],
            ["throw (process.once('exit', () => console.log('not for an exception')), 1)", 1, ""],
            ["process.removeAllListeners(); await new Promise(() => {})", 13, ""],
            [
              "process.on('beforeExit', (code) => console.log('idle', code)); await new Promise(() => {})",
              13,
              "idle 0\n"
            ],
            [
              "process.removeAllListeners('beforeExit'); await new Promise((r) => process.once('beforeExit', () => setTimeout(r, 5))); console.log('woken')",
              0,
              "woken\n"
            ],
            [
              "process.on('exit', () => console.log('never')); process.on('beforeExit', () => console.log('never')); 0",
              0,
              ""
            ]
          ]
          for (const [code, exitCode, expected] of cases) {
            const { receipt, stdout } = yield* ended(exec("javascript", code))
            assert.deepStrictEqual([receipt.exitCode, stdout, receipt.state], [exitCode, expected, "kept"], code)
          }
          // The end of the session ends the machine without running any handler.
          const late = yield* Effect.forkChild(Stream.runCollect(it.output), { startImmediately: true })
          yield* it.close
          assert.deepStrictEqual([...(yield* Fiber.join(late))], [])
        }).pipe(Effect.scoped)
    )

    it.effect("a signal gives 128 + n and its name; an exit that bypasses the interpreter keeps its code", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        for (const [language, code, exitCode, signal] of signals) {
          const { receipt } = yield* ended(exec(language, code))
          assert.deepStrictEqual([receipt.exitCode, receipt.signal, receipt.state], [exitCode, signal, "reset"], code)
        }
      }).pipe(Effect.scoped)
    )
  })
})
