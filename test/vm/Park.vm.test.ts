/** Parks and wakes a real session. */
import { assert, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as fs from "node:fs"
import { setTimeout } from "node:timers/promises"
import { vi } from "vitest"
import * as Capacity from "../../src/Capacity.ts"
import { SandboxError } from "../../src/SandboxError.ts"
import { bash, javascript, kindOf, makeStore, python, session } from "../support/copies.ts"
import { qemus } from "../support/processes.ts"

const retry = (error: unknown) => (error instanceof SandboxError ? error.retry : undefined)

const { layer: shared, store } = makeStore()

/** The path of an open descriptor of this process; empty if it was closed meanwhile. */
const linkOf = (fd: string): string => {
  try {
    return fs.readlinkSync(`/proc/self/fd/${fd}`)
  } catch {
    return ""
  }
}
/** The descriptors of parked machines' files. */
const files = () => fs.readdirSync("/proc/self/fd").filter((fd) => linkOf(fd).startsWith(`${store}/.parked-`))

layer(shared, { excludeTestServices: true, timeout: "240 seconds" })("Park", (it) => {
  it.effect(
    "a woken session has the disk of what it was forked from, also where the guest's memory has no copy of it",
    () =>
      Effect.gen(function* () {
        const parent = yield* session({ limits: { memoryMiB: 256 } })
        yield* bash(parent, "head -c 8388608 /dev/urandom > data; sync")
        const [child = parent] = (yield* parent.fork(1)).map(Result.getOrThrow)
        const forget = child.run("sync; echo 3 > /proc/sys/vm/drop_caches", { user: "root" })
        const before = yield* bash(child, "sha256sum data; dpkg-query -W | sha256sum")
        yield* forget
        assert.isTrue(yield* child.park)
        yield* forget
        assert.strictEqual(yield* bash(child, "sha256sum data; dpkg-query -W | sha256sum"), before)
      }).pipe(Effect.scoped)
  )

  it.effect("a parked session has no process, and continues unchanged when it is used", () =>
    Effect.gen(function* () {
      const before = new Set(qemus())
      const ours = () => qemus().filter((pid) => !before.has(pid))
      const held = Capacity.Capacity.use((it) => Effect.map(it.stats, (stats) => stats.held.vms))
      const parent = yield* session({ env: { A: "1" }, limits: { memoryMiB: 256 } })
      const asleep = Effect.gen(function* () {
        // A connection that has ended on the host may still be open in the guest.
        yield* Effect.repeat(parent.park, { until: (parked) => parked, schedule: Schedule.spaced("5 millis") })
        assert.deepStrictEqual([ours(), yield* held, files().length], [[], 0, 1])
        assert.deepStrictEqual(
          fs.readdirSync(store).filter((name) => name.startsWith(".parked")),
          []
        )
      })
      yield* python(parent, "import os, random\nrandom.seed(5); first = random.random()")
      yield* bash(parent, "cd /tmp; v=(1 2)")
      // Background work: it counts, serves the count, and writes when /tmp/go exists.
      yield* javascript(
        parent,
        `const fs = require("node:fs"), http = require("node:http"), n = 7; let ticks = 0
        setInterval(() => { if (ticks++ >= 0 && fs.existsSync("/tmp/go")) { fs.rmSync("/tmp/go"); console.log("late") } }, 20)
        http.createServer((_, answer) => answer.end(String(ticks))).listen(8000)`
      )
      const { port } = yield* parent.ports.expose(8000)
      const ask = Effect.promise(() =>
        fetch(`http://127.0.0.1:${port}/`, { headers: { connection: "close" } }).then((answer) => answer.text())
      )
      const then = Number(yield* ask)
      const mark = yield* parent.mark
      const names = yield* bash(parent, "cat /etc/machine-id /proc/sys/kernel/hostname; echo $$ $PWD ${v[1]}")
      yield* Effect.gen(function* () {
        yield* parent.spawn(["sleep", "1000"])
        assert.isFalse(yield* parent.park)
      }).pipe(Effect.scoped)
      yield* asleep
      const woken = yield* parent.exec({ language: "python", code: "print(random.random(), os.environ['A'])" })
      assert.strictEqual(woken.stdout, "0.7417869892607294 1\n")
      assert.isAbove(woken.receipt.timing.wakeMs ?? 0, 0)
      assert.deepStrictEqual([ours().length, yield* held, files()], [1, 1, []])
      assert.strictEqual(
        yield* bash(parent, "cat /etc/machine-id /proc/sys/kernel/hostname; echo $$ $PWD ${v[1]}"),
        names
      )
      const now = Number(yield* bash(parent, "echo $EPOCHREALTIME"))
      assert.isAtMost(Math.abs(now - Date.now() / 1000), 5)
      // Any call wakes it, and so does a connection from outside.
      yield* asleep
      assert.isAbove(Number(yield* ask), then)
      yield* asleep
      yield* parent.files.write("/tmp/go", "")
      const late = yield* Stream.runHead(parent.output)
      assert.deepStrictEqual(Option.getOrUndefined(late), { _tag: "Stdout", sequence: 3, bytes: Buffer.from("late\n") })
      const { files: changed } = yield* parent.changes({ since: mark, patches: false })
      assert.deepStrictEqual(changed, [])
      // A fork of a parked session has its current state.
      yield* asleep
      const [child] = (yield* parent.fork(1)).map(Result.getOrThrow)
      assert.strictEqual(yield* javascript(child ?? parent, "console.log(n, ticks > 0)"), "7 true\n")
      yield* (child ?? parent).close

      // If its QEMU is killed while it wakes, it can be woken again.
      yield* asleep
      const waking = yield* Effect.forkScoped(Effect.flip(bash(parent, "echo")), { startImmediately: true })
      yield* Effect.sync(ours).pipe(
        Effect.tap(([pid]) => Effect.sync(() => pid !== undefined && process.kill(pid, "SIGKILL"))),
        Effect.repeat({ until: (pids) => pids.length > 0, schedule: Schedule.spaced("1 millis") })
      )
      assert.strictEqual(retry(yield* Fiber.join(waking)), "safe")
      assert.strictEqual(yield* bash(parent, "echo ${v[1]}"), "2\n")
      // Also if it is killed just when its memory is restored.
      yield* asleep
      const open = fs.promises.open.bind(fs.promises)
      const opened = vi.spyOn(fs.promises, "open").mockImplementationOnce(async (...args) => {
        const memory = await open(...args)
        for (const pid of ours()) process.kill(pid, "SIGKILL")
        while (ours().length > 0) await setTimeout(1)
        return memory
      })
      assert.strictEqual(retry(yield* Effect.flip(bash(parent, "echo"))), "safe")
      assert.match(String(opened.mock.calls[0]?.[0]), /^\/proc\/\d+\/mem$/)
      opened.mockRestore()
      assert.strictEqual(yield* bash(parent, "echo ${v[1]}"), "2\n")
      // If its file was changed, it is not woken, and the session closes.
      yield* asleep
      fs.ftruncateSync(Number(files()[0]), 1_000_000)
      assert.strictEqual(yield* kindOf(bash(parent, "echo")), "damaged")
      assert.deepStrictEqual([ours(), yield* held, files()], [[], 0, []])
      yield* Effect.flip(bash(parent, "echo"))
      // A session that is closed while it is parked leaves nothing.
      yield* Effect.gen(function* () {
        const other = yield* session({ parkAfterMs: 1, limits: { memoryMiB: 256 } })
        yield* Effect.sync(() => files().length).pipe(
          Effect.repeat({ until: (count) => count === 1, schedule: Schedule.spaced("5 millis") })
        )
        yield* other.close
        assert.deepStrictEqual([ours(), files()], [[], []])
      }).pipe(Effect.scoped)
    }).pipe(Effect.scoped)
  )
})
