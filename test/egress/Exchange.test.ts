/** HTTP at the border, with hostile and unusual requests and answers. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type * as http from "node:http"
import * as tls from "node:tls"
import * as NetworkPolicy from "../../src/NetworkPolicy.ts"
import { ask, first, policy, raw, world } from "../support/border.ts"

const host = "Host: a.example"
const smuggled = "GET /smuggled HTTP/1.1\r\nHost: a.example\r\n\r\n"

/** Waits until the value no longer changes. */
const still = (count: () => number): Effect.Effect<number> =>
  Effect.gen(function* () {
    for (let before = -1; before !== count();) {
      before = count()
      yield* Effect.sleep("300 millis")
    }
    return count()
  })

describe("HTTP at the border", () => {
  it.live("a registry's credential is put only into GET and HEAD requests below the registry's path", () =>
    Effect.gen(function* () {
      const it = yield* world(undefined, undefined, { FIRST: "/r/" })
      const sent = (method: string, path: string) =>
        ask(it, "a.example", { method, path, headers: { host: "a.example", authorization: `Bearer ${it.first}` } })
      assert.propertyVal(yield* sent("GET", "/r/page"), "body", "fine")
      assert.include(it.seen.at(-1)?.headers.join("\n"), `Bearer ${first}`)
      const reached = it.seen.length
      for (const [method, path] of [
        ["POST", "/r/page"],
        ["GET", "/stolen"],
        ["GET", "/r/%2e%2e/stolen"],
        ["PUT", "/stolen"]
      ] as const) {
        yield* sent(method, path)
        assert.deepInclude(it.last(), { rule: "secret", decision: "deny" }, `${method} ${path}`)
      }
      assert.strictEqual(it.seen.length, reached)
      // Without the credential the same request is passed on.
      const plain = yield* ask(it, "a.example", { method: "POST", path: "/r/page", headers: { host: "a.example" } })
      assert.propertyVal(plain, "body", "fine")
    }).pipe(Effect.scoped)
  )

  it.live("is passed on only if it is unambiguous and for the granted host", () =>
    Effect.gen(function* () {
      const it = yield* world()
      const key = `X-Key: ${it.first}`
      const post = (headers: string, body: string) => `POST / HTTP/1.1\r\n${host}\r\n${headers}\r\n\r\n${body}`
      const chunked = "Transfer-Encoding: chunked"
      const cases: ReadonlyArray<readonly [name: string, bytes: string, rule: string]> = [
        ["bare LF", `GET / HTTP/1.1\n${host}\n${key}\n\n`, "http-syntax"],
        ["bare LF after a header", `GET / HTTP/1.1\r\n${host}\n${key}\r\n\r\n`, "http-syntax"],
        ["bare CR", `GET / HTTP/1.1\r\n${host}\r\nA: b\r${key}\r\n\r\n`, "http-syntax"],
        ["a folded line", `GET / HTTP/1.1\r\n${host}\r\n${key}\r\n x\r\n\r\n`, "http-syntax"],
        ["a space before the colon", `GET / HTTP/1.1\r\n${host}\r\nX-Key : ${it.first}\r\n\r\n`, "http-syntax"],
        ["NUL", `GET / HTTP/1.1\r\n${host}\r\nA: \0\r\n\r\n`, "http-syntax"],
        ["two lengths", post("Content-Length: 0\r\nContent-Length: 44", smuggled), "http-syntax"],
        ["a length of two", post("Content-Length: 0, 44", smuggled), "http-syntax"],
        ["a signed length", post("Content-Length: +44", smuggled), "http-syntax"],
        ["length, then chunked", post(`Content-Length: 4\r\n${chunked}`, `0\r\n\r\n${smuggled}`), "http-syntax"],
        ["chunked, then length", post(`${chunked}\r\nContent-Length: 4`, `0\r\n\r\n${smuggled}`), "http-syntax"],
        ["another coding", post("Transfer-Encoding: gzip, chunked", "0\r\n\r\n"), "http-syntax"],
        ["an unknown coding", post("Transfer-Encoding: xchunked", "0\r\n\r\n"), "http-syntax"],
        ["two codings", post(`${chunked}\r\nTransfer-Encoding: identity`, "0\r\n\r\n"), "http-syntax"],
        ["chunked twice", post(`${chunked}\r\n${chunked}`, "0\r\n\r\n"), "http-syntax"],
        ["a coding in 1.0", `POST / HTTP/1.0\r\n${host}\r\n${chunked}\r\n\r\n0\r\n\r\n`, "http-syntax"],
        ["a chunk's size that is none", post(chunked, "-1\r\n"), "http-syntax"],
        ["a chunk's end without CR", post(chunked, "1\nx\n0\n\n"), "http-syntax"],
        ["no host", `GET / HTTP/1.1\r\n${key}\r\n\r\n`, "http-syntax"],
        ["an empty host", `GET / HTTP/1.1\r\nHost:\r\n\r\n`, "http-host"],
        ["two hosts", `GET / HTTP/1.1\r\n${host}\r\nHost: b.example\r\n\r\n`, "http-syntax"],
        ["another host", `GET / HTTP/1.1\r\nHost: b.example\r\n${key}\r\n\r\n`, "http-host"],
        ["another port", `GET / HTTP/1.1\r\n${host}:80\r\n${key}\r\n\r\n`, "http-host"],
        ["a host with more", `GET / HTTP/1.1\r\n${host}@b.example\r\n\r\n`, "http-host"],
        ["a whole URL", `GET https://b.example/ HTTP/1.1\r\n${host}\r\n\r\n`, "http-syntax"],
        ["no path", `GET a HTTP/1.1\r\n${host}\r\n\r\n`, "http-syntax"],
        ["a tunnel", `CONNECT b.example:443 HTTP/1.1\r\n${host}\r\n\r\n`, "http-syntax"],
        ["HTTP/0.9", "GET /\r\n\r\n", "http-version"],
        ["HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "http-version"],
        ["h2c", `GET / HTTP/1.1\r\n${host}\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n${smuggled}`, "http-syntax"],
        ["garbage", "\x16\x03\x01 garbage", "http-syntax"],
        ["a head without end", `GET / HTTP/1.1\r\n${host}\r\nA: ${"x".repeat(70_000)}`, "http-syntax"],
        ["many at once", `GET / HTTP/1.1\r\n${host}\r\n\r\n`.repeat(1000), "http-syntax"]
      ]
      for (const [name, bytes, rule] of cases) {
        const before = it.seen.length
        yield* raw(it, "a.example", bytes)
        assert.deepInclude(it.last(), { decision: "deny", rule }, name)
        // When a request is refused during its body, its head was passed on, but not its end.
        assert.isAtMost(it.seen.length - before, name === "many at once" ? 16 : 0, name)
      }
      assert.isFalse(it.seen.some(({ line }) => line.includes("smuggled")))
    })
  )

  it.live("passes on bodies, lengths and chunks unchanged, and drops hop-by-hop headers", () =>
    Effect.gen(function* () {
      const it = yield* world((request, response) => {
        if (request.url === "/none") return void response.writeHead(204).end()
        if (request.url === "/same") return void response.writeHead(304, { etag: "x" }).end()
        if (request.url === "/cut") {
          response.writeHead(200, { "content-length": 100 })
          return void response.write("part", () => response.destroy())
        }
        response.writeHead(200, { "set-cookie": ["a=1", "b=2"], "x-odd": "\xe9" })
        response.write("one ")
        response.end("two")
      })
      const headers = { host: "a.example" }
      const got = yield* ask(it, "a.example", { headers })
      assert.deepInclude(got, { body: "one two" })
      assert.deepInclude(typeof got === "string" ? {} : got.headers, { "set-cookie": ["a=1", "b=2"], "x-odd": "\xe9" })
      const head = yield* ask(it, "a.example", { method: "HEAD", headers })
      assert.deepInclude(head, { status: 200, body: "" })
      assert.deepInclude(yield* ask(it, "a.example", { path: "/none", headers }), { status: 204 })
      assert.deepInclude(yield* ask(it, "a.example", { path: "/same", headers }), { status: 304 })
      // An answer that was cut short does not look complete.
      assert.strictEqual(yield* ask(it, "a.example", { path: "/cut", headers }), "ECONNRESET")
      assert.strictEqual(it.last().decision, "allow")
      it.seen.length = 0
      const parts = ["a", "bc", "d".repeat(100_000)]
      const neighbours = {
        te: "trailers",
        "keep-alive": "1",
        "proxy-authorization": "Basic eA==",
        upgrade: "h2c",
        "transfer-encoding": "chunked"
      }
      yield* ask(it, "a.example", { method: "PUT", headers: { ...headers, "x-mine": "1", ...neighbours }, body: parts })
      yield* ask(it, "a.example", { method: "DELETE", headers: { ...headers, "content-length": "3" }, body: "abc" })
      assert.strictEqual(it.last().decision, "allow")
      yield* raw(it, "a.example", `POST /x HTTP/1.1\r\n${host}\r\nConnection: close\r\n\r\n`)
      const many = "a:\r\n".repeat(1100)
      const last = `Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n`
      yield* raw(it, "a.example", `POST /x HTTP/1.1\r\n${host}\r\n${many}${last}`)
      const { body, headers: all } = it.seen.pop() ?? { body: "", headers: [] }
      assert.deepStrictEqual([body, all.length], ["abc", 2 * 1103])
      assert.deepStrictEqual(
        it.seen.map(({ body, headers }) => [body.length, headers.join(" ").replaceAll("Host", "host")]),
        [
          [parts.join("").length, "host a.example x-mine 1 Transfer-Encoding chunked Connection keep-alive"],
          [3, "host a.example content-length 3 Connection keep-alive"],
          [0, "host a.example Content-Length 0 Connection keep-alive"]
        ]
      )
    })
  )

  it.live("serves several requests on a connection, and `Expect: 100-continue`", () =>
    Effect.gen(function* () {
      let close: (() => void) | undefined
      const it = yield* world((request, response) => {
        if (request.url === "/last") close = () => request.socket.destroy()
        if (request.url === "/early") response.writeHead(401)
        response.end(request.url)
      })
      const get = (path: string) => `GET ${path} HTTP/1.1\r\n${host}\r\nX-Key: ${it.first}\r\n\r\n`
      const port = yield* it.to("a.example")
      const lines = yield* Effect.callback<ReadonlyArray<string>>((resume) => {
        let text = ""
        const socket = tls.connect({ port, servername: "a.example", ca: [...it.ca], ALPNProtocols: ["h2", "http/1.1"] })
        const then = [
          () => socket.write(get("/1")),
          // Two requests at once; the answers keep their order.
          () => socket.write(get("/2") + get("/3")),
          () => {},
          () => socket.write(`POST /4 HTTP/1.1\r\n${host}\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n`),
          () => socket.write("abc"),
          () => socket.write(get("/last")),
          () => close?.()
        ]
        socket.on("secureConnect", () => {
          assert.strictEqual(socket.alpnProtocol, "http/1.1")
          then.shift()?.()
        })
        socket.on("data", (piece: Buffer) => {
          text += piece.toString()
          for (const done of ["/1", "/2", "/3", "Continue", "/4", "/last"])
            if (text.split("\r\n\r\n").at(-1) === done || (done === "Continue" && text.endsWith(`${done}\r\n\r\n`)))
              then.shift()?.()
        })
        // A connection that the server closes between requests ends in order.
        socket.on("close", (failed) =>
          resume(Effect.succeed([String(failed), ...(text.match(/\/\w+(?=HTTP|$)/g) ?? [])]))
        )
        socket.on("error", () => {})
      })
      assert.deepStrictEqual(lines, ["false", "/1", "/2", "/3", "/4", "/last"])
      assert.deepStrictEqual(
        it.seen.map(({ line }) => line),
        ["GET /1", "GET /2", "GET /3", "POST /4", "GET /last"]
      )
      assert.strictEqual(it.seen[3]?.body, "abc")
      assert.strictEqual(it.egress.ledger.latest().length, 1)
      assert.isNull(it.last().reason)
      // When a server answers before the body is complete, the connection ends after the answer.
      const early = yield* raw(
        it,
        "a.example",
        `POST /early HTTP/1.1\r\n${host}\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n`
      )
      assert.match(early, /^HTTP\/1.1 401 [^]*Connection: close[^]*\/early/)
    })
  )

  it.live("lets a connection become a WebSocket", () =>
    Effect.gen(function* () {
      const it = yield* world()
      const ask = (path: string, rest = "") =>
        `GET ${path} HTTP/1.1\r\n${host}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nX-Key: ${it.first}\r\n\r\n${rest}`
      const port = yield* it.to("a.example")
      const text = yield* Effect.callback<string>((resume) => {
        let text = ""
        const socket = tls.connect({ port, servername: "a.example", ca: [...it.ca] }, () =>
          socket.write(ask("/", "at once "))
        )
        socket.on("data", (piece: Buffer) => {
          text += piece.toString()
          if (text.endsWith("at once ")) socket.write(`${it.first} later`)
          if (text.endsWith("later")) socket.end()
        })
        socket.on("error", () => {})
        socket.on("close", () => resume(Effect.succeed(text)))
      })
      assert.match(text, /^HTTP\/1.1 101 [^]*\r\n\r\nhi at once exec-sandbox-secret-[0-9a-f]+ later$/)
      assert.match(yield* raw(it, "a.example", ask("/no")), /^HTTP\/1.1 403 Forbidden\r\n[^]*\r\n\r\nno$/)
      assert.deepStrictEqual(
        it.seen.map(({ headers, line }) => [line, headers.slice(2).join(" ")]),
        ["/", "/no"].map((path) => [`upgrade ${path}`, `X-Key ${first} Connection Upgrade Upgrade websocket`])
      )
      assert.isTrue(it.egress.ledger.latest().every(({ decision, reason }) => decision === "allow" && reason === null))
    })
  )

  it.live("trusts only the certificates that the host trusts", () =>
    Effect.gen(function* () {
      const it = yield* world()
      for (const [name, reason] of [
        ["untrusted.wide.example", "UNABLE_TO_VERIFY_LEAF_SIGNATURE"],
        ["other.wide.example", "ERR_TLS_CERT_ALTNAME_INVALID"]
      ] as const) {
        assert.strictEqual(yield* ask(it, name, { to: 8443, headers: { host: name } }), "ECONNRESET")
        assert.deepInclude(it.last(), { decision: "allow", reason: `TLS with the server: ${reason}` })
      }
      // The guest does not trust the session's authority, sends no or another server name, or offers HTTP/2 only.
      const port = yield* it.to("a.example")
      const met = (options: tls.ConnectionOptions) =>
        Effect.callback<void>((resume) => {
          const socket = tls.connect({ port, servername: "a.example", ca: [...it.ca], ...options })
          socket.on("error", () => {})
          socket.on("close", () => resume(Effect.void))
        })
      yield* met({ ca: [] })
      assert.strictEqual(it.last().decision, "allow")
      yield* met({ ALPNProtocols: ["h2"] })
      assert.deepInclude(it.last(), { decision: "deny", rule: "http-version", reason: 'TLS for "h2" only' })
      yield* met({ servername: "b.example" })
      assert.deepInclude(it.last(), { decision: "deny", rule: "sni", reason: 'TLS for "b.example"' })
      yield* met({ servername: "" })
      assert.deepInclude(it.last(), { decision: "deny", rule: "sni", reason: "TLS without a server name" })
      assert.deepStrictEqual(it.seen, [])
    })
  )

  it.live("buffers little for a side that does not read, and passes on everything when it reads again", () =>
    Effect.gen(function* () {
      const size = 64 * 1024 * 1024
      let upload: http.IncomingMessage | undefined
      let sent = 0
      const it = yield* world((request, response) => {
        if (request.url === "/early") {
          upload = request
          return request.on("end", () => response.end("done")).pause()
        }
        const piece = Buffer.alloc(65_536, "x")
        const more = (): void => {
          while (sent < size) {
            sent += piece.length
            if (!response.write(piece)) return void response.once("drain", more)
          }
          response.end()
        }
        more()
      })
      const port = yield* it.to("a.example")
      const open = (line: string) => {
        const socket = tls.connect({ port, servername: "a.example", ca: [...it.ca] })
        socket.on("error", () => {})
        socket.write(`${line} HTTP/1.1\r\n${host}\r\nConnection: close\r\n`)
        return socket
      }
      const rss = process.memoryUsage().rss
      const up = open("POST /early")
      up.write(`Content-Length: ${size}\r\n\r\n`)
      const piece = Buffer.alloc(65_536, "x")
      for (let at = 0; at < size; at += piece.length) up.write(piece)
      const down = open("GET /")
      down.pause()
      down.write("\r\n")
      while (upload === undefined || sent === 0) yield* Effect.sleep("10 millis")
      const taken = yield* still(() => it.egress.ledger.latest()[0]?.bytesOut ?? 0)
      const given = yield* still(() => sent)
      // The other bytes are in the kernel's buffers of several loopback sockets.
      assert.isBelow(taken, size / 2)
      assert.isBelow(given, size / 2)
      assert.isBelow(process.memoryUsage().rss - rss, 3 * size)
      let body = 0
      upload?.on("data", (bytes: Buffer) => {
        body += bytes.length
      })
      const answer = yield* Effect.callback<string>((resume) => {
        let text = ""
        up.on("data", (bytes: Buffer) => {
          text += bytes.toString()
        })
        up.on("close", () => resume(Effect.succeed(text)))
        upload?.resume()
      })
      assert.match(answer, /done/)
      assert.strictEqual(body, size)
      const received = yield* Effect.callback<number>((resume) => {
        let total = 0
        down.on("data", (bytes: Buffer) => {
          total += bytes.length
        })
        down.on("close", () => resume(Effect.succeed(total)))
        down.resume()
      })
      assert.isAtLeast(received, size)
    })
  )

  it.live("ends with its policy, its session or its guest, and makes room for the next connection", () =>
    Effect.gen(function* () {
      const it = yield* world((request, response) => {
        if (request.url !== "/silent") response.end("fine")
      })
      const port = yield* it.to("a.example")
      const open = Effect.callback<tls.TLSSocket>((resume) => {
        const socket = tls.connect({ port, servername: "a.example", ca: [...it.ca] }, () => {
          socket.write(`GET /silent HTTP/1.1\r\n${host}\r\n\r\n`)
          resume(Effect.succeed(socket))
        })
        socket.on("error", () => {})
      })
      // The ledger has the end of a connection when its room is free.
      const sockets = yield* Effect.all(
        Array.from({ length: 20 }, () => open),
        { concurrency: 8 }
      )
      for (const socket of sockets) socket.destroy()
      while (it.egress.ledger.latest().some(({ reason }) => reason === null)) yield* Effect.sleep("20 millis")
      assert.isTrue(it.egress.ledger.latest().every(({ decision }) => decision === "allow"))
      const cut = yield* open
      yield* it.egress.update(NetworkPolicy.none)
      yield* Effect.callback<void>((resume) => void cut.on("close", () => resume(Effect.void)))
      assert.strictEqual(it.last().reason, "the session's network policy has changed")
      yield* it.egress.update(policy)
      assert.deepInclude(yield* ask(it, "a.example", { headers: { host: "a.example" } }), { status: 200 })
    })
  )
})
