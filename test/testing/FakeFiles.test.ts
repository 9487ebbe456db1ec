/** The files of the test kit: errors, reports of changes and watches. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Stream from "effect/Stream"
import * as fs from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import type { FileFailure } from "../../src/Files.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import * as Testing from "../../src/Testing.ts"
import { kindOf, kit, python } from "../support/kit.ts"

describe("files of the test kit", () => {
  it.effect("changed files are reported since the start, a mark or the start of an execution", () =>
    Effect.gen(function* () {
      const session = yield* Sandbox.use((it) => it.session())
      const { files } = session
      assert.deepStrictEqual((yield* session.changes()).files, [])
      yield* files.write("a", "1\n2\n")
      yield* files.write("b", "b\n")
      yield* files.write("/tmp/d/c", new Uint8Array([0, 255]), { createParents: true })
      const mark = yield* session.mark
      yield* files.write("a", "1\ntwo\n")
      yield* files.rename("b", "e")
      yield* files.remove("/tmp/d/c")
      const told = yield* session.changes({ since: mark })
      assert.deepStrictEqual(
        told.files.map(({ from, kind, path }) => [kind, path, from]),
        [
          ["modified", "/home/user/a", null],
          ["renamed", "/home/user/e", "/home/user/b"],
          ["deleted", "/tmp/d/c", null]
        ]
      )
      assert.deepStrictEqual(told.counts, { created: 0, modified: 1, deleted: 1, renamed: 1, unexamined: 0 })
      assert.include(told.files[0]?.patch, "@@ -1,2 +1,2 @@\n 1\n-2\n+two\n")
      assert.strictEqual(told.files[2]?.omitted, "binary")
      const all = yield* session.changes({ patches: false, maxFiles: 2 })
      assert.deepStrictEqual([all.files.length, all.unlisted, all.counts.created], [2, 1, 3])

      const { changes, receipt } = yield* session.exec({ ...python("write"), changes: true })
      assert.deepStrictEqual(
        changes?.files.map(({ kind, path }) => [kind, path]),
        [["created", "/home/user/out"]]
      )
      assert.deepInclude(receipt.filesChanged, { created: 1, modified: 0 })
      assert.isNull((yield* session.exec(python("write"))).changes)
      // A parked session keeps its marks, a fork has none.
      assert.isTrue(yield* session.park)
      assert.strictEqual((yield* session.changes({ since: mark })).counts.created, 1)
      const [fork] = (yield* session.fork(1)).map(Result.getOrThrow)
      assert.deepStrictEqual((yield* (fork ?? session).changes()).files, [])
      assert.strictEqual(yield* kindOf((fork ?? session).changes({ since: mark })), "InvalidInput")
    }).pipe(
      kit({
        script: (task) => {
          task.files.write("out", "x")
          return Testing.ends()
        }
      })
    )
  )

  it.effect("file operations fail with the errors of a guest's kernel", () =>
    Effect.gen(function* () {
      const { files } = yield* Sandbox.use((it) => it.session())
      const host = fs.mkdtempSync(path.join(tmpdir(), "exec-sandbox-kit-"))
      yield* Effect.addFinalizer(() => Effect.sync(() => fs.rmSync(host, { recursive: true, force: true })))
      const odd = "a\udcff"
      fs.mkdirSync(path.join(host, "t/d"), { recursive: true })
      for (const [at, to] of [
        ["loop", "pool"],
        ["pool", "loop"],
        ["up", "../t/d"],
        ["new", "d/made"]
      ] as const) {
        fs.symlinkSync(to, path.join(host, "t", at))
      }
      fs.writeFileSync(Buffer.concat([Buffer.from(`${host}/t/d/a`), Buffer.from([255])]), "odd")
      yield* files.copyIn(path.join(host, "t"), "t")
      assert.strictEqual(yield* files.readText(`t/up/${odd}`), "odd")
      assert.deepStrictEqual(
        (yield* files.list("t/d")).map(({ name }) => name),
        [odd]
      )
      // A write follows a link whose target is missing; remove and rename apply to the link itself.
      yield* files.write("t/new", "1")
      assert.strictEqual(yield* files.readText("t/d/made"), "1")
      yield* files.rename("t/new", "t/link")
      yield* files.remove("t/link")
      assert.isTrue(yield* files.exists("t/d/made"))
      yield* files.makeDirectory("empty")
      const refusals = {
        Loop: [files.read("t/loop"), files.write("t/loop/x", "")],
        NameTooLong: [files.read("n".repeat(256))],
        IsADirectory: [files.read("t"), files.write("t/up", ""), files.rename("t/d/made", "empty")],
        NotADirectory: [files.list("t/d/made"), files.read("t/d/made/x"), files.rename("empty", "t/d/made")],
        NotEmpty: [files.rename("empty", "t/d"), files.remove("t/d")],
        AlreadyExists: [files.makeDirectory("t/up"), files.makeDirectory("t/d/made", { createParents: true })],
        NotFound: [files.write("no/x", ""), files.rename("no", "yes"), files.stat("t/nothing")],
        Io: [files.rename("t", "t/d/t")]
      } as const
      for (const [expected, calls] of Object.entries(refusals)) {
        for (const call of calls) {
          const error = yield* Effect.flip(Effect.asVoid<unknown, FileFailure, never>(call))
          assert.strictEqual(error.reason._tag, expected, error.message)
        }
      }
      yield* files.copyOut("t/d", path.join(host, "out"))
      assert.deepStrictEqual(
        fs.readdirSync(Buffer.from(path.join(host, "out")), "buffer").map((name) => name.toString("latin1")),
        ["a\u00ff", "made"]
      )
    }).pipe(kit({}))
  )

  it.effect("a watch without a reader reports that it lost changes", () =>
    Effect.gen(function* () {
      const session = yield* Sandbox.use((it) => it.session())
      const [started, go] = [yield* Deferred.make<void>(), yield* Deferred.make<void>()]
      const watching = yield* session.files.watch("/tmp").pipe(
        Stream.tap(() => Effect.andThen(Deferred.succeed(started, undefined), Deferred.await(go))),
        Stream.takeUntil(({ kind }) => kind === "overflow"),
        Stream.runCount,
        Effect.forkChild({ startImmediately: true })
      )
      yield* Deferred.await(started)
      yield* session.exec(python("write"))
      yield* Deferred.succeed(go, undefined)
      assert.isAbove(yield* Fiber.join(watching), 16_000)
    }).pipe(
      kit({
        script: ({ files }) => {
          for (let n = 0; n < 18_000; n++) files.write(`/tmp/${"f".repeat(200)}`, "")
          return Testing.ends()
        }
      })
    )
  )
})
