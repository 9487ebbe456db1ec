/**
 * Tests that every `Sandbox` passes, on real VMs and in the test kit. The programs are real; the kit's script says what a real
 * guest's agent would report of them.
 */
import { assert, layer as layered } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import type { Failure, Result } from "../../src/Execution.ts"
import * as Receipts from "../../src/Receipts.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import type { SandboxError } from "../../src/SandboxError.ts"
import { Snapshots } from "../../src/Snapshot.ts"
import { contractCopies } from "./contractCopies.ts"
import { bash, programs, python, text } from "./contractPrograms.ts"
import { contractSession, Shared } from "./contractSession.ts"

/** What a suite does to machines from outside the sandbox. */
export class Outside extends Context.Service<
  Outside,
  {
    /** Kills every live machine. */
    readonly kill: Effect.Effect<void>
    /** The number of live machines. */
    readonly live: Effect.Effect<number>
  }
>()("exec-sandbox/test/Outside") {}

const session = (options?: Parameters<Sandbox["Service"]["session"]>[0]) =>
  Sandbox.use((sandbox) => sandbox.session(options))

/** The failure of a task, which must have this tag. */
const failed = <Tag extends Failure["_tag"]>(effect: Effect.Effect<Result, Failure>, tag: Tag) =>
  Effect.map(Effect.flip(effect), (error) => {
    if (error._tag !== tag) return assert.fail(`${error._tag} instead of ${tag}: ${error.message}`)
    return error as Extract<Failure, { readonly _tag: Tag }>
  })

const reason = <E>(effect: Effect.Effect<unknown, E>): Effect.Effect<SandboxError["reason"]> =>
  Effect.map(Effect.flip(effect), (error) => {
    const found = (error as SandboxError).reason
    return (error as SandboxError)._tag === "SandboxError" ? found : assert.fail(String(error))
  }).pipe(Effect.orDie)

