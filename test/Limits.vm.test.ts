/** Every limit, exceeded in a real machine: the error has the allowed and observed values, and the session lives. */
import { assert, describe, layer } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { createHash } from "node:crypto"
import { Host } from "../src/Host.ts"
import { Image } from "../src/Image.ts"
import type { Limits } from "../src/Limits.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { LimitExceeded } from "../src/SandboxError.ts"
import type { Session } from "../src/Session.ts"
import { Template } from "../src/Template.ts"
import type { Vm } from "../src/Vm.ts"
import { isAlive } from "./support/processes.ts"

const MiB = 1024 * 1024
const session = (limits: Limits = {}) => Sandbox.use((sandbox) => sandbox.session({ limits }))

const usable: Record<"python" | "bash" | "javascript", string> = { python: "1", bash: "true", javascript: "1" }

/** Runs code that must exceed a limit, and returns the error; afterwards the session must be usable. */
const meets = Effect.fnUntraced(function* (
  one: Session,
  language: "python" | "bash" | "javascript",
  code: string,
  limits: Limits = {}
) {
  const error = yield* Effect.flip(one.exec({ language, code, limits }))
  if (!(error instanceof LimitExceeded)) return assert.fail(`${language}: ${error._tag} ${error.message}`)
  assert.strictEqual((yield* one.exec({ language, code: usable[language] })).receipt.outcome, "Success")
  return error
})

const limited = (error: unknown) =>
  error instanceof LimitExceeded ? error : assert.fail(`no limit was met: ${String(error)}`)

/** The VMs of the sessions, the latest last, for tests that change a machine from outside. */
class Vms extends Context.Service<Vms, Array<Vm>>()("exec-sandbox/test/Vms") {}
const watched = Layer.effect(
  Template,
  Effect.gen(function* () {
    const template = yield* Template
    const vms = yield* Vms
    return Template.of({
      ...template,
      clone: (...asked) => Effect.tap(template.clone(...asked), ({ vm }) => Effect.sync(() => vms.push(vm)))
    })
  })
).pipe(Layer.provide(Template.layer))
const here = Sandbox.layerTemplate.pipe(
  Layer.provide(watched),
  Layer.provide(Image.layer),
  Layer.provide(Host.layer),
  Layer.provideMerge(Layer.sync(Vms, () => []))
)

const decodeDisks = Schema.decodeUnknownEffect(
  Schema.Array(
    Schema.Struct({
      qdev: Schema.String,
      inserted: Schema.Struct({ "node-name": Schema.String })
    })
  )
)

/** Limits the session's disk to this many bytes a second, in QEMU. */
const slowDisk = Effect.fnUntraced(function* (vm: Vm, bytesPerSecond: number) {
  const machine = vm.parts?.machine ?? assert.fail("no clone")
  const [disks] = yield* machine.commands({ execute: "query-block" })
  const disk = (yield* decodeDisks(disks)).find((it) => it.inserted["node-name"] === "scratch")
  const none = { bps_rd: 0, bps_wr: 0, iops: 0, iops_rd: 0, iops_wr: 0 }
  yield* machine.commands({
    execute: "block_set_io_throttle",
    arguments: { id: disk?.qdev, bps: bytesPerSecond, ...none }
  })
})

