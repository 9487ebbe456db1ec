/** VMs whose QEMU or guest misbehaves: a typed error in bounded time, and a dead process. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import * as Egress from "../src/egress/Egress.ts"
import { defaults } from "../src/Limits.ts"
import { none } from "../src/NetworkPolicy.ts"
import { Receipts } from "../src/Receipts.ts"
import { fail, type SandboxError, SnapshotFailed } from "../src/SandboxError.ts"
import type * as Session from "../src/Session.ts"
import type { Origin } from "../src/session/Context.ts"
import { make as makeSession } from "../src/session/make.ts"
import * as Parking from "../src/session/Parking.ts"
import * as Usage from "../src/session/Usage.ts"
import type * as Vm from "../src/Vm.ts"
import * as Start from "../src/vm/Start.ts"
import { isAlive } from "./support/processes.ts"

const script = fileURLToPath(new URL("./support/fakeQemu.mjs", import.meta.url))

/** A shape whose QEMU is a fake in one of its modes, an empty template, and the fake's process id. */
const fake = (mode: string) =>
  Effect.gen(function* () {
    const home = yield* Effect.acquireRelease(
      Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-vm-"))),
      (it) => Effect.sync(() => fs.rmSync(it, { recursive: true }))
    )
    const file = (name: string): string => {
      fs.writeFileSync(path.join(home, name), "")
      return path.join(home, name)
    }
    const qemu = path.join(home, "qemu")
    const pidFile = path.join(home, "pid")
    fs.writeFileSync(qemu, `#!/bin/sh\nexec ${process.execPath} ${script} ${mode} ${pidFile}\n`, { mode: 0o755 })
    const shape: Vm.Shape = {
      qemu: {
        path: qemu,
        version: "7.2.0",
        identity: "fake",
        atLeast: () => false,
        accelerator: "tcg",
        missedAccelerators: [],
        seccomp: true
      },
      launcher: { argv: [], user: null, uid: null, gid: null, parentDeath: false },
      image: {
        arch: "amd64",
        kernel: file("kernel"),
        initrd: file("initrd"),
        root: file("root"),
        scratch: file("scratch")
      },
      memoryMiB: 128
    }
    const template = { ram: file("ram"), state: file("state"), disk: file("disk"), overlay: file("overlay") }
    return { home, shape, template, pid: () => Number(fs.readFileSync(pidFile, "utf8")) }
  })

/** Runs an effect while the test's clock runs fast, so that timeouts of seconds come at once. */
const hurried = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const fiber = yield* Effect.forkChild(effect, { startImmediately: true })
    while (fiber.pollUnsafe() === undefined) {
      yield* TestClock.withLive(Effect.sleep("20 millis"))
      yield* TestClock.adjust("1 second")
    }
    return yield* Fiber.join(fiber)
  })

/** Waits until a process that has been killed is dead. */
const gone = (pid: number) =>
  Effect.sync(() => isAlive(pid)).pipe(
    Effect.repeat({ while: (alive) => alive, schedule: Schedule.spaced("5 millis") }),
    Effect.timeout("10 seconds"),
    TestClock.withLive
  )

const origin: Origin = {
  image: "i",
  template: "t",
  startPath: { kind: "restore", missed: [] },
  acquireMs: 1,
  handoverMs: 1,
  languages: ["python", "javascript", "typescript"]
}
const identity: Vm.Identity = { hostname: "h", env: {}, limits: defaults, network: null }

const uncopyable = Effect.fail(
  fail(new SnapshotFailed({ snapshot: null, kind: "unsupported", problem: "not a real machine" }))
)

const start = (mode: string, idleMs?: number) =>
  Effect.gen(function* () {
    const it = yield* fake(mode)
    const vm = yield* Start.restore(it.shape, it.template)
    yield* vm.handover(identity)
    const usage = yield* Usage.make
    const egress = yield* Egress.make(none)
    const parking = yield* Parking.make(
      { vm, leave: Effect.void },
      { parker: { prepare: () => uncopyable }, usage, afterMs: undefined, accept: egress.accept }
    )
    const copies = { snapshot: () => uncopyable, fork: () => uncopyable }
    const receipts = yield* Receipts
    const { session } = yield* makeSession({
      parking,
      usage,
      origin,
      limits: defaults,
      egress,
      receipts,
      idleMs,
      copies
    })
    return { ...it, vm, session }
  })

const reasonOf = (error: unknown): SandboxError["reason"] => {
  const reason = (error as SandboxError).reason
  assert.isDefined(reason, String(error))
  return reason
}

