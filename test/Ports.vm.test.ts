/** Exposed ports and the HTTP client of real guests, which have no network. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as HttpBody from "effect/http/HttpBody"
import * as Option from "effect/Option"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { createHash, randomBytes } from "node:crypto"
import * as net from "node:net"
import type { PortFailure } from "../src/Ports.ts"
import { Sandbox } from "../src/Sandbox.ts"
import type { Session } from "../src/Session.ts"
import { runCli, startCli } from "./support/runCli.ts"

const session = Sandbox.use((sandbox) => sandbox.session())
const python = (it: Session, code: string) => it.exec({ language: "python", code })
const printed = (it: Session, expression: string) =>
  Effect.map(python(it, `print(${expression})`), ({ stdout }) => stdout.trim())
const sha256 = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex")

/** The error that a port operation fails with. */
const failing = <A, R>(effect: Effect.Effect<A, PortFailure, R>) =>
  Effect.map(Effect.flip(effect), (error) => error.reason._tag)

/** A client: `all` is everything it receives until the end, or the errno that the connection broke with. */
const connect = (port: number) => {
  const socket = net.connect({ port, host: "127.0.0.1", allowHalfOpen: true })
  const chunks: Array<Buffer> = []
  const over = new Promise<string>((resolve) => {
    socket.on("data", (chunk: Buffer) => chunks.push(chunk))
    socket.on("end", () => resolve(Buffer.concat(chunks).toString()))
    socket.on("error", (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message))
  })
  const all = Effect.promise(() => over).pipe(
    Effect.timeoutOrElse({ duration: "30 seconds", orElse: () => Effect.succeed("nothing happened") })
  )
  return { socket, all }
}

