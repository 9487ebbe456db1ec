/**
 * Processes of real guests, from the command to the terminal. They stay in one file because they share the helpers below and one
 * warm layer, so that a test costs a clone.
 */
import { assert, describe, layer } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { createHash } from "node:crypto"
import type { Command, Process, SpawnOptions } from "../src/Process.ts"
import { Receipt } from "../src/Receipt.ts"
import { Sandbox } from "../src/Sandbox.ts"

const session = Sandbox.use((sandbox) => sandbox.session())

const bytesOf = (stream: Process["stdout"]) => Effect.map(Stream.runCollect(stream), (chunks) => Buffer.concat(chunks))
const textOf = (stream: Process["stdout"]) => Effect.map(bytesOf(stream), (bytes) => bytes.toString())
const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex")

/** Runs a process that writes little, and returns its output and its exit. */
const ended = (command: Command, options?: SpawnOptions, stdin: Stream.Stream<Uint8Array> = Stream.empty) =>
  Effect.gen(function* () {
    const it = yield* (yield* session).spawn(command, options)
    const [stdout, stderr] = yield* Effect.all(
      [textOf(it.stdout), textOf(it.stderr), options?.pty === undefined ? Stream.run(stdin, it.stdin) : Effect.void],
      { concurrency: "unbounded" }
    )
    return { stdout, stderr, exit: yield* Effect.result(it.exit), pid: it.pid }
  }).pipe(Effect.scoped)

/** Runs `one` `count` times at once. */
const many = <A, E>(count: number, one: (n: number) => Effect.Effect<A, E>) =>
  Effect.forEach(
    Array.from({ length: count }, (_, n) => n),
    one,
    { concurrency: "unbounded" }
  )

/** The exit of a process, which must have one. */
const exitOf = (it: Process) => Effect.map(Effect.orDie(it.exit), ({ exitCode, signal }) => [exitCode, signal])

/** Reads the output of a terminal: `until` waits for a text after the one that it found last. */
const watch = (from: Process["stdout"]) =>
  Effect.gen(function* () {
    let all = ""
    let seen = 0
    const waiting = new Set<() => void>()
    yield* from.pipe(
      Stream.decodeText(),
      Stream.runForEach((text) =>
        Effect.sync(() => {
          all += text
          for (const look of waiting) look()
        })
      ),
      Effect.forkScoped
    )
    const until = (wanted: string | RegExp) =>
      Effect.gen(function* () {
        const found = yield* Deferred.make<string>()
        const look = (): void => {
          const at = typeof wanted === "string" ? all.indexOf(wanted, seen) : all.slice(seen).search(wanted) + seen
          if (at < seen) return
          const match = typeof wanted === "string" ? wanted : (wanted.exec(all.slice(seen))?.[0] ?? "")
          seen = at + match.length
          waiting.delete(look)
          Deferred.doneUnsafe(found, Effect.succeed(match))
        }
        waiting.add(look)
        look()
        return yield* Deferred.await(found)
      }).pipe(
        Effect.timeoutOrElse({
          duration: "20 seconds",
          orElse: () => Effect.die(new Error(`no ${wanted} in ${JSON.stringify(all.slice(seen))}`))
        })
      )
    return { until, all: () => all }
  })

/** How many processes in the guest have this text in their command line. */
const living = (it: { run: (command: Command) => Effect.Effect<{ stdout: string }, unknown> }, text: string) =>
  Effect.map(it.run(["pgrep", "-c", "-f", `[${text[0]}]${text.slice(1)}`]), ({ stdout }) => Number(stdout)).pipe(
    Effect.orElseSucceed(() => 0)
  )

