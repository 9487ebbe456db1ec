import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type { Failure, Request, Result } from "../src/Execution.ts"
import { Receipt } from "../src/Receipt.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { qemus } from "./support/processes.ts"

const run = (request: Request) => Sandbox.use((sandbox) => sandbox.run(request))
const failing = (request: Request): Effect.Effect<Failure, Result, Sandbox> => Effect.flip(run(request))
const session = Sandbox.use((sandbox) => sandbox.session())

/** Waits until a state holds; the bound is for a state that never comes. */
const until = (holds: () => boolean) =>
  Effect.sync(holds).pipe(
    Effect.repeat({ until: (it) => it, schedule: Schedule.spaced("20 millis") }),
    Effect.timeout("20 seconds")
  )

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("Sandbox", (it) => {
  describe("run", () => {
    it.effect("python: output, value and a correct receipt", () =>
      Effect.gen(function* () {
        const before = Date.now()
        const result = yield* run({
          language: "python",
          code: "import sys\nprint('out')\nprint('err', file=sys.stderr)\n[1, 2 + 3]"
        })
        assert.strictEqual(result.stdout, "out\n")
        assert.strictEqual(result.stderr, "err\n")
        assert.deepStrictEqual(result.result, { repr: "[1, 5]", json: [1, 5] })
        const { receipt } = result
        const read: unknown = JSON.parse(JSON.stringify(receipt))
        assert.deepStrictEqual(yield* Schema.decodeUnknownEffect(Receipt)(read), receipt)
        assert.strictEqual(receipt.outcome, "Success")
        assert.strictEqual(receipt.stopReason, "completed")
        assert.strictEqual(receipt.exitCode, 0)
        assert.strictEqual(receipt.signal, null)
        assert.strictEqual(receipt.state, "kept")
        assert.strictEqual(receipt.sequence, 1)
        assert.strictEqual(receipt.language, "python")
        assert.deepStrictEqual(receipt.output, { stdoutBytes: 4, stderrBytes: 4, truncated: false })
        assert.strictEqual(receipt.limits.timeMs, 30_000)
        assert.include(["restore", "boot"], receipt.startPath.kind)
        assert.isAtLeast(Date.parse(receipt.startedAt), before)
        assert.isAbove(receipt.usage.cpuMs ?? 0, 0)
        assert.isAbove(receipt.usage.peakMemoryBytes ?? 0, 1024 * 1024)
        assert.isAbove(receipt.timing.acquireMs ?? 0, 0)
        if (receipt.isolation.accelerator === "tcg") assert.strictEqual(receipt.isolation.boundary, "emulated")
      })
    )

    it.effect("javascript, typescript and bash", () =>
      Effect.gen(function* () {
        const javascript = yield* run({
          language: "javascript",
          code: "const x = await Promise.resolve(20); console.log(x + 1); ({ x })"
        })
        assert.strictEqual(javascript.stdout, "21\n")
        assert.deepStrictEqual(javascript.result?.json, { x: 20 })
        const typescript = yield* run({
          language: "typescript",
          code: "enum Color { Red = 7 }\ninterface P { a: number }\nconst p: P = { a: Color.Red }\nconsole.log(p.a)"
        })
        assert.strictEqual(typescript.stdout, "7\n")
        const bash = yield* run({ language: "bash", code: 'a=(x y); echo "${a[1]} $HOME"; echo e >&2' })
        assert.strictEqual(bash.stdout, "y /home/user\n")
        assert.strictEqual(bash.stderr, "e\n")
      })
    )

    it.effect("returns exact bytes of all values", () =>
      Effect.gen(function* () {
        const code = "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 1000)"
        const result = yield* run({ language: "python", code })
        const expected = Buffer.concat(
          Array.from({ length: 1000 }, () => Buffer.from(Array.from({ length: 256 }, (_, i) => i)))
        )
        assert.isTrue(expected.equals(result.bytes.stdout))
      })
    )

    it.effect("keeps head and tail of a long output and counts all its bytes", () =>
      Effect.gen(function* () {
        const result = yield* run({
          language: "python",
          code: "import sys\nsys.stdout.write('a' * 3_000_000 + 'z')",
          limits: { outputBytes: 1000 }
        })
        assert.strictEqual(result.receipt.output.stdoutBytes, 3_000_001)
        assert.isTrue(result.receipt.output.truncated)
        assert.strictEqual(result.bytes.stdout.length, 1000)
        assert.isTrue(result.stdout.endsWith("az"))
        assert.include(result.stdout, "[… 2999001 bytes omitted …]")
      })
    )

    it.effect("passes stdin, env and cwd", () =>
      Effect.gen(function* () {
        const result = yield* run({
          language: "bash",
          code: 'read -r line; echo "$line $GREETING $PWD"',
          stdin: "hello\n",
          env: { GREETING: "it's" },
          cwd: "/tmp"
        })
        assert.strictEqual(result.stdout, "hello it's /tmp\n")
      })
    )

    it.effect("streams output while the code runs", () =>
      Effect.gen(function* () {
        const sandbox = yield* Sandbox
        const events = yield* sandbox
          .stream({ language: "python", code: "print('first', flush=True)\ninput()\n", limits: { timeMs: 30_000 } })
          .pipe(Stream.take(1), Stream.runCollect)
        assert.deepStrictEqual(
          events.map((event) => (event._tag === "Done" ? event._tag : Buffer.from(event.bytes).toString())),
          ["first\n"]
        )
      })
    )

    it.effect("runs several at once", () =>
      Effect.gen(function* () {
        const results = yield* Effect.forEach(
          [1, 2, 3, 4],
          (n) => run({ language: "python", code: `print(${n} * 10)` }),
          { concurrency: "unbounded" }
        )
        assert.deepStrictEqual(
          results.map((result) => result.stdout),
          ["10\n", "20\n", "30\n", "40\n"]
        )
        assert.strictEqual(new Set(results.map((result) => result.receipt.id)).size, 4)
      })
    )
  })

  describe("the five channels", () => {
    it.effect("PermissionDenied: python, javascript, bash", () =>
      Effect.gen(function* () {
        const python = yield* failing({ language: "python", code: "print('before')\nopen('/etc/shadow')" })
        assert.strictEqual(python._tag, "PermissionDenied")
        if (python._tag !== "PermissionDenied") return
        assert.deepStrictEqual([python.operation, python.target, python.rule], ["file", "/etc/shadow", "EACCES"])
        assert.strictEqual(python.stdout, "before\n")
        assert.include(python.stderr, "PermissionError")
        assert.strictEqual(python.receipt.stopReason, "permission")
        assert.strictEqual(python.receipt.exitCode, 1)
        const javascript = yield* failing({
          language: "javascript",
          code: "require('node:fs').writeFileSync('/usr/x', '')"
        })
        assert.strictEqual(javascript._tag, "PermissionDenied")
        if (javascript._tag === "PermissionDenied") assert.strictEqual(javascript.target, "/usr/x")
        const bash = yield* failing({ language: "bash", code: "echo ls > /tmp/x; /tmp/x" })
        assert.strictEqual(bash._tag, "PermissionDenied")
        if (bash._tag !== "PermissionDenied") return
        assert.deepStrictEqual([bash.operation, bash.target, bash.receipt.exitCode], ["execute", "/tmp/x", 126])
      })
    )

    it.effect("UnsupportedCommand: a missing command, a missing module and a file that is not a program", () =>
      Effect.gen(function* () {
        const bash = yield* failing({ language: "bash", code: "no-such-command --flag" })
        assert.strictEqual(bash._tag, "UnsupportedCommand")
        if (bash._tag !== "UnsupportedCommand") return
        assert.deepStrictEqual([bash.kind, bash.name, bash.receipt.exitCode], ["command", "no-such-command", 127])
        const python = yield* failing({ language: "python", code: "import no_such_module.sub" })
        assert.strictEqual(python._tag, "UnsupportedCommand")
        if (python._tag === "UnsupportedCommand")
          assert.deepStrictEqual([python.kind, python.name], ["module", "no_such_module"])
        const javascript = yield* failing({ language: "javascript", code: "await import('no-such-package/x')" })
        assert.strictEqual(javascript._tag, "UnsupportedCommand")
        if (javascript._tag === "UnsupportedCommand") assert.strictEqual(javascript.name, "no-such-package")
        const spawned = yield* failing({
          language: "python",
          code: "import subprocess\nsubprocess.run(['nothing-here'])"
        })
        assert.strictEqual(spawned._tag, "UnsupportedCommand")
        if (spawned._tag === "UnsupportedCommand")
          assert.deepStrictEqual([spawned.kind, spawned.name], ["command", "nothing-here"])
        const garbage = yield* failing({
          language: "bash",
          code: "printf '\\x7fELF garbage' > /tmp/p; chmod +x /tmp/p; /tmp/p"
        })
        assert.strictEqual(garbage._tag, "UnsupportedCommand")
        if (garbage._tag === "UnsupportedCommand") assert.strictEqual(garbage.kind, "executable")
      })
    )

    it.effect("LimitExceeded: memory, and the session lives", () =>
      Effect.gen(function* () {
        const it = yield* session
        const hungry = ["x = bytearray(900 * 1024 * 1024)", "x = []\nwhile True: x.append(bytearray(8 * 1024 * 1024))"]
        for (const code of hungry) {
          const error = yield* Effect.flip(it.exec({ language: "python", code }))
          assert.strictEqual(error._tag, "LimitExceeded")
          if (error._tag !== "LimitExceeded") return
          assert.deepStrictEqual([error.limit, error.allowed], ["memory", 512 * 1024 * 1024])
          assert.isNumber(error.observed)
          // The limit was that of the execution: the machine itself would have run out of memory earlier.
          if (error.receipt.state === "reset") assert.isAtLeast(error.observed ?? 0, 500 * 1024 * 1024)
        }
        assert.strictEqual((yield* it.exec({ language: "python", code: "print(2)" })).stdout, "2\n")
      }).pipe(Effect.scoped)
    )

    it.effect("TaskFailed: exit code, exception, signal", () =>
      Effect.gen(function* () {
        const exit = yield* failing({ language: "bash", code: "echo x | grep y" })
        assert.strictEqual(exit._tag, "TaskFailed")
        if (exit._tag === "TaskFailed") assert.deepStrictEqual(exit.reason, { _tag: "ExitCode", exitCode: 1 })
        const typed = yield* failing({ language: "bash", code: "exit 126" })
        assert.strictEqual(typed._tag, "TaskFailed")
        const raised = yield* failing({ language: "python", code: "def f():\n    raise ValueError('no')\nf()" })
        assert.strictEqual(raised._tag, "TaskFailed")
        if (raised._tag !== "TaskFailed" || raised.reason._tag !== "Exception") return assert.fail("no exception")
        assert.deepStrictEqual([raised.reason.type, raised.reason.message], ["ValueError", "no"])
        assert.include(raised.reason.traceback, "raise ValueError('no')")
        assert.notInclude(raised.reason.traceback, "/usr/lib/exec-sandbox")
        const killed = yield* failing({ language: "python", code: "import os\nos.kill(os.getpid(), 11)" })
        assert.strictEqual(killed._tag, "TaskFailed")
        if (killed._tag === "TaskFailed") assert.deepStrictEqual(killed.reason, { _tag: "Signal", signal: "SIGSEGV" })
      })
    )

    it.effect("SandboxError: bad input starts nothing", () =>
      Effect.gen(function* () {
        const error = yield* failing({ language: "python", code: "" })
        assert.strictEqual(error._tag, "SandboxError")
        if (error._tag === "SandboxError") assert.strictEqual(error.reason._tag, "InvalidInput")
      })
    )

    it.effect("SandboxError: a session refuses bad input and stays usable; a closed one refuses everything", () =>
      Effect.gen(function* () {
        const scope = yield* Scope.make()
        const it = yield* Scope.provide(session, scope)
        const bad = yield* Effect.flip(it.exec({ language: "bash", code: "a\0b" }))
        assert.match(bad.message, /without NUL/)
        const greedy = yield* Effect.flip(it.exec({ language: "bash", code: "true", limits: { memoryMiB: 9999 } }))
        assert.match(greedy.message, /limits.memoryMiB: got 9999; expected at most the session's 512/)
        assert.strictEqual((yield* it.exec({ language: "bash", code: "echo ok" })).stdout, "ok\n")
        yield* Scope.close(scope, Exit.void)
        const closed = yield* Effect.flip(it.exec({ language: "bash", code: "echo ok" }))
        assert.strictEqual(closed._tag === "SandboxError" && closed.reason._tag, "SessionClosed")
      })
    )
  })

  describe("session", () => {
    it.effect("keeps the state of each language", () =>
      Effect.gen(function* () {
        const it = yield* session
        yield* it.exec({ language: "python", code: "x = 41\ndef f(): return x + 1" })
        yield* it.exec({ language: "javascript", code: "let y = 1; const z = 2" })
        yield* it.exec({ language: "bash", code: "cd /tmp; export V=v; g() { echo g; }" })
        assert.strictEqual((yield* it.exec({ language: "python", code: "print(f())" })).stdout, "42\n")
        assert.strictEqual(
          (yield* it.exec({ language: "typescript", code: "let y: number = 5; y + z" })).result?.repr,
          "7"
        )
        const bash = yield* it.exec({ language: "bash", code: "echo $PWD $V; g" })
        assert.strictEqual(bash.stdout, "/tmp v\ng\n")
        assert.strictEqual(bash.receipt.sequence, 6)
        assert.strictEqual(bash.receipt.session, it.id)
      }).pipe(Effect.scoped)
    )

    it.effect("runs one language's executions one after another and different languages side by side", () =>
      Effect.gen(function* () {
        const it = yield* session
        const slow = yield* Effect.forkChild(
          it.exec({ language: "python", code: "import time\ntime.sleep(1.5)\nprint('slow')" }),
          { startImmediately: true }
        )
        const next = yield* Effect.forkChild(it.exec({ language: "python", code: "print('next')" }), {
          startImmediately: true
        })
        assert.strictEqual((yield* it.exec({ language: "bash", code: "echo quick" })).stdout, "quick\n")
        assert.isUndefined(slow.pollUnsafe())
        assert.strictEqual((yield* Fiber.join(slow)).stdout, "slow\n")
        const result = yield* Fiber.join(next)
        assert.strictEqual(result.stdout, "next\n")
        assert.isAbove(result.receipt.timing.queueMs ?? 0, 500)
      }).pipe(Effect.scoped)
    )

    it.effect("an interrupted execution ends in the guest, and the session is usable with its state", () =>
      Effect.gen(function* () {
        const it = yield* session
        yield* it.exec({ language: "python", code: "x = 7" })
        const sandbox = yield* Effect.forkChild(
          it
            .stream({ language: "python", code: "print('on', flush=True)\nwhile True: pass" })
            .pipe(Stream.runForEach(() => Effect.interrupt))
        )
        yield* Fiber.await(sandbox)
        const after = yield* it.exec({ language: "python", code: "print(x)" })
        assert.strictEqual(after.stdout, "7\n")
      }).pipe(Effect.scoped)
    )
  })

  describe("lifetime", () => {
    it.effect("leaves no QEMU when a run is interrupted at any time", () =>
      Effect.gen(function* () {
        const before = new Set(qemus())
        for (const after of [0, 5, 40, 80, 120, 160, 220, 300, 500]) {
          yield* run({ language: "python", code: "import time\ntime.sleep(60)" }).pipe(
            Effect.timeoutOrElse({ duration: after, orElse: () => Effect.void }),
            Effect.exit
          )
          assert.deepStrictEqual(
            qemus().filter((pid) => !before.has(pid)),
            [],
            `after ${after} ms`
          )
        }
      })
    )

    it.effect("a QEMU killed at any moment is a typed error that says whether a retry is safe", () =>
      Effect.gen(function* () {
        const before = new Set(qemus())
        const mine = () => qemus().filter((pid) => !before.has(pid))
        for (const after of [0, 20, 40, 60, 80, 100, 130, 160, 190, 220, 260, 300, 400]) {
          const running = yield* Effect.forkChild(
            Effect.flip(run({ language: "python", code: "import time\ntime.sleep(60)" })),
            { startImmediately: true }
          )
          yield* until(() => mine().length > 0)
          yield* Effect.sleep(after)
          for (const pid of mine()) process.kill(pid, "SIGKILL")
          const error = yield* Fiber.join(running).pipe(Effect.timeout("10 seconds"))
          assert.strictEqual(error._tag, "SandboxError", `${after} ms`)
          if (error._tag !== "SandboxError") return
          assert.include(["NotStarted", "BootFailed", "OutcomeUnknown"], error.reason._tag, `${after} ms`)
          assert.strictEqual(error.retry, error.reason._tag === "OutcomeUnknown" ? "unsafe" : "safe")
          assert.deepStrictEqual(mine(), [])
        }
        // None of them counted as a damaged template.
        const next = yield* run({ language: "bash", code: "true" })
        assert.strictEqual(next.receipt.startPath.kind, "restore")
      })
    )

    it.effect(
      "after a killed QEMU, the running execution fails with OutcomeUnknown and later ones with SessionClosed",
      () =>
        Effect.gen(function* () {
          const before = new Set(qemus())
          const it = yield* session
          yield* it.exec({ language: "python", code: "1" })
          const pid = qemus().find((it) => !before.has(it))
          const pending = yield* Effect.forkChild(
            Effect.flip(it.exec({ language: "python", code: "import time\ntime.sleep(60)" })),
            { startImmediately: true }
          )
          const other = yield* Effect.forkChild(
            Effect.flip(
              it
                .stream({ language: "bash", code: "echo on; sleep 60" })
                .pipe(Stream.runForEach(() => Effect.sync(() => process.kill(pid as number, "SIGKILL"))))
            ),
            { startImmediately: true }
          )
          for (const error of [yield* Fiber.join(pending), yield* Fiber.join(other)]) {
            assert.strictEqual(error._tag, "SandboxError")
            if (error._tag !== "SandboxError") return
            assert.strictEqual(error.reason._tag, "OutcomeUnknown")
            assert.strictEqual(error.retry, "unsafe")
            if (error.reason._tag === "OutcomeUnknown") {
              assert.strictEqual(error.reason.receipt.state, "closed")
              assert.strictEqual(error.reason.receipt.exitCode, null)
              assert.strictEqual(error.reason.receipt.usage.cpuMs, null)
            }
          }
          const closed = yield* Effect.flip(it.exec({ language: "python", code: "1" }))
          assert.strictEqual(closed._tag === "SandboxError" && closed.reason._tag, "SessionClosed")
          yield* until(() => !qemus().includes(pid as number))
        }).pipe(Effect.scoped)
    )
  })

  describe("hostile code", () => {
    it.effect("a fork bomb ends within the limits, and the session lives", () =>
      Effect.gen(function* () {
        const it = yield* session
        const error = yield* Effect.flip(
          it.exec({ language: "bash", code: "f() { f | f & }; f; sleep 100", limits: { timeMs: 3000 } })
        )
        assert.include(["LimitExceeded", "TaskFailed"], error._tag)
        assert.strictEqual((yield* it.exec({ language: "python", code: "print(1)" })).stdout, "1\n")
      }).pipe(Effect.scoped)
    )

    it.effect("code that closes every descriptor still ends", () =>
      Effect.gen(function* () {
        const it = yield* session
        yield* Effect.exit(it.exec({ language: "python", code: "import os\nos.closerange(3, 4096)\nprint('x')" }))
        assert.strictEqual((yield* it.exec({ language: "python", code: "print(1)" })).stdout, "1\n")
        yield* Effect.exit(it.exec({ language: "bash", code: "exec 3>&- 4>&- 5<&- >/dev/null; set -e; false" }))
        assert.strictEqual((yield* it.exec({ language: "bash", code: "echo 1" })).stdout, "1\n")
        yield* Effect.exit(it.exec({ language: "javascript", code: "process.exit(4)" }))
        assert.strictEqual((yield* it.exec({ language: "javascript", code: "console.log(1)" })).stdout, "1\n")
      }).pipe(Effect.scoped)
    )
  })
})