describe("Vm", () => {
  const starts: ReadonlyArray<readonly [string, string, string, RegExp]> = [
    ["no-monitor", "BootFailed", "restore", /not done after 30 seconds/],
    ["load-fails", "BootFailed", "restore", /state did not load/],
    ["wrong-state", "BootFailed", "restore", /exit code 1.*Size mismatch/],
    ["silent", "BootFailed", "handover", /did not answer HELLO/],
    ["refuses-entropy", "BootFailed", "handover", /did not take over entropy/]
  ]
  for (const [mode, tag, stage, problem] of starts) {
    it.effect(`${mode}: ${tag} at ${stage}, and the process is dead before the scope ends`, () =>
      Effect.gen(function* () {
        const it = yield* fake(mode)
        const failing = Start.restore(it.shape, it.template).pipe(Effect.flatMap((vm) => vm.handover(identity)))
        const error = yield* hurried(Effect.flip(failing))
        const reason = reasonOf(error)
        assert.strictEqual(reason._tag, tag)
        if (reason._tag !== "BootFailed") return
        assert.strictEqual(reason.stage, stage)
        assert.match(reason.problem, problem)
        assert.strictEqual(error.retry, "safe")
        assert.isFalse(isAlive(it.pid()))
      }).pipe(Effect.scoped)
    )
  }

  const executions: ReadonlyArray<readonly [string, string, "safe" | "unsafe" | "never"]> = [
    ["garbage", "ProtocolError", "unsafe"],
    ["bad-evidence", "ProtocolError", "unsafe"],
    ["no-evidence", "ProtocolError", "unsafe"],
    ["impossible-exit", "ProtocolError", "unsafe"],
    ["negative-usage", "ProtocolError", "unsafe"],
    ["endless-depth", "ProtocolError", "unsafe"],
    ["reseed-failed", "NotStarted", "safe"],
    ["dies-in-the-middle", "OutcomeUnknown", "unsafe"],
    ["dies-at-once", "OutcomeUnknown", "unsafe"],
    ["never-ends", "OutcomeUnknown", "unsafe"]
  ]
  for (const [mode, tag, retry] of executions) {
    it.effect(`${mode}: ${tag}, the VM is destroyed and the session closed`, () =>
      Effect.gen(function* () {
        const { pid, session } = yield* start(mode)
        const error = yield* hurried(Effect.flip(session.exec({ language: "python", code: "print(1)" })))
        assert.strictEqual(reasonOf(error)._tag, tag)
        assert.strictEqual((error as SandboxError).retry, retry)
        const next = yield* hurried(Effect.flip(session.exec({ language: "python", code: "print(1)" })))
        assert.strictEqual(reasonOf(next)._tag, "SessionClosed")
        yield* gone(pid())
      }).pipe(Effect.scoped)
    )
  }

  const answers: ReadonlyArray<readonly [string, string, (it: Session.Session) => Effect.Effect<unknown, unknown>]> = [
    ["a file", "read-lies", (it) => it.files.read("f")],
    ["three bytes of a file", "read-more", (it) => it.files.read("f", { maxBytes: 3 })],
    ["a file's kind", "no-evidence", (it) => it.files.stat("f")],
    ["a file's size", "stat-lies", (it) => it.files.stat("f")],
    ["a directory", "list-garbage", (it) => it.files.list("d")],
    ["a directory", "list-endless", (it) => it.files.list("d")],
    ["changes", "list-endless", (it) => Stream.runDrain(it.files.watch("d"))]
  ]
  for (const [what, mode, ask] of answers) {
    it.effect(`${mode} when asked for ${what}: ProtocolError, the VM is destroyed and the session closed`, () =>
      Effect.gen(function* () {
        const { pid, session } = yield* start(mode)
        const error = yield* hurried(Effect.flip(ask(session)))
        assert.strictEqual(reasonOf(error)._tag, "ProtocolError", String(error))
        assert.strictEqual(reasonOf(yield* hurried(Effect.flip(session.files.stat("f"))))._tag, "SessionClosed")
        yield* gone(pid())
      }).pipe(Effect.scoped)
    )
  }

  it.effect("a request that the guest refuses is invalid input, and the session continues", () =>
    Effect.gen(function* () {
      const { pid, session } = yield* start("refuses")
      const error = yield* hurried(Effect.flip(session.exec({ language: "python", code: "1", cwd: "/nowhere" })))
      const reason = reasonOf(error)
      assert.strictEqual(reason._tag, "InvalidInput")
      assert.match(reason.message, /\/nowhere does not exist/)
      assert.isTrue(isAlive(pid()))
    }).pipe(Effect.scoped)
  )

  it.effect("a language that is not in the image is an unsupported command that lists the available ones", () =>
    Effect.gen(function* () {
      const { session } = yield* start("refuses")
      const error = yield* Effect.flip(session.exec({ language: "bash", code: "true" }))
      assert.strictEqual(error._tag, "UnsupportedCommand")
      if (error._tag !== "UnsupportedCommand") return
      assert.deepStrictEqual([error.kind, error.name], ["language", "bash"])
      assert.deepStrictEqual(error.available, ["python", "javascript", "typescript"])
      assert.strictEqual(error.receipt.exitCode, null)
    }).pipe(Effect.scoped)
  )

  it.effect("an idle session closes after 300 s, and its VM is destroyed at once", () =>
    Effect.gen(function* () {
      const { pid, session, vm } = yield* start("refuses")
      const exec = Effect.flip(session.exec({ language: "python", code: "1" }))
      yield* TestClock.adjust("200 seconds")
      assert.strictEqual(reasonOf(yield* exec)._tag, "InvalidInput")
      yield* TestClock.adjust("299999 millis")
      assert.isTrue(isAlive(pid()))
      yield* TestClock.adjust(1)
      const reason = reasonOf(yield* exec)
      assert.strictEqual(reason._tag, "SessionClosed")
      assert.match(reason.message, /it was idle for 300000 ms/)
      yield* Effect.flip(vm.failure)
      assert.isFalse(isAlive(pid()))
      assert.deepStrictEqual(yield* Stream.runCollect(session.output), [])
    }).pipe(Effect.scoped)
  )

  it.effect("a running execution counts as use, and the idle time starts again when it ends", () =>
    Effect.gen(function* () {
      const { pid, session, vm } = yield* start("never-ends", 60_000)
      const running = yield* Effect.forkChild(
        session.exec({ language: "python", code: "1", limits: { timeMs: 3_600_000 } }),
        { startImmediately: true }
      )
      for (let i = 0; i < 30; i++) {
        yield* TestClock.withLive(Effect.sleep("20 millis")) // the guest answers the host's pings
        yield* TestClock.adjust("10 seconds")
      }
      assert.isUndefined(running.pollUnsafe())
      yield* Fiber.interrupt(running)
      yield* TestClock.adjust("59999 millis")
      assert.isTrue(isAlive(pid()))
      yield* TestClock.adjust(1)
      yield* Effect.flip(vm.failure)
      assert.isFalse(isAlive(pid()))
    }).pipe(Effect.scoped)
  )

  it.effect("a missing file is a failed launch that names it, and nothing is left open", () =>
    Effect.gen(function* () {
      const it = yield* fake("silent")
      fs.rmSync(it.template.state)
      const before = fs.readdirSync("/proc/self/fd").length
      const reason = reasonOf(yield* Effect.flip(Start.restore(it.shape, it.template)))
      assert.strictEqual(reason._tag, "BootFailed")
      assert.match(reason.message, /ENOENT.*state/)
      assert.strictEqual(fs.readdirSync("/proc/self/fd").length, before)
      assert.deepStrictEqual(
        fs.readdirSync(it.home).filter((name) => name.startsWith(".clone")),
        []
      )
    }).pipe(Effect.scoped)
  )

  it.live("a restore from a slow disk succeeds, and an interrupted one leaves no process, descriptor or file", () =>
    Effect.gen(function* () {
      const it = yield* fake("slow-disk")
      const restore = Effect.scoped(Effect.andThen(Start.restore(it.shape, it.template), Effect.void))
      yield* restore
      const before = fs.readdirSync("/proc/self/fd").length
      for (const ms of [0, 20, 80, 200, 350]) {
        fs.rmSync(path.join(it.home, "pid"), { force: true })
        const fiber = yield* Effect.forkChild(restore)
        yield* Effect.sleep(ms)
        yield* Fiber.interrupt(fiber)
        const started = fs.existsSync(path.join(it.home, "pid")) && it.pid() > 0
        assert.isFalse(started && isAlive(it.pid()), `left after ${ms} ms`)
      }
      assert.deepStrictEqual(
        fs.readdirSync(it.home).filter((name) => name.startsWith(".clone")),
        []
      )
      yield* Effect.sync(() => fs.readdirSync("/proc/self/fd").length).pipe(
        Effect.repeat({ until: (now) => now <= before, schedule: Schedule.spaced("10 millis") }),
        Effect.timeout("5 seconds")
      )
    }).pipe(Effect.scoped)
  )

  it.effect("a program that does not start is a failed launch", () =>
    Effect.gen(function* () {
      const it = yield* fake("silent")
      fs.rmSync(it.shape.qemu.path)
      const exit = yield* Effect.exit(Start.restore(it.shape, it.template))
      assert.isTrue(Exit.isFailure(exit))
      assert.match(String(exit), /ENOENT/)
    }).pipe(Effect.scoped)
  )
})
