/** An exceeded limit is reported as a `LimitExceeded`, not as a crash. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { Language } from "../../src/Execution.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { type Execute, failure, fresh, stdout } from "../support/executions.ts"

const MiB = 1024 * 1024

/** Runs code once first, because the first execution of a clone's interpreter is slower than the others. */
const warm = (exec: Execute) =>
  Effect.forEach(
    [
      ["python", "1"],
      ["javascript", "1"],
      ["bash", ":"]
    ] as const,
    ([language, code]) => exec(language, code)
  )

/** Runs the cases of one language one after another and the languages at the same time: such a case mostly waits. */
const sideBySide = <E, R>(
  cases: ReadonlyArray<readonly [Language, string]>,
  check: (language: Language, code: string) => Effect.Effect<void, E, R>
) =>
  Effect.forEach(
    new Set(cases.map(([language]) => language)),
    (language) =>
      Effect.forEach(
        cases.filter((it) => it[0] === language),
        ([, code]) => check(language, code)
      ),
    { concurrency: "unbounded" }
  )

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("limits", (it) => {
  describe("11: limits are values", () => {
    it.effect(
      "time: SIGINT reaches the whole tree, the output so far is there, and the state is kept when SIGINT ends the code",
      () =>
        Effect.gen(function* () {
          const exec = yield* fresh
          yield* warm(exec)
          const cases: ReadonlyArray<readonly [Language, string]> = [
            ["python", "print('on', flush=True)\nwhile True: pass"],
            ["python", "print('on', flush=True)\nimport subprocess; subprocess.run('sleep 60; echo no', shell=True)"],
            ["python", "print('on', flush=True)\nimport threading; threading.Event().wait()"],
            ["javascript", "console.log('on'); for (;;);"],
            ["javascript", "console.log('on'); await new Promise((r) => setTimeout(r, 60000))"],
            ["javascript", "console.log('on'); require('child_process').spawnSync('sleep', ['60'])"],
            ["typescript", "console.log('on' as string); while (true) await null"],
            ["bash", "echo on; while :; do :; done"],
            ["bash", "echo on; sleep 60; echo no"],
            ["bash", "echo on; sleep 60 | cat; echo no"]
          ]
          // One after another: other busy code could keep an interpreter from reacting in time.
          for (const [language, code] of cases) {
            const error = yield* failure(exec(language, code, { limits: { timeMs: 1000 } }))
            if (error._tag !== "LimitExceeded") return assert.fail(`${error._tag}: ${code}`)
            assert.deepStrictEqual([error.limit, error.allowed, error.stdout], ["time", 1000, "on\n"], code)
            assert.isAtLeast(error.observed ?? 0, 1000, code)
            assert.deepStrictEqual([error.receipt.stopReason, error.receipt.state], ["time-limit", "kept"], code)
            assert.strictEqual(error.receipt.limits.timeMs, 1000)
          }
          assert.strictEqual(
            yield* stdout(exec("bash", "pgrep -c sleep")).pipe(
              Effect.catchTag("TaskFailed", (it) => Effect.succeed(it.stdout))
            ),
            "0\n"
          )
        }).pipe(Effect.scoped)
    )

    it.effect(
      "time: code that ignores SIGINT is killed after the grace, with all its children, and the next execution works",
      () =>
        Effect.gen(function* () {
          const exec = yield* fresh
          const cases: ReadonlyArray<readonly [Language, string]> = [
            [
              "python",
              "import signal, subprocess\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsubprocess.Popen(['sleep', '61'])\nwhile True: pass"
            ],
            [
              "javascript",
              "process.on('SIGINT', () => {}); require('child_process').spawn('sleep', ['61'], { detached: true }); for (;;);"
            ],
            ["bash", "trap '' INT; sleep 61 & while :; do :; done"]
          ]
          yield* sideBySide(cases, (language, code) =>
            Effect.gen(function* () {
              const error = yield* failure(exec(language, code, { limits: { timeMs: 2000 } }))
              if (error._tag !== "LimitExceeded") return assert.fail(`${error._tag}: ${code}`)
              assert.deepStrictEqual([error.limit, error.allowed], ["time", 2000], code)
              assert.isAtLeast(error.observed ?? 0, 2900, code)
              assert.deepStrictEqual([error.receipt.state, error.receipt.signal], ["reset", "SIGKILL"], code)
            })
          )
          const left = yield* exec("bash", "pgrep -fc '^sleep 61' || true")
          assert.strictEqual(left.stdout, "0\n")
        }).pipe(Effect.scoped)
    )

    it.effect(
      "memory: the execution fails with the allowed and the used bytes; the other interpreters and the session live",
      () =>
        Effect.gen(function* () {
          const exec = yield* fresh
          yield* exec("javascript", "var v = 7")
          const cases: ReadonlyArray<readonly [Language, string]> = [
            ["python", "x = []\nwhile True: x.append(bytearray(4 * 1024 * 1024))"],
            [
              "python",
              "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'x = []\\nwhile True: x.append(bytearray(4 * 1024 * 1024))'], check=True)"
            ],
            ["bash", "tail /dev/zero"]
          ]
          for (const [language, code] of cases) {
            const error = yield* failure(exec(language, code, { limits: { memoryMiB: 192 } }))
            if (error._tag !== "LimitExceeded") return assert.fail(`${error._tag}: ${code}`)
            assert.deepStrictEqual([error.limit, error.allowed], ["memory", 192 * MiB], code)
            assert.isAtLeast(error.observed ?? 0, 150 * MiB, code)
            assert.deepStrictEqual(
              [error.receipt.stopReason, error.receipt.limits.memoryBytes],
              ["memory-limit", 192 * MiB],
              code
            )
            assert.isAtLeast(error.receipt.usage.peakMemoryBytes ?? 0, 150 * MiB, code)
          }
          assert.strictEqual(
            yield* stdout(exec("python", "x = bytearray(250 * 1024 * 1024); print(len(x))")),
            `${250 * MiB}\n`
          )
          assert.strictEqual(yield* stdout(exec("javascript", "console.log(v)")), "7\n")
        }).pipe(Effect.scoped)
    )

    it.effect("memory: JavaScript", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const code = "const x = []; for (;;) x.push(Buffer.alloc(4e6, 1))"
        const error = yield* failure(exec("javascript", code, { limits: { memoryMiB: 256 } }))
        if (error._tag !== "LimitExceeded") return assert.fail(error._tag)
        assert.deepStrictEqual([error.limit, error.allowed, error.receipt.state], ["memory", 256 * MiB, "reset"])
        assert.strictEqual(yield* stdout(exec("javascript", "console.log(1)")), "1\n")
      }).pipe(Effect.scoped)
    )

    it.effect("output: each stream keeps head and tail within its limit, and counts every byte", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const cases: ReadonlyArray<readonly [Language, string]> = [
          [
            "python",
            "import sys\nfor out in sys.stdout, sys.stderr: out.write('a' * 100 + 'm' * 1_999_800 + 'z' * 100)\nNone"
          ],
          [
            "javascript",
            "for (const out of [process.stdout, process.stderr]) out.write('a'.repeat(100) + 'm'.repeat(1999800) + 'z'.repeat(100))"
          ],
          [
            "bash",
            "f() { printf 'a%.0s' {1..100}; head -c 1999800 /dev/zero | tr '\\0' m; printf 'z%.0s' {1..100}; }; f; f >&2"
          ]
        ]
        for (const [language, code] of cases) {
          const { bytes, receipt, stderr, stdout } = yield* exec(language, code, { limits: { outputBytes: 200 } })
          assert.deepStrictEqual(receipt.output, { stdoutBytes: 2_000_000, stderrBytes: 2_000_000, truncated: true })
          const kept = "a".repeat(100) + "z".repeat(100)
          assert.deepStrictEqual(
            [Buffer.from(bytes.stdout).toString(), Buffer.from(bytes.stderr).toString()],
            [kept, kept]
          )
          const shown = `${"a".repeat(100)}\n[… 1999800 bytes omitted …]\n${"z".repeat(100)}`
          assert.deepStrictEqual([stdout, stderr], [shown, shown])
        }
        const exact = yield* exec("bash", "printf 1234567890", { limits: { outputBytes: 10 } })
        assert.deepStrictEqual([exact.stdout, exact.receipt.output.truncated], ["1234567890", false])
        const none = yield* exec("bash", "printf 1234567890", { limits: { outputBytes: 0 } })
        assert.deepStrictEqual([none.bytes.stdout.length, none.receipt.output.stdoutBytes], [0, 10])
        const standard = yield* exec("bash", "head -c 1048577 /dev/zero")
        assert.deepStrictEqual([standard.bytes.stdout.length, standard.receipt.output.truncated], [1_048_576, true])
      }).pipe(Effect.scoped)
    )

    it.effect("processes: a failed fork is reported, a fork bomb is contained, and the session lives", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const limits = { processes: 256 }
        const python = yield* failure(
          exec("python", "import os, time\nwhile True:\n    if os.fork() == 0:\n        time.sleep(60); os._exit(0)")
        )
        assert.deepStrictEqual(
          [python._tag, python._tag === "LimitExceeded" && python.limit],
          ["LimitExceeded", "processes"]
        )
        if (python._tag === "LimitExceeded") assert.strictEqual(python.allowed, limits.processes)
        assert.strictEqual(python.receipt.stopReason, "processes-limit")
        assert.strictEqual(yield* stdout(exec("bash", "echo other")), "other\n")
        assert.strictEqual(python.receipt.limits.processes, limits.processes)
      }).pipe(Effect.scoped)
    )

    it.effect("disk: a full disk is a limit, in python and javascript", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const python = yield* failure(exec("python", "with open('/dev/full', 'w') as f: f.write('x')"))
        assert.deepStrictEqual(
          [python._tag, python._tag === "LimitExceeded" && python.limit, python.receipt.stopReason],
          ["LimitExceeded", "disk", "disk-limit"]
        )
        const javascript = yield* failure(exec("javascript", "require('fs').writeFileSync('/dev/full', 'x')"))
        assert.deepStrictEqual(
          [javascript._tag, javascript._tag === "LimitExceeded" && javascript.limit],
          ["LimitExceeded", "disk"]
        )
      }).pipe(Effect.scoped)
    )

    it.effect(
      "the defaults are 30 s, 512 MiB, 1 MiB of each output and 256 processes; limits of an execution hold for it alone",
      () =>
        Effect.gen(function* () {
          const exec = yield* fresh
          const standard = {
            timeMs: 30_000,
            memoryBytes: 512 * MiB,
            outputBytes: MiB,
            output: "truncate",
            processes: 256,
            fileSizeBytes: 8192 * MiB,
            diskBytes: 8192 * MiB
          } as const
          assert.deepStrictEqual((yield* exec("bash", "true")).receipt.limits, standard)
          const own = { timeMs: 1234, memoryMiB: 200, outputBytes: 5 }
          const { receipt } = yield* exec("bash", "true", { limits: own })
          assert.deepStrictEqual(receipt.limits, { ...standard, timeMs: 1234, memoryBytes: 200 * MiB, outputBytes: 5 })
          assert.deepStrictEqual((yield* exec("bash", "true")).receipt.limits, standard)
        }).pipe(Effect.scoped)
    )
  })
})
