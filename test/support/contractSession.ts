/** The contract of a session's ports, files, terminals and late output, in one session that every test leaves unchanged. */
import { assert, type Vitest } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as HttpBody from "effect/http/HttpBody"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as fs from "node:fs"
import * as net from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import type { Change, FileFailure } from "../../src/Files.ts"
import type { PortFailure } from "../../src/Ports.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import type { Session } from "../../src/Session.ts"
import { bash, programs, python, text } from "./contractPrograms.ts"

/** One session for all tests that leave it unchanged. */
export class Shared extends Context.Service<Shared, Session>()("exec-sandbox/test/Shared") {
  static readonly layer = Layer.effect(
    this,
    Sandbox.use((sandbox) => sandbox.session())
  )
}

const tag = <A, R>(effect: Effect.Effect<A, FileFailure | PortFailure, R>) =>
  Effect.map(Effect.flip(effect), (error) => error.reason._tag)

const temporary = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(join(tmpdir(), "exec-sandbox-contract-"))),
  (directory) => Effect.sync(() => fs.rmSync(directory, { recursive: true, force: true }))
)

/** A server's answer to "ping" and the end of input, or the code of the connection's error. */
const ask = (port: number): Effect.Effect<string> =>
  Effect.callback((resume) => {
    const socket = net.connect({ port, host: "127.0.0.1", allowHalfOpen: true }).setEncoding("utf8")
    let heard = ""
    socket.on("data", (chunk: string) => void (heard += chunk))
    socket.on("end", () => resume(Effect.succeed(heard)))
    socket.on("error", (error: NodeJS.ErrnoException) => resume(Effect.succeed(error.code ?? error.message)))
    socket.end("ping")
    return Effect.sync(() => socket.destroy())
  })