const pty = { cols: 80, rows: 24 }

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("Process", (it) => {
  describe("the command", () => {
    it.effect("an array reaches the program byte for byte, without a shell", () =>
      Effect.gen(function* () {
        const odd = ["$HOME", "`id`", "*", "a b", "", "'", '"', "\\", "a\nb", "\x01\x7f", "-n", "ä€𝄞", "; exit 9", "&&"]
        const { exit, stderr, stdout } = yield* ended(["printf", "%s\\0", ...odd])
        assert.deepStrictEqual([stdout, stderr], [odd.map((word) => `${word}\0`).join(""), ""])
        assert.isTrue(exit._tag === "Success" && exit.success.exitCode === 0)
      })
    )

    it.effect("a string is a script for bash", () =>
      Effect.gen(function* () {
        const { stdout, stderr } = yield* ended('a=(x "y z"); echo "${a[1]} $HOME $PWD" | cat; echo e >&2')
        assert.deepStrictEqual([stdout, stderr], ["y z /home/user /home/user\n", "e\n"])
      })
    )

    it.effect("a program is found in the PATH of its own environment", () =>
      Effect.gen(function* () {
        const it = yield* session
        yield* it.run(
          "mkdir -p /tmp/a /tmp/b /tmp/c; echo no > /tmp/a/tool; mkdir /tmp/b/tool;" +
            "printf '#!/bin/sh\\necho mine $1\\n' > /tmp/c/tool; chmod +x /tmp/c/tool"
        )
        const env = { PATH: "/tmp/none:/tmp/a:/tmp/b:/tmp/c:/usr/bin:/bin" }
        assert.strictEqual((yield* it.run(["tool", "x"], { env })).stdout, "mine x\n")
        assert.strictEqual((yield* it.run(["./tool"], { cwd: "/tmp/c" })).stdout, "mine\n")
        const missing = yield* Effect.flip(it.run(["tool"]))
        assert.strictEqual(missing._tag, "UnsupportedCommand")
        const denied = yield* Effect.flip(it.run(["tool"], { env: { PATH: "/tmp/a:/tmp/none" } }))
        assert.deepStrictEqual(denied._tag === "PermissionDenied" && [denied.operation, denied.target], [
          "execute",
          "/tmp/a/tool"
        ])
      }).pipe(Effect.scoped)
    )

    it.effect("env and cwd", () =>
      Effect.gen(function* () {
        const it = yield* Sandbox.use((sandbox) => sandbox.session({ env: { A: "session", B: "session" } }))
        const env = { B: "it's\nmine", "odd.name": "x" }
        const result = yield* it.run(["env", "-0"], { env, cwd: "/usr/lib" })
        const lines = result.stdout.split("\0")
        assert.includeMembers(lines, ["A=session", "B=it's\nmine", "odd.name=x", "HOME=/home/user", "USER=user"])
        assert.isFalse(lines.some((line) => line.startsWith("TERM=")))
        assert.strictEqual((yield* it.run(["pwd"], { cwd: "/usr/lib" })).stdout, "/usr/lib\n")
      }).pipe(Effect.scoped)
    )

    it.effect("user and root", () =>
      Effect.gen(function* () {
        const it = yield* session
        const status = ["grep", "-E", "^(Uid|NoNewPrivs)", "/proc/self/status"]
        const user = yield* it.run(status)
        assert.strictEqual(user.stdout, "Uid:\t1000\t1000\t1000\t1000\nNoNewPrivs:\t1\n")
        const root = yield* it.run(status, { user: "root" })
        assert.strictEqual(root.stdout, "Uid:\t0\t0\t0\t0\nNoNewPrivs:\t0\n")
        const home = yield* it.run("echo $HOME $USER $PWD; touch /usr/bin/made", {
          user: "root"
        })
        assert.strictEqual(home.stdout, "/root root /root\n")
        const denied = yield* Effect.flip(it.run(["touch", "/usr/bin/mine"]))
        assert.strictEqual(denied._tag, "TaskFailed")
      }).pipe(Effect.scoped)
    )
  })

  describe("a program that cannot be started", () => {
    it.effect("fails the exit with UnsupportedCommand or PermissionDenied, with the path", () =>
      Effect.gen(function* () {
        const it = yield* session
        yield* it.run(
          "cd /tmp; echo echo shell > plain; printf '#!/no/such/thing\\n' > script; printf '\\177ELF junk' > elf;" +
            "printf '#!/bin/sh\\n' > locked; printf 'echo met a shell' > text; chmod +x plain script elf text; mkdir -m 700 dir"
        )
        const failure = (argv: ReadonlyArray<string>) =>
          Effect.gen(function* () {
            const process = yield* it.spawn(argv)
            assert.isAbove(process.pid, 1)
            assert.strictEqual(yield* textOf(process.stdout), "")
            const error = yield* Effect.flip(process.exit)
            const of = error._tag === "SandboxError" ? [] : [error.receipt.exitCode, error.receipt.outcome]
            if (error._tag === "UnsupportedCommand") return [error.kind, error.name, ...of]
            return error._tag === "PermissionDenied" ? [error.operation, error.target, ...of] : [error._tag]
          })
        const unsupported = "UnsupportedCommand"
        assert.deepStrictEqual(yield* failure(["no-such-program"]), ["command", "no-such-program", 127, unsupported])
        assert.deepStrictEqual(yield* failure(["/no/such"]), ["command", "/no/such", 127, unsupported])
        assert.deepStrictEqual(yield* failure(["/etc/passwd/x"]), ["command", "/etc/passwd/x", 127, unsupported])
        assert.deepStrictEqual(yield* failure(["/tmp/script"]), ["executable", "/tmp/script", 127, unsupported])
        assert.deepStrictEqual(yield* failure(["/tmp/elf"]), ["executable", "/tmp/elf", 126, unsupported])
        assert.deepStrictEqual(yield* failure(["/tmp/text"]), ["executable", "/tmp/text", 126, unsupported])
        assert.deepStrictEqual(yield* failure(["/tmp"]), ["executable", "/tmp", 126, unsupported])
        assert.deepStrictEqual(yield* failure(["/tmp/locked"]), ["execute", "/tmp/locked", 126, "PermissionDenied"])
        assert.deepStrictEqual(yield* failure(["/root/x"]), ["execute", "/root/x", 126, "PermissionDenied"])
        assert.strictEqual((yield* it.run(["true"])).receipt.exitCode, 0)
      }).pipe(Effect.scoped)
    )

    it.effect("a missing cwd is InvalidInput, one without access PermissionDenied", () =>
      Effect.gen(function* () {
        const it = yield* session
        for (const cwd of ["/no/such", "/etc/passwd"]) {
          const process = yield* it.spawn(["true"], { cwd })
          const error = yield* Effect.flip(process.exit)
          assert.strictEqual(error._tag === "SandboxError" && error.reason._tag, "InvalidInput")
          assert.include(error.message, cwd)
        }
        const closed = yield* Effect.flip(it.run(["true"], { cwd: "/root" }))
        assert.deepStrictEqual(closed._tag === "PermissionDenied" && [closed.operation, closed.target, closed.rule], [
          "file",
          "/root",
          "EACCES"
        ])
        assert.strictEqual((yield* it.run(["true"], { cwd: "/root", user: "root" })).receipt.exitCode, 0)
      }).pipe(Effect.scoped)
    )

    it.effect("is NotStarted when the guest's kernel can start no more processes, and the session lives", () =>
      Effect.gen(function* () {
        const it = yield* session
        // Root in the guest may do this to everything there, the agent included.
        yield* it.run("echo 20 > /proc/sys/kernel/threads-max", { user: "root" })
        const error = yield* Effect.flip(it.run(["true"]))
        assert.strictEqual(error._tag === "SandboxError" ? error.reason._tag : error._tag, "NotStarted")
        assert.match(error.message, /resource temporarily unavailable/)
        assert.strictEqual((yield* it.exec({ language: "python", code: "print(1)" })).stdout, "1\n")
      }).pipe(Effect.scoped)
    )

    it.effect("bad input starts nothing", () =>
      Effect.gen(function* () {
        const it = yield* session
        const bad: ReadonlyArray<readonly [unknown, unknown]> = [
          [[], {}],
          ["", {}],
          [[""], {}],
          [["a\0"], {}],
          ["\ud800", {}],
          [["x".repeat(100_000)], {}],
          [["true"], { cwd: "tmp" }],
          [["true"], { cwd: "/a\0" }],
          [["true"], { cwd: "/\udc80" }],
          [["true"], { env: { "A=": "x" } }],
          [["true"], { env: { A: "\ud800" } }],
          [["true"], { user: "nobody" }],
          [["true"], { pty: { cols: 0, rows: 24 } }],
          [["true"], { pty: { cols: 80, rows: 10_001 } }],
          [["true"], { pty: { cols: 80.5, rows: 1 } }],
          [["true"], { pty: { cols: Number.NaN, rows: 1 } }],
          [["true"], { pty: { cols: 80 } }],
          [["true"], { limits: { memoryMiB: 1 << 15 } }],
          [["true"], { shell: true }]
        ]
        for (const [command, options] of bad) {
          const error = yield* Effect.flip(it.spawn(command as Command, options as SpawnOptions))
          assert.strictEqual(error.reason._tag, "InvalidInput", JSON.stringify([command, options]).slice(0, 80))
        }
        const process = yield* it.spawn(["cat"])
        for (const wrong of [
          ...["SIGNOPE", "sigterm", "", 9, 0, -1, null].map((it) => process.signal(it as "SIGHUP")),
          ...[0, -1, 1.5, 10_001, Number.NaN].map((cols) => process.resize({ cols, rows: 1 }))
        ]) {
          assert.strictEqual((yield* Effect.flip(wrong)).reason._tag, "InvalidInput")
        }
        // Only the process above has run so far.
        assert.strictEqual((yield* it.run(["true"])).receipt.sequence, 2)
      }).pipe(Effect.scoped)
    )
  })

  describe("streams", () => {
    it.effect("stdin reaches stdout: 1 MiB and more of all byte values, at once and in pieces", () =>
      Effect.gen(function* () {
        const it = yield* session
        const all = Buffer.from(Array.from({ length: 1_300_001 }, (_, i) => (i * 7 + (i >> 8)) % 256))
        const pieces = Array.from({ length: 40 }, (_, i) => all.subarray(i * 32_501, (i + 1) * 32_501))
        for (const source of [[all], [...pieces, all.subarray(40 * 32_501)]]) {
          const cat = yield* it.spawn(["cat"])
          const [out] = yield* Effect.all([bytesOf(cat.stdout), Stream.run(Stream.fromIterable(source), cat.stdin)], {
            concurrency: "unbounded"
          })
          assert.deepStrictEqual([out.length, sha256(out)], [all.length, sha256(all)])
          assert.deepStrictEqual(yield* exitOf(cat), [0, null])
        }
      }).pipe(Effect.scoped)
    )

    it.effect("stdin stays open until it is ended, and unread stdin blocks nothing else", () =>
      Effect.gen(function* () {
        const it = yield* session
        const deaf = yield* it.spawn(["sleep", "1000"])
        const stuck = yield* Effect.forkChild(deaf.write(Buffer.alloc(2 << 20)), { startImmediately: true })
        const cat = yield* it.spawn(["cat"])
        const seen = yield* watch(cat.stdout)
        for (const line of ["one\n", "two\n"]) {
          yield* cat.write(line)
          yield* seen.until(line)
        }
        assert.strictEqual((yield* it.exec({ language: "python", code: "print(1)" })).stdout, "1\n")
        yield* Stream.run(Stream.make(Buffer.from("three\n")), cat.stdin)
        yield* seen.until("three\n")
        assert.deepStrictEqual(yield* exitOf(cat), [0, null])
        assert.isUndefined(stuck.pollUnsafe())
        yield* deaf.signal("SIGKILL")
        assert.deepStrictEqual(yield* exitOf(deaf), [137, "SIGKILL"])
        yield* Fiber.join(stuck)
      }).pipe(Effect.scoped)
    )

    it.effect("a slow reader blocks its own process and no other", () =>
      Effect.gen(function* () {
        const it = yield* session
        const many = "import sys\nfor i in range(120000): sys.stdout.write(f'{i:07d}\\n')\nsys.stderr.write('done')"
        const slow = yield* it.spawn(["python3", "-c", many])
        const quick = yield* it.spawn(["python3", "-c", many])
        const expected = Array.from({ length: 120_000 }, (_, i) => `${String(i).padStart(7, "0")}\n`).join("")
        assert.isTrue((yield* textOf(quick.stdout)) === expected)
        assert.strictEqual(yield* textOf(quick.stderr), "done")
        // The process has written all that fits, and waits.
        assert.isUndefined((yield* Effect.forkChild(slow.exit, { startImmediately: true })).pollUnsafe())
        const head = yield* slow.stdout.pipe(Stream.take(1), Stream.runCollect)
        const rest = yield* textOf(slow.stdout)
        assert.isTrue(Buffer.concat(head).toString() + rest === expected)
        assert.deepStrictEqual(yield* exitOf(slow), [0, null])
      }).pipe(Effect.scoped)
    )

    it.effect("/dev/stdin, /dev/stdout and /dev/stderr can be opened", () =>
      Effect.gen(function* () {
        const command = "cat /dev/stdin; echo out > /dev/stdout; echo err > /dev/stderr"
        const { stdout, stderr } = yield* ended(command, {}, Stream.make(Buffer.from("in\n")))
        assert.deepStrictEqual([stdout, stderr], ["in\nout\n", "err\n"])
      })
    )
  })

  describe("the exit", () => {
    it.effect("is a value for every program that ran, the same every time, with a true receipt", () =>
      Effect.gen(function* () {
        const it = yield* session
        const process = yield* it.spawn("head -c 1000 /dev/zero; echo e >&2; exit 7")
        const exit = yield* process.exit
        assert.deepStrictEqual([exit.exitCode, exit.signal], [7, null])
        assert.strictEqual(yield* process.exit, exit)
        assert.isAbove(exit.usage.cpuMs ?? 0, 0)
        assert.isAbove(exit.usage.peakMemoryBytes ?? 0, 100_000)
        const { receipt } = exit
        assert.deepStrictEqual(yield* Schema.decodeUnknownEffect(Receipt)(JSON.parse(JSON.stringify(receipt))), receipt)
        assert.deepStrictEqual(
          [
            receipt.argv,
            receipt.language,
            receipt.outcome,
            receipt.stopReason,
            receipt.exitCode,
            receipt.limits.timeMs
          ],
          [["bash", "-c", "head -c 1000 /dev/zero; echo e >&2; exit 7"], null, "TaskFailed", "failed", 7, null]
        )
        assert.deepStrictEqual(receipt.output, { stdoutBytes: 1000, stderrBytes: 2, truncated: false })
        for (const [command, code, signal] of [
          ["set -o pipefail; yes | head -1 >/dev/null", 141, null],
          ["kill -SEGV $$", 139, "SIGSEGV"],
          ["exit 127", 127, null],
          ["exit 255", 255, null]
        ] as const) {
          assert.deepStrictEqual(yield* exitOf(yield* it.spawn(command)), [code, signal])
        }
      }).pipe(Effect.scoped)
    )

    it.effect("comes at once when a grandchild keeps the pipes open, with all output until then", () =>
      Effect.gen(function* () {
        const it = yield* session
        const process = yield* it.spawn("(sleep 1; echo late; exec sleep 731) & echo last; exit 3")
        assert.deepStrictEqual(yield* exitOf(process), [3, null])
        assert.strictEqual(yield* textOf(process.stdout), "last\n")
        // What it left running continues, and its output blocks nothing.
        assert.strictEqual(yield* living(it, "sleep 731"), 1)
        const flood = yield* it.spawn("(head -c 3000000 /dev/zero; touch /tmp/written) & exit 0")
        assert.deepStrictEqual(yield* exitOf(flood), [0, null])
        const waited = yield* it.run("until [ -e /tmp/written ]; do sleep 0.05; done; echo yes")
        assert.strictEqual(waited.stdout, "yes\n")
      }).pipe(Effect.scoped)
    )

    it.effect("is LimitExceeded for time and memory, and the session lives", () =>
      Effect.gen(function* () {
        const it = yield* session
        const slow = yield* it.spawn("echo before; sleep 732 & wait", { limits: { timeMs: 1500 } })
        const late = yield* Effect.flip(slow.exit)
        assert.deepStrictEqual(late._tag === "LimitExceeded" && [late.limit, late.allowed, late.stdout], [
          "time",
          1500,
          "before\n"
        ])
        assert.strictEqual(yield* living(it, "sleep 732"), 0)
        const hungry = yield* it.spawn(["python3", "-c", "x = bytearray(400 << 20)"], { limits: { memoryMiB: 128 } })
        const oom = yield* Effect.flip(hungry.exit)
        assert.deepStrictEqual(oom._tag === "LimitExceeded" && [oom.limit, oom.allowed], ["memory", 128 << 20])
        const bomb = yield* Effect.flip(
          it.run(
            ["python3", "-c", "import os, time\nfor _ in range(40):\n  if os.fork() == 0: time.sleep(2); os._exit(0)"],
            {
              limits: { processes: 16 }
            }
          )
        )
        assert.strictEqual(bomb._tag === "LimitExceeded" && bomb.limit, "processes")
        assert.strictEqual((yield* it.exec({ language: "python", code: "print(1)" })).stdout, "1\n")
      }).pipe(Effect.scoped)
    )
  })

  describe("signals and the end", () => {
    it.effect("a signal reaches the whole tree", () =>
      Effect.gen(function* () {
        const it = yield* session
        const process = yield* it.spawn(
          "trap 'echo parent' USR1; bash -c \"trap 'echo child; exit' USR1; echo ready; while :; do sleep 0.05; done\"; echo end"
        )
        const seen = yield* watch(process.stdout)
        yield* seen.until("ready\n")
        yield* process.signal("SIGUSR1")
        yield* seen.until("end\n")
        assert.sameMembers(seen.all().trim().split("\n"), ["ready", "child", "parent", "end"])
        const waiting = yield* it.spawn(["sleep", "100"])
        yield* waiting.signal("SIGTERM")
        assert.deepStrictEqual(yield* exitOf(waiting), [143, "SIGTERM"])
        yield* waiting.signal("SIGTERM")
      }).pipe(Effect.scoped)
    )

    it.effect("closing the scope ends the tree, even if it ignores SIGTERM", () =>
      Effect.gen(function* () {
        const it = yield* session
        for (const [command, options] of [
          [
            "trap '' TERM HUP; (trap '' TERM HUP; setsid sleep 733) & echo ready; wait; while :; do sleep 733; done",
            {}
          ],
          ["trap 'exit 9' TERM; setsid sleep 733 & echo ready; wait", {}],
          ["stty -echo; (trap '' HUP TERM; sleep 733) & echo ready; bash -i", { pty }],
          // It waits for its output to be read.
          ["echo ready; (sleep 733) & yes", {}]
        ] as const) {
          const scope = yield* Scope.make()
          const process = yield* Scope.provide(it.spawn(command, options), scope)
          const first = yield* process.stdout.pipe(Stream.take(1), Stream.runCollect)
          assert.include(Buffer.concat(first).toString(), "ready")
          yield* Scope.close(scope, Exit.void)
          assert.strictEqual(yield* living(it, "sleep 733"), 0, command)
        }
        // A process whose start was interrupted has no handle: it ends before the scope does.
        const starting = yield* Effect.forkChild(it.spawn("trap '' TERM; sleep 733"), { startImmediately: true })
        yield* Fiber.interrupt(starting)
        assert.strictEqual(yield* living(it, "sleep 733"), 0)
        assert.strictEqual((yield* it.run(["echo", "ok"])).stdout, "ok\n")
      }).pipe(Effect.scoped)
    )

    it.effect("an interrupted run ends in the guest", () =>
      Effect.gen(function* () {
        const it = yield* session
        const running = yield* Effect.forkChild(it.run("touch /tmp/on; sleep 734 & wait"), { startImmediately: true })
        yield* it.run("until [ -e /tmp/on ]; do sleep 0.02; done")
        yield* Fiber.interrupt(running)
        yield* it.run("while pgrep -f '[s]leep 734'; do sleep 0.05; done")
        assert.strictEqual(yield* living(it, "sleep 734"), 0)
      }).pipe(Effect.scoped)
    )

    it.effect("run has the same results and errors as exec: stdin, result, TaskFailed", () =>
      Effect.gen(function* () {
        const it = yield* session
        const sorted = yield* it.run(["sort", "-n"], { stdin: "10\n9\n" })
        assert.deepStrictEqual([sorted.stdout, sorted.result, sorted.receipt.argv], ["9\n10\n", null, ["sort", "-n"]])
        assert.strictEqual((yield* it.run(["cat"])).stdout, "")
        const failed = yield* Effect.flip(it.run(["grep", "x"], { stdin: "y" }))
        assert.deepStrictEqual(failed._tag === "TaskFailed" && failed.reason, { _tag: "ExitCode", exitCode: 1 })
        const typed = yield* Effect.flip(it.run("no-such-thing; exit 127"))
        assert.strictEqual(typed._tag, "TaskFailed")
      }).pipe(Effect.scoped)
    )
  })

  it.effect("more requests at once than a guest takes wait their turn", () =>
    Effect.gen(function* () {
      const it = yield* session
      const [executed, files, run] = yield* Effect.all(
        [
          many(1100, (n) => Effect.map(it.exec({ language: "bash", code: `echo ${n}` }), (done) => done.stdout)),
          many(1100, () => Effect.map(it.files.stat("/etc/passwd"), (entry) => entry.type)),
          many(140, (n) => Effect.map(it.run(["echo", `${n}`]), (done) => done.stdout))
        ],
        { concurrency: "unbounded" }
      )
      assert.deepStrictEqual(
        executed,
        Array.from({ length: 1100 }, (_, n) => `${n}\n`)
      )
      assert.deepStrictEqual(new Set(files), new Set(["file"]))
      assert.deepStrictEqual(
        run,
        Array.from({ length: 140 }, (_, n) => `${n}\n`)
      )
    }).pipe(Effect.scoped)
  )

  describe("a terminal", () => {
    it.effect("is a real one: isatty, size, name, TERM, controlling terminal", () =>
      Effect.gen(function* () {
        const code =
          "import os, sys\nprint([os.isatty(n) for n in range(3)], os.get_terminal_size(), os.ttyname(0), os.environ['TERM'])\n" +
          "print(os.getsid(0) == os.getpid() == os.tcgetpgrp(0), file=open('/dev/tty', 'w'))\nprint('err', file=sys.stderr)"
        const { exit, stderr, stdout } = yield* ended(["python3", "-c", code], { pty: { cols: 123, rows: 45 } })
        assert.strictEqual(
          stdout,
          "[True, True, True] os.terminal_size(columns=123, lines=45) /dev/pts/0 xterm-256color\r\nTrue\r\nerr\r\n"
        )
        assert.strictEqual(stderr, "")
        assert.isTrue(exit._tag === "Success" && exit.success.exitCode === 0)
      })
    )

    it.effect("interactive bash: prompt, job control, Ctrl-C, Ctrl-Z, the size, ^D", () =>
      Effect.gen(function* () {
        const it = yield* session
        const bash = yield* it.spawn(["bash", "--norc"], { pty, env: { PS1: "<$?> " } })
        const seen = yield* watch(bash.stdout)
        yield* seen.until("<0> ")
        yield* bash.write("stty size\n")
        yield* seen.until("24 80\r\n")
        yield* seen.until("<0> ")
        yield* bash.resize({ cols: 132, rows: 50 })
        yield* bash.write("stty size; trap 'echo winch' WINCH\n")
        yield* seen.until("50 132\r\n")
        yield* seen.until("<0> ")
        yield* bash.resize({ cols: 100, rows: 40 })
        // When a signal comes while bash is not at its prompt, bash runs the trap before the next command.
        const commands = bash
          .write(":\n")
          .pipe(Effect.repeat(Schedule.spaced("500 millis")), Effect.andThen(Effect.never))
        yield* Effect.raceFirst(seen.until("winch\r\n"), commands)
        yield* bash.write("bash -c 'echo go; exec sleep 735'\n")
        yield* seen.until("go\r\n")
        yield* bash.write("\x03")
        // The echo, ^C, is not always there: the kernel writes it after the signal, when bash may have turned echoing off.
        yield* seen.until("<130> ")
        yield* bash.write("bash -c 'echo go; exec sleep 736'\n")
        yield* seen.until("go\r\n")
        yield* bash.write("\x1a")
        yield* seen.until("Stopped")
        yield* bash.write("kill %1; wait %1; (exit 5)\n")
        yield* seen.until("<5> ")
        yield* Stream.run(Stream.empty, bash.stdin)
        assert.deepStrictEqual(yield* exitOf(bash), [5, null])
      }).pipe(Effect.scoped)
    )

    it.effect("has its new size before later input arrives", () =>
      Effect.gen(function* () {
        const it = yield* session
        const code = "import os\nfor _ in range(200): input(); print(os.get_terminal_size().columns)"
        const process = yield* it.spawn(["python3", "-c", `print('on')\n${code}`], { pty })
        const seen = yield* watch(process.stdout)
        yield* seen.until("on\r\n")
        for (let cols = 1; cols <= 200; cols++) {
          yield* process.resize({ cols, rows: 1 })
          yield* process.write("\n")
          yield* seen.until(`${cols}\r\n`)
        }
      }).pipe(Effect.scoped)
    )

    it.effect("Ctrl-C interrupts a program that computes; input that it does not read blocks nothing", () =>
      Effect.gen(function* () {
        const it = yield* session
        const process = yield* it.spawn(["python3", "-c", "print('on')\nwhile True: pass"], { pty })
        const seen = yield* watch(process.stdout)
        yield* seen.until("on\r\n")
        const typed = yield* Effect.forkChild(process.write(Buffer.alloc(1 << 20, "x\n")), { startImmediately: true })
        assert.strictEqual((yield* it.run(["echo", "free"])).stdout, "free\n")
        yield* Fiber.interrupt(typed)
        yield* process.signal("SIGINT")
        assert.deepStrictEqual(yield* exitOf(process), [130, "SIGINT"])
      }).pipe(Effect.scoped)
    )

    it.effect("1 MB passes through a raw terminal, both ways", () =>
      Effect.gen(function* () {
        const it = yield* session
        const cat = yield* it.spawn("stty raw -echo; echo ready; exec head -c 1000000", { pty })
        const text = Buffer.from(Array.from({ length: 1_000_000 }, (_, i) => i % 256))
        const chunks: Array<Uint8Array> = []
        const ready = yield* Deferred.make<void>()
        const reading = yield* Effect.forkScoped(
          Stream.runForEach(cat.stdout, (bytes) => {
            chunks.push(bytes)
            return Deferred.succeed(ready, undefined)
          })
        )
        yield* Deferred.await(ready)
        yield* cat.write(text)
        yield* Fiber.join(reading)
        const all = Buffer.concat(chunks)
        assert.deepStrictEqual(
          [all.length, sha256(all.subarray(all.indexOf("\n") + 1))],
          [1_000_000 + all.indexOf("\n") + 1, sha256(text)]
        )
        assert.deepStrictEqual(yield* exitOf(cat), [0, null])
      }).pipe(Effect.scoped)
    )

    it.effect("full-screen programs pass unchanged", () =>
      Effect.gen(function* () {
        const it = yield* session
        const screen = yield* ended("tput smcup; tput cup 3 4; printf x; tput rmcup; tput sgr0", { pty })
        assert.strictEqual(screen.stdout, "\x1b[?1049h\x1b[22;0;0t\x1b[4;5Hx\x1b[?1049l\x1b[23;0;0t\x1b(B\x1b[m")
        const top = yield* it.spawn(["top"], { pty })
        const seen = yield* watch(top.stdout)
        yield* seen.until("\x1b[H\x1b[2J")
        yield* seen.until("load average")
        yield* seen.until("PID USER")
        yield* top.write("q")
        assert.deepStrictEqual(yield* exitOf(top), [0, null])
        const batch = yield* ended(["top", "-b", "-n1"], { pty: { cols: 200, rows: 24 } })
        assert.match(batch.stdout, /^top - .* load average: /)
        assert.include(batch.stdout, "COMMAND")
      }).pipe(Effect.scoped)
    )

    it.effect("the end of stdin is ^D, in the middle of a line too", () =>
      Effect.gen(function* () {
        const it = yield* session
        for (const [typed, echoed] of [
          ["a\n", "a\r\na\r\n"],
          ["ab", "abab"]
        ] as const) {
          const cat = yield* it.spawn(["cat"], { pty })
          yield* Stream.run(Stream.make(Buffer.from(typed)), cat.stdin)
          assert.strictEqual((yield* textOf(cat.stdout)).replaceAll("^D\b\b", ""), echoed)
          assert.deepStrictEqual(yield* exitOf(cat), [0, null])
        }
      }).pipe(Effect.scoped)
    )
  })
})