/** Runs the suite on one implementation; `environment` is built once. */
export const contract = (
  name: string,
  environment: Layer.Layer<Sandbox | Snapshots | Receipts.Memory | Outside, SandboxError>
): void => {
  layered(environment, { excludeTestServices: true, timeout: "240 seconds" })(name, (it) => {
    it.layer(Shared.layer)("in one session", (it) => {
      contractSession(it)

      it.effect("each kind of failure has its own error, with output and receipt, and the session stays usable", () =>
        Effect.gen(function* () {
          const it = yield* Shared
          const exit = yield* failed(it.exec(bash(programs.exit)), "TaskFailed")
          assert.deepStrictEqual(exit.reason, { _tag: "ExitCode", exitCode: 3 })
          assert.deepStrictEqual(
            [exit.stdout, exit.receipt.exitCode, exit.receipt.stopReason],
            ["before\n", 3, "failed"]
          )
          const raised = yield* failed(it.exec(python(programs.raise)), "TaskFailed")
          assert.strictEqual(raised.reason._tag === "Exception" && raised.reason.type, "ValueError")
          const module = yield* failed(it.exec(python(programs.module)), "UnsupportedCommand")
          assert.deepStrictEqual([module.kind, module.name], ["module", "no_such_module"])
          const command = yield* failed(it.exec(bash(programs.command)), "UnsupportedCommand")
          assert.deepStrictEqual(
            [command.kind, command.name, command.receipt.exitCode],
            ["command", "no-such-command", 127]
          )
          const refused = yield* failed(it.exec(python(programs.refused)), "PermissionDenied")
          assert.deepStrictEqual([refused.operation, refused.target, refused.rule], ["file", "/etc/shadow", "EACCES"])
          const signal = yield* failed(it.exec(bash(programs.signal)), "TaskFailed")
          assert.deepStrictEqual(signal.reason, { _tag: "Signal", signal: "SIGSEGV" })
          assert.deepStrictEqual(
            [signal.receipt.exitCode, signal.receipt.signal, signal.receipt.state],
            [139, "SIGSEGV", "reset"]
          )
          const invalid = yield* reason(it.exec(python(" ")))
          assert.strictEqual(invalid._tag, "InvalidInput")
          assert.strictEqual((yield* it.exec(python("print(1)"))).stdout, "1\n")
        })
      )

      it.effect("exceeded limits on time and output are errors or truncated output", () =>
        Effect.gen(function* () {
          const it = yield* Shared
          const time = yield* failed(it.exec(python(programs.forever, { limits: { timeMs: 300 } })), "LimitExceeded")
          assert.deepStrictEqual([time.limit, time.allowed, time.stdout], ["time", 300, "begun\n"])
          assert.isAtLeast(time.observed ?? 0, 300)
          assert.deepStrictEqual([time.receipt.stopReason, time.receipt.state], ["time-limit", "kept"])
          const cut = yield* it.exec(python(programs.chatty, { limits: { outputBytes: 20 } }))
          assert.deepStrictEqual(cut.receipt.output, { stdoutBytes: 101, stderrBytes: 0, truncated: true })
          assert.isBelow(cut.bytes.stdout.length, 101)
          assert.strictEqual(text(yield* it.files.read(cut.outputFiles.stdout ?? "")), `${"0123456789".repeat(9)}\n`)
          assert.isNull(cut.outputFiles.stderr)
          const refused = python(programs.chatty, { limits: { outputBytes: 20, output: "fail" } })
          const output = yield* failed(it.exec(refused), "LimitExceeded")
          assert.deepStrictEqual([output.limit, output.allowed], ["output", 20])
        })
      )

      it.effect(
        "stream gives output as it is written; a reader that stops cancels it, and its receipt is published",
        () =>
          Effect.gen(function* () {
            const it = yield* Shared
            const events = yield* Stream.runCollect(it.stream(python(programs.hello)))
            const said = events.map((event) => (event._tag === "Done" ? event.result.stdout : text(event.bytes)))
            assert.sameMembers(said.slice(0, -1), ["out\n", "err\n"])
            assert.strictEqual(events.at(-1)?._tag, "Done")
            const first = yield* it.stream(python(programs.forever)).pipe(Stream.take(1), Stream.runCollect)
            assert.deepStrictEqual(
              first.map((event) => event._tag === "Stdout" && text(event.bytes)),
              ["begun\n"]
            )
            const receipts = yield* Receipts.Memory.use((memory) => memory.all)
            const cancelled = receipts.findLast((receipt) => receipt.session === it.id)
            assert.deepStrictEqual([cancelled?.outcome, cancelled?.exitCode], ["Cancelled", null])
            assert.strictEqual((yield* it.exec(python("print(1)"))).stdout, "1\n")
          })
      )

      it.effect("executions of one language run in turn, those of other languages at the same time", () =>
        Effect.gen(function* () {
          const it = yield* Shared
          const begun = yield* Deferred.make<void>()
          const waiting = yield* it.stream(python(programs.wait)).pipe(
            Stream.tap(() => Deferred.succeed(begun, undefined)),
            Stream.runCollect,
            Effect.forkChild
          )
          yield* Deferred.await(begun)
          const next = yield* Effect.forkChild(it.exec(python("print(1)")))
          yield* it.exec(bash("true"))
          assert.isUndefined(next.pollUnsafe())
          yield* it.exec(bash(programs.go))
          const events = yield* Fiber.join(waiting)
          const done = events.at(-1)
          assert.strictEqual(done?._tag === "Done" && done.result.stdout, "begun\ngone\n")
          assert.strictEqual((yield* Fiber.join(next)).stdout, "1\n")
        })
      )

      it.effect("programs: run fails as code does; spawn has stdin, signals and one exit", () =>
        Effect.gen(function* () {
          const it = yield* Shared
          const gone = yield* failed(it.run(["no-such-program"]), "UnsupportedCommand")
          assert.strictEqual(gone.name, "no-such-program")
          const no = yield* failed(it.run(["false"]), "TaskFailed")
          assert.deepStrictEqual([no.reason, no.receipt.argv], [{ _tag: "ExitCode", exitCode: 1 }, ["false"]])
          const echoed = yield* it.run(["cat"], { stdin: "through" })
          assert.strictEqual(echoed.stdout, "through")
          yield* Effect.scoped(
            Effect.gen(function* () {
              const cat = yield* it.spawn(["cat"])
              assert.isAbove(cat.pid, 0)
              yield* Stream.run(Stream.make(Buffer.from("a"), Buffer.from("b")), cat.stdin)
              assert.strictEqual(yield* Stream.mkString(Stream.decodeText(cat.stdout)), "ab")
              assert.strictEqual((yield* cat.exit).exitCode, 0)
              const sleep = yield* it.spawn(["sleep", "1000"])
              yield* sleep.signal("SIGTERM")
              const exit = yield* sleep.exit
              assert.deepStrictEqual([exit.exitCode, exit.signal], [143, "SIGTERM"])
              yield* it.spawn(["sleep", "1000"])
            })
          )
          const receipts = yield* Receipts.Memory.use((memory) => memory.all)
          const closed = receipts.findLast((receipt) => receipt.session === it.id)
          assert.deepStrictEqual([closed?.exitCode, closed?.signal, closed?.state], [143, "SIGTERM", "kept"])
          const late = yield* failed(it.run(["sleep", "1000"], { limits: { timeMs: 300 } }), "LimitExceeded")
          const { exitCode, signal, state } = late.receipt
          assert.deepStrictEqual([late.limit, exitCode, signal, state], ["time", 130, "SIGINT", "kept"])
        })
      )

      it.effect("files: written, read, listed, moved, removed, and missing", () =>
        Effect.gen(function* () {
          const { files } = yield* Shared
          yield* files.write("d/one", "1", { createParents: true })
          yield* files.write("d/two", Stream.make(Buffer.from("2"), Buffer.from("2")))
          assert.strictEqual(yield* files.readText("d/two"), "22")
          assert.deepStrictEqual(
            (yield* files.list("d")).map((entry) => [entry.name, entry.type, Number(entry.size)]),
            [
              ["one", "file", 1],
              ["two", "file", 2]
            ]
          )
          yield* files.rename("d/two", "d/three")
          assert.deepStrictEqual([yield* files.exists("d/two"), yield* files.exists("d/three")], [false, true])
          const full = yield* Effect.flip(files.remove("d"))
          assert.strictEqual(full._tag === "FileError" && full.reason._tag, "NotEmpty")
          yield* files.remove("d", { recursive: true })
          const missing = yield* Effect.flip(files.readText("d/one"))
          assert.strictEqual(missing._tag === "FileError" && missing.reason._tag, "NotFound")
        })
      )
    })

    contractCopies(it)

    it.effect("run gives output, value and a complete receipt, and leaves no machine", () =>
      Effect.gen(function* () {
        const sandbox = yield* Sandbox
        const { bytes, receipt, stderr, stdout } = yield* sandbox.run(python(programs.hello))
        assert.deepStrictEqual([stdout, stderr, text(bytes.stdout)], ["out\n", "err\n", "out\n"])
        assert.deepStrictEqual(
          [receipt.version, receipt.sequence, receipt.outcome, receipt.stopReason, receipt.exitCode, receipt.signal],
          [1, 1, "Success", "completed", 0, null]
        )
        assert.deepStrictEqual([receipt.state, receipt.language, receipt.argv], ["kept", "python", null])
        assert.deepStrictEqual(receipt.output, { stdoutBytes: 4, stderrBytes: 4, truncated: false })
        const { wakeMs, ...times } = receipt.timing
        assert.isNull(wakeMs)
        for (const time of Object.values(times)) assert.isAtLeast(Number(time ?? -1), 0)
        assert.include(["restore", "boot"], receipt.startPath.kind)
        assert.strictEqual(receipt.startPath.missed[0]?.kind, "pool")
        assert.strictEqual(yield* Effect.flatMap(Outside, (it) => it.live), 0)
      })
    )

    it.effect("a session keeps each language's state, takes stdin, env and cwd, and closes with its scope", () =>
      Effect.gen(function* () {
        const closed = yield* Effect.scoped(
          Effect.gen(function* () {
            const it = yield* session({ env: { A: "a", B: "session" } })
            yield* it.exec(python(programs.assign))
            assert.deepStrictEqual((yield* it.exec(python(programs.use))).result, { repr: "42", json: 42 })
            const value = yield* it.exec({ language: "javascript", code: programs.value })
            assert.deepStrictEqual(value.result?.json, [1, { a: null }])
            const echo = yield* it.exec(python(programs.echo, { stdin: "in", env: { B: "own" }, cwd: "/tmp" }))
            assert.strictEqual(echo.stdout, "in a own /tmp\n")
            assert.strictEqual(echo.receipt.sequence, 4)
            assert.strictEqual(echo.receipt.timing.acquireMs, null)
            return it
          })
        )
        assert.strictEqual((yield* reason(closed.exec(python("1"))))._tag, "SessionClosed")
      })
    )

    it.effect("a machine killed during a task gives OutcomeUnknown, and then the session is closed", () =>
      Effect.gen(function* () {
        const it = yield* session()
        const begun = yield* Deferred.make<void>()
        const running = yield* it.stream(python(programs.forever)).pipe(
          Stream.runForEach(() => Deferred.succeed(begun, undefined)),
          Effect.flip,
          Effect.forkChild
        )
        yield* Deferred.await(begun)
        yield* Effect.flatMap(Outside, (outside) => outside.kill)
        const error = yield* Fiber.join(running)
        if (error._tag !== "SandboxError") return assert.fail(error._tag)
        assert.deepStrictEqual([error.reason._tag, error.retry], ["OutcomeUnknown", "unsafe"])
        if (error.reason._tag !== "OutcomeUnknown") return
        assert.deepStrictEqual([error.reason.receipt.outcome, error.reason.receipt.state], ["SandboxError", "closed"])
        assert.strictEqual((yield* reason(it.exec(python("1"))))._tag, "SessionClosed")
        assert.strictEqual(yield* Effect.flatMap(Outside, (outside) => outside.live), 0)
      }).pipe(Effect.scoped)
    )

    it.effect("a run that is interrupted leaves no machine", () =>
      Effect.gen(function* () {
        const sandbox = yield* Sandbox
        const begun = yield* Deferred.make<void>()
        const running = yield* sandbox.stream(python(programs.forever)).pipe(
          Stream.runForEach(() => Deferred.succeed(begun, undefined)),
          Effect.forkChild
        )
        yield* Deferred.await(begun)
        yield* Fiber.interrupt(running)
        assert.strictEqual(yield* Effect.flatMap(Outside, (it) => it.live), 0)
      })
    )
  })
}