/** Adds the tests. */
export const contractSession = (it: Vitest.MethodsNonLive<Shared>): void => {
  it.effect("ports: waited for, used over HTTP, exposed on the host until the scope closes, and counted", () =>
    Effect.gen(function* () {
      const it = yield* Shared
      const remove = Effect.forEach(["begun", "go"], (name) => it.files.remove(name, { force: true }))
      yield* remove
      const nobody = yield* Effect.flip(it.ports.waitFor(7001, "10 millis"))
      assert.deepStrictEqual(nobody.reason, { _tag: "NotListening", waitedMs: 10 })
      const waiting = yield* Effect.forkChild(it.ports.waitFor(7002, "20 seconds"), { startImmediately: true })
      yield* it.exec(python(programs.servers))
      yield* Fiber.join(waiting)
      const answer = yield* it.http.post("http://localhost:7001/path", { body: HttpBody.text("body") })
      assert.deepStrictEqual(
        [answer.status, answer.headers["x-method"], yield* answer.text],
        [201, "POST", "/path body"]
      )
      const refused = yield* Effect.flip(it.http.get("http://localhost:7003/"))
      assert.match(String(refused.reason.cause), /port 7003 of the guest: no program listens there/)
      assert.strictEqual((yield* Effect.flip(it.http.get("http://example.org/"))).reason._tag, "InvalidUrlError")
      const scope = yield* Scope.make()
      const { guestPort, host, port, url } = yield* Scope.provide(it.ports.expose(7002), scope)
      assert.deepStrictEqual([guestPort, host, url], [7002, "127.0.0.1", `http://127.0.0.1:${port}`])
      assert.strictEqual(yield* tag(Effect.scoped(it.ports.expose(7001, { hostPort: port }))), "HostPortTaken")
      const running = yield* Effect.forkChild(it.exec(python(programs.wait)), { startImmediately: true })
      yield* it.files.exists("begun").pipe(Effect.repeat({ until: (begun) => begun }))
      assert.deepStrictEqual(yield* Effect.all([ask(port), ask(port)], { concurrency: 2 }), ["ping", "ping"])
      yield* it.exec(bash(programs.go))
      const { receipt } = yield* Fiber.join(running)
      assert.deepStrictEqual(
        receipt.ports?.filter((use) => use.guestPort === 7002),
        [{ guestPort: 7002, host: "127.0.0.1", port, connections: 2, refused: 0, bytesIn: 8, bytesOut: 8 }]
      )
      const silent = yield* it.ports.expose(7003)
      assert.strictEqual(yield* ask(silent.port), "ECONNRESET")
      yield* Scope.close(scope, Exit.void)
      assert.strictEqual(yield* ask(port), "ECONNREFUSED")
      yield* remove
    }).pipe(Effect.scoped)
  )

  it.effect("a watch reports changes of files by the host and by code, and ends when what it watches is removed", () =>
    Effect.gen(function* () {
      const it = yield* Shared
      yield* it.files.write("w/old", "1\n", { createParents: true })
      const watch = Effect.fnUntraced(function* (path: string, recursive: boolean) {
        const seen = yield* Queue.unbounded<Change>()
        const fiber = yield* Stream.runForEach(it.files.watch(path, { recursive }), (change) =>
          Queue.offer(seen, change)
        ).pipe(Effect.forkChild({ startImmediately: true }))
        /** The next events, in short form. */
        const next = (count: number) =>
          Effect.map(Effect.timeout(Queue.takeN(seen, count), "10 seconds"), (changes) =>
            changes.map(({ from, kind, path }) =>
              [kind, from, path]
                .filter((it) => it !== undefined)
                .join(" ")
                .replaceAll("/home/user/w", "")
            )
          )
        assert.deepStrictEqual(yield* next(1), [`start ${path.slice(1)}`])
        return { fiber, next }
      })
      const flat = yield* watch("w", false)
      const deep = yield* watch("w", true)
      const file = yield* watch("w/old", false)
      yield* it.exec(bash(programs.append))
      assert.deepStrictEqual(yield* flat.next(1), ["modify /old"])
      assert.deepStrictEqual(yield* file.next(1), ["modify /old"])
      yield* it.files.makeDirectory("w/d/e", { createParents: true })
      yield* it.files.write("w/d/e/f", "x")
      assert.deepStrictEqual(yield* deep.next(4), ["modify /old", "create /d", "create /d/e", "create /d/e/f"])
      yield* it.files.rename("w/old", "w/d/new")
      assert.deepStrictEqual(yield* flat.next(2), ["create /d", "remove /old"])
      assert.deepStrictEqual(yield* deep.next(1), ["rename /old /d/new"])
      assert.deepStrictEqual(yield* file.next(1), ["remove /old"])
      yield* Fiber.join(file.fiber)
      yield* it.files.rename("w/d", "elsewhere")
      yield* it.files.rename("elsewhere", "w/d")
      assert.deepStrictEqual(yield* flat.next(2), ["remove /d", "create /d"])
      const [left, ...back] = yield* deep.next(5)
      assert.strictEqual(left, "remove /d")
      assert.sameMembers(back, ["create /d", "create /d/e", "create /d/new", "create /d/e/f"])
      yield* it.files.remove("w", { recursive: true })
      assert.deepStrictEqual(yield* flat.next(2), ["remove /d", "remove "])
      const gone = yield* deep.next(5)
      assert.sameMembers(gone.slice(0, 3), ["remove /d/e/f", "remove /d/e", "remove /d/new"])
      assert.deepStrictEqual(gone.slice(3), ["remove /d", "remove "])
      yield* Effect.all([Fiber.join(flat.fiber), Fiber.join(deep.fiber)])
      assert.strictEqual(yield* tag(Stream.runDrain(it.files.watch("w"))), "NotFound")
    })
  )

  it.effect("trees and single files are copied in and out, with their modes and links", () =>
    Effect.gen(function* () {
      const { files } = yield* Shared
      const host = yield* temporary
      const [source, out] = [join(host, "source"), join(host, "out")]
      fs.mkdirSync(join(source, "deep/er"), { recursive: true })
      fs.writeFileSync(join(source, "deep/er/data"), Buffer.alloc(70_000, "data"))
      fs.writeFileSync(join(source, `long${"-name".repeat(30)}`), "odd\n")
      fs.chmodSync(join(source, "deep/er/data"), 0o640)
      fs.utimesSync(join(source, "deep/er/data"), 1_600_000_000, 1_600_000_000)
      fs.symlinkSync("deep/er/data", join(source, "link"))
      const copied = { entries: 6, bytes: 70_004, skipped: 0 }
      assert.deepStrictEqual(yield* files.copyIn(source, "some/tree"), copied)
      const data = yield* files.stat("some/tree/deep/er/data")
      assert.deepInclude(data, { type: "file", size: 70_000, mode: 0o640, modified: 1_600_000_000_000 })
      const link = yield* files.stat("some/tree/link", { followLinks: false })
      assert.deepStrictEqual([link.type, link.target], ["symlink", "deep/er/data"])
      assert.strictEqual((yield* files.read("some/tree/link")).length, 70_000)
      assert.strictEqual((yield* files.stat("some/tree/link")).size, 70_000)
      assert.deepStrictEqual(yield* files.copyOut("some/tree", out), copied)
      assert.strictEqual(fs.readlinkSync(join(out, "link")), "deep/er/data")
      assert.isTrue(fs.readFileSync(join(out, "link")).equals(fs.readFileSync(join(source, "link"))))
      assert.strictEqual(fs.statSync(join(out, "deep/er/data")).mode & 0o777, 0o640)
      assert.strictEqual(fs.statSync(join(out, "deep/er/data")).mtimeMs, 1_600_000_000_000)

      assert.strictEqual(yield* tag(files.copyOut("some/tree", out)), "NotEmpty")
      assert.strictEqual(yield* tag(files.copyOut("some/nothing", join(host, "no"))), "NotFound")
      assert.strictEqual(yield* tag(files.copyIn(source, "some/tree/link")), "NotADirectory")
      assert.strictEqual(yield* tag(files.copyOut("some", join(host, "no"), { maxEntries: 3 })), "TooLarge")
      fs.symlinkSync("/etc/passwd", join(source, "absolute"))
      yield* files.copyIn(source, "some/tree")
      assert.strictEqual(yield* tag(files.copyOut("some/tree", join(host, "no"))), "Unsafe")
      const one = { entries: 1, bytes: 4, skipped: 0 }
      fs.writeFileSync(join(host, "one"), "1234", { mode: 0o600 })
      fs.utimesSync(join(host, "one"), 1_600_000_000, 1_600_000_000)
      assert.deepStrictEqual(yield* files.copyIn(join(host, "one"), "some/one"), one)
      assert.deepStrictEqual(yield* files.copyOut("some/one", join(host, "again")), one)
      assert.strictEqual(fs.readFileSync(join(host, "again"), "utf8"), "1234")
      assert.strictEqual(fs.statSync(join(host, "again")).mtimeMs, 1_600_000_000_000)
      yield* files.remove("some", { recursive: true })
    }).pipe(Effect.scoped)
  )

  it.effect("changes are reported since a mark and of one execution", () =>
    Effect.gen(function* () {
      const it = yield* Shared
      yield* it.files.makeDirectory("w")
      yield* it.files.write("w/old", "1\n")
      const mark = yield* it.mark
      const { changes, receipt } = yield* it.exec({ ...bash(programs.append), changes: true })
      assert.deepStrictEqual(
        changes?.files.map(({ kind, path }) => [kind, path]),
        [["modified", "/home/user/w/old"]]
      )
      assert.deepInclude(receipt.filesChanged, { created: 0, modified: 1 })
      yield* it.files.write("w/new", "n\n")
      const told = yield* it.changes({ since: mark })
      assert.deepStrictEqual(
        told.files.map(({ kind, path }) => [kind, path]),
        [
          ["created", "/home/user/w/new"],
          ["modified", "/home/user/w/old"]
        ]
      )
      assert.include(told.patch, "@@ -1 +1,2 @@\n 1\n+2\n")
      yield* it.files.remove("w", { recursive: true })
    })
  )

  it.effect("output written after an execution has ended is in the session's output", () =>
    Effect.gen(function* () {
      const it = yield* Shared
      const { receipt, stdout } = yield* it.exec(python(programs.later))
      assert.strictEqual(stdout, "")
      yield* it.files.write("later", "")
      const late = yield* it.output.pipe(
        Stream.map((piece) => {
          assert.deepInclude(piece, { _tag: "Stdout", sequence: receipt.sequence })
          return piece._tag === "Dropped" ? "" : text(piece.bytes)
        }),
        Stream.takeUntil((piece) => piece.endsWith("\n")),
        Stream.mkString
      )
      assert.strictEqual(late, "late\n")
      yield* it.files.remove("later")
    })
  )

  it.effect("a terminal has the size that was set last", () =>
    Effect.gen(function* () {
      const it = yield* Shared
      const process = yield* it.spawn(programs.size, { pty: { cols: 80, rows: 24 } })
      yield* process.resize({ cols: 100, rows: 30 })
      yield* process.write("go\n")
      assert.include(yield* Stream.mkString(Stream.decodeText(process.stdout)), "30 100\r\n")
      assert.strictEqual((yield* process.exit).exitCode, 0)
    }).pipe(Effect.scoped)
  )

  it.effect("a program handles the signal that it waits for, and is not ended by one that it ignores", () =>
    Effect.gen(function* () {
      const it = yield* Shared
      const process = yield* it.spawn(programs.trap)
      const said = yield* process.stdout.pipe(
        Stream.decodeText(),
        Stream.tap((text) =>
          text.includes("ready") ? Effect.andThen(process.signal("SIGCONT"), process.signal("SIGTERM")) : Effect.void
        ),
        Stream.mkString
      )
      assert.strictEqual(said, "ready\nheard\n")
      const exit = yield* process.exit
      assert.deepStrictEqual([exit.exitCode, exit.signal], [7, null])
    }).pipe(Effect.scoped)
  )
}