layer(here, { excludeTestServices: true, timeout: "240 seconds" })("Limits", (it) => {
  describe("output", () => {
    const endless = {
      python: "import sys\nwhile True: sys.stdout.write('x' * 1000)",
      bash: "while :; do echo xxxxxxxxxxxxxxxx; done",
      javascript: "for (;;) process.stdout.write('x'.repeat(1000))"
    } as const
    for (const language of ["python", "bash", "javascript"] as const) {
      it.effect(`fail ends ${language} with all its output until then`, () =>
        Effect.gen(function* () {
          const one = yield* session()
          const error = yield* meets(one, language, endless[language], { output: "fail", outputBytes: 10_000 })
          assert.deepStrictEqual([error.limit, error.allowed], ["output", 10_000])
          assert.isAbove(error.observed ?? 0, 10_000)
          assert.strictEqual(error.observed, error.receipt.output.stdoutBytes)
          assert.strictEqual(error.bytes.stdout.length, 10_000)
          assert.strictEqual(error.receipt.stopReason, "output-limit")
        }).pipe(Effect.scoped)
      )
    }

    it.effect("fail counts stderr separately, and applies to a task that ends with 0", () =>
      Effect.gen(function* () {
        const one = yield* session({ output: "fail", outputBytes: 1000 })
        const enough = yield* one.exec({ language: "bash", code: "head -c 1000 /dev/zero; head -c 1000 /dev/zero >&2" })
        assert.strictEqual(enough.bytes.stderr.length, 1000)
        const error = yield* meets(one, "bash", "head -c 1001 /dev/zero >&2; exit 0")
        assert.deepStrictEqual([error.limit, error.allowed, error.observed], ["output", 1000, 1001])
      }).pipe(Effect.scoped)
    )

    it.effect("truncate writes what follows the head to a file of the guest", () =>
      Effect.gen(function* () {
        const one = yield* session()
        const code = "import sys\nfor i in range(20_000): print(i)\nprint('e' * 50, file=sys.stderr)"
        const result = yield* one.exec({ language: "python", code, limits: { outputBytes: 1001 } })
        const whole = Array.from({ length: 20_000 }, (_, i) => `${i}\n`).join("")
        assert.strictEqual(result.receipt.output.stdoutBytes, whole.length)
        assert.isNull(result.outputFiles.stderr)
        const file = result.outputFiles.stdout ?? ""
        const sums = yield* one.exec({ language: "bash", code: `sha256sum < '${file}'; rm '${file}'` })
        const expected = createHash("sha256").update(whole.slice(501)).digest("hex")
        assert.strictEqual(sums.stdout.split(" ")[0], expected)
        // Head and file together are the whole output.
        assert.strictEqual(Buffer.from(result.bytes.stdout.subarray(0, 501)).toString(), whole.slice(0, 501))
      }).pipe(Effect.scoped)
    )

    it.effect("truncate writes no file for an output that is kept whole, nor for a streamed one", () =>
      Effect.gen(function* () {
        const one = yield* session({ outputBytes: 4 * MiB })
        const whole = yield* one.exec({ language: "bash", code: "head -c 4194304 /dev/zero" })
        assert.deepStrictEqual(whole.outputFiles, { stdout: null, stderr: null })
        yield* one
          .stream({ language: "bash", code: "head -c 4194304 /dev/zero", limits: { outputBytes: 10 } })
          .pipe(Stream.runDrain)
        const left = yield* one.exec({ language: "bash", code: "ls /var/lib/exec-sandbox/output" })
        assert.strictEqual(left.stdout, "")
      }).pipe(Effect.scoped)
    )

    it.effect("truncate drops the file when the disk has no room for it, and the task continues", () =>
      Effect.gen(function* () {
        const one = yield* session({ diskMiB: 16, outputBytes: 1000 })
        const result = yield* one.exec({ language: "bash", code: "head -c 30000000 /dev/zero; echo end" })
        assert.strictEqual(result.receipt.output.stdoutBytes, 30_000_004)
        assert.isNull(result.outputFiles.stdout)
        yield* one.exec({ language: "bash", code: "head -c 8000000 /dev/zero > x" })
      }).pipe(Effect.scoped)
    )
  })

  describe("file-size", () => {
    const limits = { fileSizeMiB: 2 }
    const writes = {
      python: "with open('f', 'wb') as f:\n    for _ in range(3): f.write(bytes(1024 * 1024))",
      javascript: "require('node:fs').writeFileSync('f', Buffer.alloc(3 * 1024 * 1024))",
      "a command of bash": "head -c 3145728 /dev/zero > f",
      bash: "x=$(head -c 3145728 /dev/zero | tr '\\0' a); echo $x > f"
    } as const
    for (const [name, code] of Object.entries(writes)) {
      const language = name === "python" || name === "javascript" ? name : "bash"
      it.effect(`ends ${name} that writes more`, () =>
        Effect.gen(function* () {
          const one = yield* session()
          const error = yield* meets(one, language, code, limits)
          assert.deepStrictEqual([error.limit, error.allowed, error.observed], ["file-size", 2 * MiB, 2 * MiB])
          assert.strictEqual(error.receipt.stopReason, "file-size-limit")
          // Only this execution had the limit.
          const size = yield* one.exec({ language: "bash", code: "head -c 3145728 /dev/zero > g; stat -c %s f g" })
          assert.strictEqual(size.stdout, "2097152\n3145728\n")
        }).pipe(Effect.scoped)
      )
    }

    it.effect("allows a file of exactly that size", () =>
      Effect.gen(function* () {
        const one = yield* session(limits)
        const result = yield* one
          .exec({ language: "bash", code: "head -c 2097152 /dev/zero > f; exit 153" })
          .pipe(Effect.flip)
        assert.strictEqual(result._tag, "TaskFailed") // the status alone is no evidence
      }).pipe(Effect.scoped)
    )
  })

  describe("of processes", () => {
    it.effect("output and file size are limited as for executions", () =>
      Effect.gen(function* () {
        const one = yield* session()
        const limits = { output: "fail", outputBytes: 10_000 } as const
        // The other end of the pipe survives unless the whole tree is ended.
        const flood = limited(yield* Effect.flip(one.run("yes & yes >&2; wait", { limits })))
        assert.deepStrictEqual([flood.limit, flood.allowed], ["output", 10_000])
        assert.strictEqual(Math.max(flood.bytes.stdout.length, flood.bytes.stderr.length), 10_000)
        assert.strictEqual(flood.receipt.stopReason, "output-limit")
        assert.isBelow(flood.receipt.usage.wallMs ?? 0, 20_000)
        yield* Effect.gen(function* () {
          const yes = yield* one.spawn(["yes"], { limits })
          yield* Effect.forkScoped(Stream.runDrain(yes.stderr))
          const read = yield* Stream.runFold(
            yes.stdout,
            () => 0,
            (sum, bytes) => sum + bytes.length
          )
          const error = limited(yield* Effect.flip(yes.exit))
          assert.deepStrictEqual([error.limit, error.allowed, error.observed], ["output", 10_000, read])
          const enough = yield* one.spawn("head -c 10000 /dev/zero", { limits })
          yield* Stream.runDrain(enough.stdout)
          assert.strictEqual((yield* enough.exit).exitCode, 0)
        }).pipe(Effect.scoped)
        assert.strictEqual((yield* Effect.flip(one.run(["pgrep", "yes"]))).message, "task failed with exit code 1")

        const long = yield* one.run("seq 20000; seq 100 >&2", { limits: { outputBytes: 1001 } })
        const whole = Array.from({ length: 20_000 }, (_, n) => `${n + 1}\n`).join("")
        assert.strictEqual(long.receipt.output.stdoutBytes, whole.length)
        assert.isNull(long.outputFiles.stderr)
        const rest = yield* one.files.read(long.outputFiles.stdout ?? "")
        assert.strictEqual(Buffer.from(rest).toString(), whole.slice(501))

        const write = ["dd", "if=/dev/zero", "of=f", "bs=1M", "count=3"]
        const size = limited(yield* Effect.flip(one.run(write, { limits: { fileSizeMiB: 2 } })))
        assert.deepStrictEqual([size.limit, size.allowed, size.observed], ["file-size", 2 * MiB, 2 * MiB])
        assert.strictEqual((yield* one.files.stat("f")).size, 2 * MiB)
        const exit = yield* Effect.scoped(
          Effect.flatMap(one.spawn(write, { limits: { fileSizeMiB: 1 } }), (dd) => dd.exit)
        )
        assert.deepStrictEqual([exit.signal, exit.exitCode], ["SIGXFSZ", 153])
        yield* one.run(write)
        assert.strictEqual((yield* one.files.stat("f")).size, 3 * MiB)

        assert.deepStrictEqual(size.receipt.limits, {
          timeMs: 30_000,
          memoryBytes: 512 * MiB,
          outputBytes: MiB,
          output: "truncate",
          processes: 256,
          fileSizeBytes: 2 * MiB,
          diskBytes: 8192 * MiB
        })
      }).pipe(Effect.scoped)
    )
  })

  describe("disk", () => {
    const fills = {
      python: "with open('f', 'wb') as f:\n    while True: f.write(bytes(1024 * 1024))",
      javascript:
        "const fs = require('node:fs'); const fd = fs.openSync('f', 'w'); for (;;) fs.writeSync(fd, Buffer.alloc(1 << 20))",
      bash: "cat /dev/zero > f"
    } as const
    for (const language of ["python", "javascript", "bash"] as const) {
      it.effect(`${language} that fills it`, () =>
        Effect.gen(function* () {
          const one = yield* session({ diskMiB: 20 })
          const error = yield* meets(one, language, fills[language])
          assert.deepStrictEqual([error.limit, error.allowed], ["disk", 20 * MiB])
          assert.isAbove(error.observed ?? 0, 19.5 * MiB)
          assert.isAtMost(error.observed ?? 0, 20 * MiB)
          assert.strictEqual(error.receipt.stopReason, "disk-limit")
          // Long code would be stored there, too.
          const comment = language === "javascript" ? "//" : "#"
          const long = yield* meets(one, language, comment.padEnd(300_000, "x"))
          assert.deepStrictEqual([long.limit, long.allowed, long.receipt.state], ["disk", 20 * MiB, "kept"])
          const after = yield* one.exec({
            language: "bash",
            code: "stat -c %s f; : > f; head -c 18000000 /dev/zero > g"
          })
          assert.isAbove(Number(after.stdout), 18 * MiB)
          assert.isAtMost(Number(after.stdout), 20 * MiB)
        }).pipe(Effect.scoped)
      )
    }

    it.effect("that is slow blocks only the code that writes to it, and only up to its time limit", () =>
      Effect.gen(function* () {
        const scope = yield* Scope.make()
        const one = yield* Scope.provide(session(), scope)
        const vm = (yield* Vms).at(-1) ?? assert.fail("no VM")
        yield* slowDisk(vm, 256 * 1024)
        const code = `import os
f = open("f", "wb")
while True:
    f.write(bytes(64 * 1024))
    f.flush()
    print("written", flush=True)
    os.fsync(f.fileno())`
        const error = limited(yield* Effect.flip(one.exec({ language: "python", code, limits: { timeMs: 1000 } })))
        assert.deepStrictEqual([error.limit, error.allowed, error.receipt.stopReason], ["time", 1000, "time-limit"])
        // It waited for the disk.
        const { size } = yield* one.files.stat("f")
        assert.isAtLeast(size, 64 * 1024)
        assert.isBelow(size, 2 * MiB)

        // Now the disk accepts almost nothing, and a process that waits for it cannot even be killed.
        yield* slowDisk(vm, 1)
        const begun = yield* Deferred.make<void>()
        const stuck = yield* one.stream({ language: "python", code }).pipe(
          Stream.runForEach(() => Deferred.succeed(begun, undefined)),
          Effect.flip,
          Effect.forkChild({ startImmediately: true })
        )
        yield* Deferred.await(begun)
        assert.strictEqual((yield* one.exec({ language: "bash", code: "echo here" })).stdout, "here\n")
        const began = performance.now()
        yield* Scope.close(scope, Exit.void)
        assert.isBelow(performance.now() - began, 5_000)
        assert.isFalse(isAlive(vm.pid))
        assert.strictEqual((yield* Fiber.join(stuck))._tag, "SandboxError")
      })
    )

    it.effect("is not reported for a failure of another kind", () =>
      Effect.gen(function* () {
        const one = yield* session({ diskMiB: 16 })
        const survived = yield* one.exec({ language: "bash", code: "cat /dev/zero > f; true" })
        assert.strictEqual(survived.receipt.outcome, "Success")
        const grep = yield* Effect.flip(one.exec({ language: "bash", code: "echo x | grep y" }))
        assert.strictEqual(grep._tag, "TaskFailed")
        const raised = yield* Effect.flip(one.exec({ language: "python", code: "raise ValueError('no')" }))
        assert.strictEqual(raised._tag, "TaskFailed")
        const missing = yield* Effect.flip(one.exec({ language: "bash", code: "rm f; cat /dev/zero > f; no-such" }))
        assert.strictEqual(missing._tag, "UnsupportedCommand")
      }).pipe(Effect.scoped)
    )

    it.effect("of another file system is reported with the size of that one", () =>
      Effect.gen(function* () {
        const one = yield* session()
        const code = "with open('/dev/shm/f', 'wb') as f:\n    while True: f.write(bytes(1024 * 1024))"
        const size = yield* one.exec({
          language: "bash",
          code: "rm -f /dev/shm/f; df -B1 --output=size /dev/shm | tail -1"
        })
        const error = yield* meets(one, "python", code)
        assert.deepStrictEqual([error.limit, error.allowed], ["disk", Number(size.stdout)])
        assert.isAbove(error.observed ?? 0, Number(size.stdout) - 65_536)
      }).pipe(Effect.scoped)
    )

    it.effect("belongs to the session", () =>
      Effect.gen(function* () {
        const one = yield* session({ diskMiB: 20 })
        const error = yield* Effect.flip(one.exec({ language: "bash", code: "true", limits: { diskMiB: 30 } }))
        assert.match(error.message, /limits.diskMiB: got 30; expected the session's 20/)
        const free = yield* one.exec({ language: "bash", code: "df -B1 --output=avail / | tail -1" })
        assert.isAtMost(Number(free.stdout), 20 * MiB)
        assert.isAbove(Number(free.stdout), 19 * MiB)
      }).pipe(Effect.scoped)
    )
  })

  describe("time, memory and processes", () => {
    it.effect("are each reported in their unit", () =>
      Effect.gen(function* () {
        const one = yield* session()
        const time = yield* meets(one, "bash", "sleep 60", { timeMs: 300 })
        assert.deepStrictEqual([time.limit, time.allowed], ["time", 300])
        assert.isAtLeast(time.observed ?? 0, 300)
        const hungry = "x = []\nwhile True: x.append(bytearray(4 * 1024 * 1024))"
        const memory = yield* meets(one, "python", hungry, { memoryMiB: 128 })
        assert.deepStrictEqual([memory.limit, memory.allowed], ["memory", 128 * MiB])
        assert.isAbove(memory.observed ?? 0, 100 * MiB)
        const code = "import subprocess\nkeep = [subprocess.Popen(['sleep', '99']) for _ in range(30)]"
        const processes = yield* meets(one, "python", code, { processes: 20 })
        assert.deepStrictEqual([processes.limit, processes.allowed, processes.observed], ["processes", 20, 20])
        // Only that execution had the limit.
        const many = "import subprocess\nfor p in [subprocess.Popen(['true']) for _ in range(24)]: p.wait()"
        yield* one.exec({ language: "python", code: `import os\nos.system('pkill sleep')\n${many}` })
      }).pipe(Effect.scoped)
    )
  })
})
