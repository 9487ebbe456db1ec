/** What the test kit adds to the contract: scripted faults, the test's own clock, capacity and pool. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import * as NetworkPolicy from "../src/NetworkPolicy.ts"
import * as Packages from "../src/Packages.ts"
import * as Receipts from "../src/Receipts.ts"
import { Sandbox } from "../src/Sandbox.ts"
import type { Session } from "../src/Session.ts"
import { race, Snapshots } from "../src/Snapshot.ts"
import * as Testing from "../src/Testing.ts"
import { joined, kindOf, kit, python, reason } from "./support/kit.ts"

/** Adds to the sum that the script keeps, and gives what it prints. */
const add = (session: Session, by: string) => Effect.map(session.exec(python(by)), ({ stdout }) => stdout)

describe("Testing", () => {
  it.effect("a time limit of an hour passes at once, to the millisecond", () =>
    Effect.gen(function* () {
      const { run } = yield* Sandbox
      const running = yield* Effect.forkChild(
        Effect.flip(run({ ...python("while True: pass"), limits: { timeMs: 3_600_000 } })),
        { startImmediately: true }
      )
      yield* TestClock.adjust(3_599_999)
      assert.isUndefined(running.pollUnsafe())
      yield* TestClock.adjust(1)
      const error = yield* Fiber.join(running)
      if (error._tag !== "LimitExceeded") return assert.fail(error._tag)
      assert.deepStrictEqual([error.limit, error.allowed, error.observed], ["time", 3_600_000, 3_600_000])
      assert.strictEqual(error.receipt.timing.executeMs, 3_600_000)
    }).pipe(kit({ script: () => Testing.hangs }))
  )

  const starts: ReadonlyArray<readonly [string, Testing.Start, string, number]> = [
    ["that fails", { fails: "no memory" }, "no memory", 0],
    ["that never answers", { answers: false }, "did not answer HELLO", 16],
    ["that refuses its entropy", { refuses: "entropy" }, "did not take over entropy", 0]
  ]
  for (const [what, start, problem, within] of starts) {
    it.effect(`a start ${what} is BootFailed, safe to try again, and leaves no machine`, () =>
      Effect.gen(function* () {
        const { run } = yield* Sandbox
        const machines = yield* Testing.Machines
        const running = yield* Effect.forkChild(Effect.flip(run(python("1"))), { startImmediately: true })
        const { value } = yield* joined(running, within + 1)
        const found = reason(value)
        assert.deepStrictEqual([found._tag, found.retry], ["BootFailed", "safe"])
        assert.include(found.message, problem)
        assert.deepStrictEqual(yield* machines.live, [])
        // The second VM starts.
        assert.strictEqual((yield* run(python("1"))).receipt.exitCode, 0)
      }).pipe(kit({ start: (vm) => (vm === 1 ? start : {}) }))
    )
  }

  it.effect("a reader may take longer to read output than the code's time limit", () =>
    Effect.gen(function* () {
      const { session } = yield* Sandbox
      const it = yield* session()
      let bytes = 0
      const reading = it.stream(python("flood")).pipe(
        Stream.runForEach((event) => {
          if (event._tag === "Done") return Effect.void
          bytes += event.bytes.length
          return bytes === event.bytes.length ? Effect.sleep("10 minutes") : Effect.void
        })
      )
      const fiber = yield* Effect.forkChild(reading, { startImmediately: true })
      // The execution queued behind it cannot begin before it ends.
      const behind = yield* Effect.forkChild(it.exec(python("1")), { startImmediately: true })
      yield* joined(fiber, 700)
      assert.strictEqual(bytes, 4_000_000)
      assert.strictEqual((yield* Fiber.join(behind)).receipt.exitCode, 0)
    }).pipe(kit({ script: ({ code }) => Testing.prints(code === "flood" ? "x".repeat(4_000_000) : "") }))
  )

  it.effect("a caller waits for a slow start, and the receipt has its time", () =>
    Effect.gen(function* () {
      const { run } = yield* Sandbox
      const running = yield* Effect.forkChild(run(python("1")), { startImmediately: true })
      yield* TestClock.adjust(2_500)
      assert.strictEqual((yield* Fiber.join(running)).receipt.timing.acquireMs, 2_500)
    }).pipe(kit({ start: () => ({ delayMs: 2_500 }) }))
  )

  const faults: ReadonlyArray<readonly [string, Testing.Reply, string, string, number]> = [
    ["death", Testing.dies(), "OutcomeUnknown", "unsafe", 1],
    ["death by a signal", Testing.dies("killed"), "OutcomeUnknown", "unsafe", 1],
    ["stall", Testing.stalls, "OutcomeUnknown", "unsafe", 90],
    ["broken protocol", Testing.violates, "ProtocolError", "unsafe", 1],
    ["failed agent", Testing.refuses("failed", "it died"), "OutcomeUnknown", "unsafe", 1],
    ["refused request", Testing.refuses("invalid", "cwd: /nowhere"), "InvalidInput", "never", 1]
  ]
  for (const [what, reply, tag, retry, within] of faults) {
    it.effect(`a ${what} is ${tag}, and the machine is gone unless the request was at fault`, () =>
      Effect.gen(function* () {
        const session = yield* Sandbox.use((it) => it.session())
        const machines = yield* Testing.Machines
        const running = yield* Effect.forkChild(Effect.flip(session.exec(python("1"))), { startImmediately: true })
        const { value } = yield* joined(running, within)
        const found = reason(value)
        assert.deepStrictEqual([found._tag, found.retry], [tag, retry])
        const left = tag === "InvalidInput" ? 1 : 0
        yield* machines.live.pipe(Effect.repeat({ until: (live) => live.length === left, times: 1000 }))
        assert.strictEqual((yield* machines.live).length, left)
      }).pipe(kit({ script: () => reply }))
    )
  }

  it.effect("a script that throws is a failure of the sandbox that names the error, never an outcome", () =>
    Effect.gen(function* () {
      const { run } = yield* Sandbox
      const found = reason(yield* Effect.flip(run(python("1"))))
      assert.strictEqual(found._tag, "OutcomeUnknown")
      assert.include(found.message, "the script died: RangeError: my mistake")
    }).pipe(
      kit({
        script: () => {
          throw new RangeError("my mistake")
        }
      })
    )
  )

  it.effect("a full host: a caller that waits gets room when a session closes, or CapacityExceeded", () =>
    Effect.gen(function* () {
      const sandbox = yield* Sandbox
      const scope = yield* Scope.make()
      yield* Scope.provide(sandbox.session(), scope)
      const first = yield* Effect.forkChild(sandbox.run(python("1")), { startImmediately: true })
      yield* TestClock.adjust(500)
      assert.isUndefined(first.pollUnsafe())
      yield* Scope.close(scope, Exit.void)
      assert.strictEqual((yield* Fiber.join(first)).receipt.exitCode, 0)
      yield* sandbox.session()
      const second = yield* Effect.forkChild(Effect.flip(sandbox.run(python("1"))), { startImmediately: true })
      yield* TestClock.adjust(1000)
      const found = reason(yield* Fiber.join(second))
      if (found._tag !== "CapacityExceeded") return assert.fail(found._tag)
      assert.deepStrictEqual([found.waitedMs, found.total.cpus, found.free.cpus], [1000, 1, 0])
    }).pipe(kit({ capacity: { vms: 1, maxWaitMs: 1000 } }))
  )

  it.effect("a pool: a ready clone is claimed, and one that died is replaced", () =>
    Effect.gen(function* () {
      const { run } = yield* Sandbox
      const machines = yield* Testing.Machines
      for (let n = 0; n < 20 && (yield* machines.started) < 1; n++) yield* TestClock.adjust(100)
      yield* TestClock.adjust("2 seconds")
      const pooled = yield* run(python("1"))
      assert.deepStrictEqual(pooled.receipt.startPath, { kind: "pool", missed: [] })
      yield* TestClock.adjust("5 seconds")
      const [idle] = yield* machines.live
      assert.strictEqual(idle, 2)
      yield* machines.kill(2)
      yield* TestClock.adjust("5 seconds")
      assert.deepStrictEqual(yield* machines.live, [3])
    }).pipe(kit({ pool: { size: 1 } }))
  )

  it.effect("tasks are recorded; late faults reach the session between tasks", () =>
    Effect.gen(function* () {
      const machines = yield* Testing.Machines
      const session = yield* Sandbox.use((it) => it.session({ env: { A: "1" } }))
      yield* session.exec({ ...python("a = 1"), cwd: "work" })
      yield* session.run("ls | wc -l", { env: { B: "2" }, user: "root" })
      const tasks = yield* machines.tasks
      assert.deepStrictEqual(
        tasks.map(({ argv, code, cwd, env, language, vm }) => ({ argv, code, cwd, env, language, vm })),
        [
          { argv: null, code: "a = 1", cwd: "/home/user/work", env: { A: "1" }, language: "python", vm: 1 },
          {
            argv: ["bash", "-c", "ls | wc -l"],
            code: "ls | wc -l",
            cwd: "/root",
            env: { A: "1", B: "2" },
            language: null,
            vm: 1
          }
        ]
      )
      yield* machines.kill(1)
      const found = reason(yield* Effect.flip(session.exec(python("1"))))
      assert.deepStrictEqual([found._tag, found.retry], ["NotStarted", "safe"])
      const receipts = yield* Receipts.Memory.use((memory) => memory.count)
      assert.strictEqual(receipts, 2)
    }).pipe(Effect.provide(Testing.layer().pipe(Layer.provideMerge(Receipts.layerMemory()))), Effect.scoped)
  )

  it.effect("snapshots and forks go on from their moment independently, and snapshots can be listed and removed", () =>
    Effect.gen(function* () {
      const sandbox = yield* Sandbox
      const { live } = yield* Testing.Machines
      const { list, remove } = yield* Snapshots
      const parent = yield* sandbox.session({ env: { WHO: "parent" }, limits: { memoryMiB: 256, outputBytes: 5000 } })
      assert.strictEqual(yield* add(parent, "1"), "1 parent")
      yield* parent.files.write("a", "then")
      const saved = yield* parent.snapshot({ name: "one" })
      assert.deepInclude(saved, { name: "one", session: parent.id, parent: null, memoryMiB: 256 })
      yield* add(parent, "10")
      yield* parent.files.write("a", "now")
      yield* TestClock.adjust("1 minute")
      const child = yield* sandbox.session({ from: "one", env: { WHO: "child" } })
      const usedAt = new Date(60_000).toISOString()
      assert.deepStrictEqual(yield* list, [{ ...saved, usedAt }])
      assert.strictEqual(yield* add(child, "2"), "3 child")
      const { receipt } = yield* child.exec(python("0"))
      assert.deepStrictEqual(receipt.startPath, { kind: "snapshot", from: saved.id, missed: [] })
      assert.strictEqual(yield* child.files.readText("a"), "then")
      const again = yield* child.snapshot()
      assert.deepInclude(again, { name: null, parent: saved.id })
      assert.deepStrictEqual(yield* list, [again, { ...saved, usedAt }])

      const forks = (yield* parent.fork(2)).map(Result.getOrThrow)
      assert.deepStrictEqual(yield* Effect.forEach(forks, (it) => add(it, "100")), ["111 parent", "111 parent"])
      assert.strictEqual((yield* live).length, 4)
      const [slow] = (yield* parent.fork(1, { limits: { timeMs: 7000 } })).map(Result.getOrThrow)
      const { limits } = (yield* (slow ?? parent).exec(python("0"))).receipt
      assert.deepInclude(limits, { timeMs: 7000, outputBytes: 5000, memoryBytes: 256 * 1024 ** 2 })
      const won = yield* race(parent, [(it) => add(it, "fail"), (it) => add(it, "7")])
      assert.deepInclude(Option.getOrThrow(won), { index: 1, value: "18 parent" })
      assert.strictEqual(yield* add(parent, "0"), "11 parent")

      assert.strictEqual(yield* kindOf(sandbox.session({ from: "two" })), "unknown")
      assert.strictEqual(yield* kindOf(parent.snapshot({ name: "one" })), "exists")
      assert.strictEqual(yield* kindOf(remove("two")), "unknown")
      assert.deepStrictEqual(yield* remove("one"), { ...saved, usedAt })
      assert.deepStrictEqual(yield* list, [again])
      // The library's own rehearsals are not recorded as tasks.
      const codes = (yield* (yield* Testing.Machines).tasks).map(({ code }) => code)
      assert.notInclude(codes, "")
    }).pipe(
      kit({
        script: ({ code, env, state }) => {
          if (code === "fail") return Testing.exits(1)
          state.set("sum", Number(state.get("sum") ?? 0) + Number(code))
          return Testing.prints(`${String(state.get("sum"))} ${env["WHO"]}`)
        }
      })
    )
  )

  it.effect("a fork that has no room, or does not start, fails without affecting the others", () =>
    Effect.gen(function* () {
      const parent = yield* Sandbox.use((it) => it.session())
      const forking = yield* Effect.forkChild(parent.fork(4), { startImmediately: true })
      const { value: forks } = yield* joined(forking, 10)
      assert.deepStrictEqual(
        forks.map((it) => (Result.isSuccess(it) ? "started" : reason(it.failure)._tag)),
        ["started", "BootFailed", "started", "CapacityExceeded"]
      )
    }).pipe(kit({ capacity: { vms: 3, maxWaitMs: 1000 }, start: (vm) => (vm === 3 ? { fails: "no luck" } : {}) }))
  )

  it.effect("connections are decided by the session's policy, recorded, and reach only the test's world", () =>
    Effect.gen(function* () {
      const rules = ["api.example.com", "db.example.com:5432", "10.0.0.1:1"]
      const it = yield* Sandbox.use((sandbox) => sandbox.session({ network: NetworkPolicy.allow(rules) }))
      const granted = yield* it.exec(python("api.example.com:443"))
      assert.deepStrictEqual(
        granted.receipt.egress?.map(({ decision, name, port, reason, rule }) => [name, port, decision, rule, reason]),
        [["api.example.com", 443, "allow", "api.example.com", "the guest closed the connection"]]
      )
      const refused = yield* Effect.flip(it.exec(python("evil.example.com:443")))
      if (refused._tag !== "PermissionDenied") return assert.fail(refused._tag)
      assert.deepStrictEqual([refused.operation, refused.target], ["network", "evil.example.com:443"])
      assert.include(refused.grant ?? "", "evil.example.com")
      assert.strictEqual((yield* Effect.flip(it.exec(python("127.0.0.1:80"))))._tag, "PermissionDenied")
      const down = yield* Effect.flip(it.exec(python("db.example.com:5432")))
      if (down._tag !== "TaskFailed") return assert.fail(down._tag)
      assert.strictEqual(down.reason._tag === "Exception" && down.reason.message, "ECONNREFUSED")
      yield* it.network.update(NetworkPolicy.none)
      assert.strictEqual((yield* Effect.flip(it.exec(python("api.example.com:443"))))._tag, "PermissionDenied")
      assert.deepStrictEqual(
        (yield* it.network.attempts).map((attempt) => `${attempt.name} ${attempt.decision}`),
        [
          "api.example.com allow",
          "evil.example.com deny",
          "127.0.0.1 deny",
          "db.example.com allow",
          "api.example.com deny"
        ]
      )
      // Without a policy the guest does not ask; a later policy allows connections.
      const closed = yield* Sandbox.use((sandbox) => sandbox.session())
      const none = yield* Effect.flip(closed.exec(python("api.example.com:443")))
      assert.strictEqual(none._tag === "PermissionDenied" && none.rule, "none")
      assert.deepStrictEqual(yield* closed.network.attempts, [])
      yield* closed.network.update(NetworkPolicy.all())
      yield* closed.exec(python("api.example.com:443"))
    }).pipe(
      kit({
        world: (host) => (host === "db.example.com" ? "ECONNREFUSED" : null),
        script: ({ code, connect }) => {
          const { hostname, port } = new URL(`tcp://${code}`)
          return Effect.map(connect(hostname, Number(port)), (errno) =>
            errno === null ? Testing.ends() : Testing.raises("OSError", { errno, message: errno })
          )
        }
      })
    )
  )

  it.effect("packages are available, or refused, as the policy and the test say", () =>
    Effect.gen(function* () {
      const sandbox = yield* Sandbox
      const session = (javascript: ReadonlyArray<string>) => sandbox.session({ packages: { javascript } })
      const it = yield* session(["lodash@4.17.21"])
      assert.strictEqual((yield* it.exec(python("1"))).stdout, "javascript:lodash@4.17.21")
      const [fork = it] = (yield* it.fork(1)).map(Result.getOrThrow)
      assert.strictEqual((yield* fork.exec(python("1"))).stdout, "javascript:lodash@4.17.21")
      const refused = yield* Effect.flip(session(["evil@1.0.0"]))
      if (refused._tag !== "PermissionDenied") return assert.fail(refused._tag)
      assert.deepStrictEqual([refused.operation, refused.target], ["package", "javascript:evil@1.0.0"])
      const missing = yield* Effect.flip(session(["left-pad@9.9.9"]))
      if (missing._tag !== "UnsupportedCommand") return assert.fail(missing._tag)
      assert.deepStrictEqual(missing.available, ["1.3.0"])
    }).pipe(
      kit({
        packages: ({ name }) => (name === "left-pad" ? { _tag: "NotFound", available: ["1.3.0"] } : undefined),
        script: ({ packages }) => Testing.prints(packages.join(" "))
      }),
      Effect.provideService(Packages.Policy, Packages.only({ javascript: ["lodash", "left-pad"] }))
    )
  )
})