/** Several servers in one Python process. A function answers each connection in a thread of its own. */
const servers = `
import hashlib, os, socket, threading, time
def serve(port, answer, family=socket.AF_INET):
    listener = socket.socket(family)
    listener.bind(("127.0.0.1" if family == socket.AF_INET else "::1", port))
    listener.listen(200)
    def accept():
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
def digest(connection):
    # It answers when the client has said all: only half of the connection is left then.
    heard = hashlib.sha256()
    while data := connection.recv(65536): heard.update(data)
    connection.sendall(heard.hexdigest().encode())
    connection.close()
late = []
def greet(connection):
    connection.sendall(b"first")
    connection.shutdown(socket.SHUT_WR)
    while data := connection.recv(100): late.append(data.decode())
    connection.close()
flooded, stalled = 0, threading.Event()
def flood(connection):
    global flooded
    connection.settimeout(1)
    try:
        while True: flooded += connection.send(b"x" * 65536)
    except OSError: stalled.set()
    connection.close()
held = []
serve(7001, digest)
serve(7002, digest, socket.AF_INET6)
serve(7003, greet)
serve(7004, flood)
serve(7005, held.append)
serve(7006, lambda connection: connection.close())
`

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("Ports", (it) => {
  describe("expose", () => {
    it.effect("carries many connections, each with its own half-close, and the receipt counts them", () =>
      Effect.gen(function* () {
        const it = yield* session
        yield* python(it, servers)
        const four = yield* it.ports.expose(7001)
        const six = yield* it.ports.expose(7002)
        assert.deepStrictEqual(four, {
          guestPort: 7001,
          host: "127.0.0.1",
          port: four.port,
          url: `http://127.0.0.1:${four.port}`
        })
        const running = yield* Effect.forkChild(python(it, "while not os.path.exists('stop'): time.sleep(0.02)"), {
          startImmediately: true
        })
        const sent = Array.from({ length: 50 }, () => randomBytes(40_000))
        const answers = yield* Effect.forEach(
          sent,
          (bytes, index) =>
            Effect.suspend(() => {
              const client = connect((index < 40 ? four : six).port)
              client.socket.end(bytes)
              return client.all
            }),
          { concurrency: "unbounded" }
        )
        assert.deepStrictEqual(
          answers,
          sent.map((bytes) => sha256(bytes))
        )
        yield* it.files.write("stop", "")
        const { receipt } = yield* Fiber.join(running)
        const common = { host: "127.0.0.1", refused: 0 }
        assert.deepStrictEqual(receipt.ports, [
          { ...common, guestPort: 7001, port: four.port, connections: 40, bytesIn: 1_600_000, bytesOut: 2560 },
          { ...common, guestPort: 7002, port: six.port, connections: 10, bytesIn: 400_000, bytesOut: 640 }
        ])

        // The server closes its direction first.
        const client = connect((yield* it.ports.expose(7003)).port)
        assert.strictEqual(yield* client.all, "first")
        client.socket.write("second ")
        client.socket.end("third")
        yield* python(it, "while ''.join(late) != 'second third': time.sleep(0.01)")
        const last = yield* python(it, "0")
        assert.deepStrictEqual(
          last.receipt.ports?.map((use) => [use.guestPort, use.connections]),
          [
            [7001, 0],
            [7002, 0],
            [7003, 0]
          ]
        )
      }).pipe(Effect.scoped)
    )

    it.effect("buffers little for a client that does not read, and for a server that does not", () =>
      Effect.gen(function* () {
        const it = yield* session
        yield* python(it, servers)
        const flood = yield* it.ports.expose(7004)
        const held = yield* it.ports.expose(7005)
        const running = yield* Effect.forkChild(python(it, "stalled.wait(); time.sleep(0.5)"), {
          startImmediately: true
        })
        const deaf = net.connect(flood.port, "127.0.0.1").pause()
        const talker = net.connect(held.port, "127.0.0.1")
        for (const client of [deaf, talker]) client.on("error", () => {})
        talker.write(Buffer.alloc(64 * 1024 * 1024))
        const { receipt } = yield* Fiber.join(running)
        const [out, into] = receipt.ports ?? []
        // The host's kernel may buffer some of it for the client, too.
        assert.isAtLeast(out?.bytesOut ?? 0, 256 * 1024)
        assert.isBelow(out?.bytesOut ?? 0, 12 * 1024 * 1024)
        assert.isBelow(into?.bytesIn ?? 0, 24 * 1024 * 1024)
        // All of it arrives at a client that starts to read, and neither has blocked anything else.
        let received = 0
        const whole = new Promise<void>((resolve) =>
          deaf
            .resume()
            .on("end", resolve)
            .on("data", (it) => (received += it.length))
        )
        yield* Effect.promise(() => whole)
        assert.strictEqual(`${received}`, yield* printed(it, "flooded"))
        talker.destroy()

        // A client that only writes is closed when the server is gone.
        const heedless = net.connect({
          port: (yield* it.ports.expose(7006)).port,
          host: "127.0.0.1",
          allowHalfOpen: true
        })
        const closed = new Promise<void>((resolve) => heedless.on("error", () => {}).on("close", () => resolve()))
        const talk = (): void => {
          while (!heedless.destroyed && heedless.write(Buffer.alloc(65_536)));
        }
        heedless.on("drain", talk).resume()
        talk()
        yield* Effect.promise(() => closed)
      }).pipe(Effect.scoped)
    )

    it.effect("refuses invalid options, and reports when no program listens or the server has died", () =>
      Effect.gen(function* () {
        const it = yield* session
        for (const port of [0, -1, 65_536, 1.5, Number.NaN]) {
          assert.strictEqual(yield* failing(it.ports.expose(port)), "InvalidInput")
          assert.strictEqual(yield* failing(it.ports.waitFor(port, "1 second")), "InvalidInput")
        }
        assert.strictEqual(yield* failing(it.ports.expose(80, { hostPort: 65_536 })), "InvalidInput")
        assert.strictEqual(yield* failing(it.ports.waitFor(80, "2 days")), "InvalidInput")
        const udp = yield* Effect.flip(it.ports.expose(53, JSON.parse('{"protocol":"udp"}')))
        assert.match(udp.message, /protocol: got "udp"; expected "tcp": neither UDP nor SOCKS is forwarded/)

        const first = yield* it.ports.expose(7100)
        const again = yield* Effect.flip(it.ports.expose(7101, { hostPort: first.port }))
        assert.strictEqual(again.message, `port ${first.port} of the host: another program listens there`)
        assert.strictEqual(yield* connect(first.port).all, "ECONNRESET")
        const waited = yield* Effect.flip(it.ports.waitFor(7100, "50 millis"))
        assert.strictEqual(waited.message, "port 7100 of the guest: no program listens there after 50 ms")

        // Many waits cost hardly more than one, also when they are interrupted.
        const many = Effect.forEach(
          Array.from({ length: 2000 }, (_, n) => n),
          (n) => Effect.timeoutOption(it.ports.waitFor(20_000 + n, "1 minute"), "50 millis"),
          { concurrency: "unbounded" }
        )
        assert.deepStrictEqual(new Set((yield* many).map(Option.isNone)), new Set([true]))
        assert.strictEqual((yield* it.exec({ language: "python", code: "print(1)" })).stdout, "1\n")

        const waiting = yield* Effect.forkChild(it.ports.waitFor(7100, "20 seconds"), { startImmediately: true })
        const scope = yield* Scope.make()
        const server = yield* Scope.provide(
          it.spawn([
            "python3",
            "-c",
            "import socket,time\ns=socket.create_server(('',7100))\nc=s.accept()\ntime.sleep(99)"
          ]),
          scope
        )
        yield* Fiber.join(waiting)
        const client = connect(first.port)
        client.socket.write("hello")
        yield* it.run(["bash", "-c", "until grep -q ':1BBC .* 01 ' /proc/net/tcp; do sleep 0.01; done"])
        yield* server.signal("SIGKILL")
        assert.strictEqual(yield* client.all, "ECONNRESET")
        assert.strictEqual(yield* connect(first.port).all, "ECONNRESET")
        yield* Scope.close(scope, Exit.void)
        const { receipt } = yield* it.exec({ language: "bash", code: "true" })
        assert.strictEqual(receipt.ports?.length, 1)
      }).pipe(Effect.scoped)
    )

    it.effect("closes with its scope or the session, whatever is open", () =>
      Effect.gen(function* () {
        const scope = yield* Scope.make()
        const it = yield* Scope.provide(session, scope)
        yield* python(it, servers)
        const inner = yield* Scope.make()
        const short = yield* Scope.provide(it.ports.expose(7005), inner)
        const one = connect(short.port)
        yield* python(it, "while len(held) < 1: time.sleep(0.01)")
        yield* Scope.close(inner, Exit.void)
        assert.strictEqual(yield* one.all, "ECONNRESET")
        assert.strictEqual(yield* connect(short.port).all, "ECONNREFUSED")
        // The connection has ended in the guest, too, and the host's port is free again.
        yield* python(it, "try:\n  while held[0].recv(9): pass\nexcept ConnectionResetError: pass")
        const long = yield* it.ports.expose(7005, { hostPort: short.port })
        assert.strictEqual(long.port, short.port)
        const two = connect(long.port)
        yield* python(it, "while len(held) < 2: time.sleep(0.01)")
        yield* Scope.close(scope, Exit.void)
        assert.strictEqual(yield* two.all, "ECONNRESET")
        assert.strictEqual(yield* connect(long.port).all, "ECONNREFUSED")
        assert.strictEqual(yield* failing(it.ports.expose(7005)), "SessionClosed")
      }).pipe(Effect.scoped)
    )
  })

  describe("http", () => {
    it.effect("reaches servers in the guest, with streams both ways, without a port of the host", () =>
      Effect.gen(function* () {
        const it = yield* session
        yield* it.exec({
          language: "javascript",
          code: `require("node:http").createServer((request, response) => {
            if (request.url === "/headers") return response.end(JSON.stringify(request.headers))
            response.writeHead(202, { "x-method": request.method })
            request.pipe(response)
          }).listen(8080)`
        })
        yield* it.exec({
          language: "bash",
          code: "mkdir www; echo hi > www/a.txt; (cd www; python3 -m http.server 8081 &) 2> /dev/null"
        })
        yield* it.ports.waitFor(8081, "60 seconds")
        const file = yield* it.http.get("http://localhost:8081/a.txt")
        assert.deepStrictEqual([file.status, yield* file.text], [200, "hi\n"])
        const headers = yield* Effect.flatMap(it.http.get("http://127.0.0.1:8080/headers"), (answer) => answer.json)
        assert.strictEqual((headers as { host: string }).host, "127.0.0.1:8080")

        // The server sends each piece back at once, so neither side can have waited for the other's end.
        const blocks = Array.from({ length: 40 }, () => randomBytes(50_000))
        const echo = yield* it.http.post("http://localhost:8080/", {
          body: HttpBody.stream(Stream.fromIterable(blocks))
        })
        const back = Buffer.concat(yield* Stream.runCollect(echo.stream))
        assert.deepStrictEqual([echo.status, echo.headers["x-method"]], [202, "POST"])
        assert.strictEqual(sha256(back), sha256(Buffer.concat(blocks)))

        const many = yield* Effect.forEach(
          Array.from({ length: 12 }, (_, n) => `${n}`),
          (text) =>
            Effect.flatMap(
              it.http.post("http://localhost:8080/", { body: HttpBody.text(text) }),
              (answer) => answer.text
            ),
          { concurrency: "unbounded" }
        )
        assert.deepStrictEqual(
          many,
          Array.from({ length: 12 }, (_, n) => `${n}`)
        )

        const nobody = yield* Effect.flip(it.http.get("http://localhost:8082/"))
        assert.strictEqual(nobody.reason._tag, "TransportError")
        assert.match(String(nobody.reason.cause), /port 8082 of the guest: no program listens there/)
        for (const url of ["https://localhost:8080/", "http://example.org:8080/", "http://10.0.0.1/"]) {
          assert.strictEqual((yield* Effect.flip(it.http.get(url))).reason._tag, "InvalidUrlError", url)
        }
        const during = yield* Effect.forkChild(it.run("until [ -e stop ]; do sleep 0.02; done"), {
          startImmediately: true
        })
        yield* it.http.post("http://localhost:8080/", { body: HttpBody.text("counted") })
        yield* it.files.write("stop", "")
        const { receipt } = yield* Fiber.join(during)
        assert.deepStrictEqual(
          receipt.ports?.map((use) => [use.guestPort, use.host, use.port, use.connections, use.refused]),
          [[8080, null, null, 1, 0]]
        )
      }).pipe(Effect.scoped)
    )
  })

  describe("run --expose", () => {
    const code =
      "import socket\ns = socket.create_server(('127.0.0.1', 7200))\nc = s.accept()[0]\nprint(c.recv(9).decode(), end='')"

    it.effect("prints the address of the port, and reports it in the receipt", () =>
      Effect.gen(function* () {
        const running = startCli(["run", "--json", "--expose", "7200", code])
        yield* Effect.promise(() => running.until("port 7200: http://127.0.0.1:"))
        const port = Number(/port 7200: http:\/\/127\.0\.0\.1:(\d+)\n/.exec(running.text("stderr"))?.[1])
        // Until the guest listens, a connection is closed at once.
        const ask = Effect.suspend(() => {
          const client = connect(port)
          client.socket.end("hello")
          return client.all
        })
        yield* Effect.repeat(ask, { until: (answer) => answer !== "ECONNRESET" })
        const { code: exit, stdout } = yield* Effect.promise(() => running.finished)
        assert.strictEqual(exit, 0)
        const printed = JSON.parse(stdout)
        assert.strictEqual(printed.stdout, "hello")
        assert.strictEqual(printed.ports.length, 1)
        assert.deepInclude(printed.ports[0], { guestPort: 7200, host: "127.0.0.1", port, bytesIn: 5 })

        for (const [wrong, said] of [
          ["53/udp", /only TCP is forwarded, not UDP or SOCKS/],
          ["70000", /guestPort: got 70000; expected a port from 1 to 65535/]
        ] as const) {
          const refused = yield* Effect.promise(() => runCli(["run", "--expose", wrong, "1"]))
          assert.strictEqual(refused.code, 2)
          assert.match(refused.stderr, said)
        }
      })
    )
  })
})
