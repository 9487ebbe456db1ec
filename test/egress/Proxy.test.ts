import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as net from "node:net"
import * as Egress from "../../src/egress/Egress.ts"
import { routes } from "../../src/egress/Proxy.ts"
import { Resolver, Unresolved } from "../../src/egress/Resolver.ts"
import { parseHost } from "../../src/network/Target.ts"
import * as NetworkPolicy from "../../src/NetworkPolicy.ts"
import { gateway } from "../support/gateway.ts"
import { listening } from "../support/servers.ts"

/** A proxy behind which every host greets: the requests that it got, and its answers by the host's name. */
const proxy = Effect.gen(function* () {
  const heads: Array<string> = []
  const port = yield* listening(
    net.createServer({ allowHalfOpen: true }, (socket) => {
      socket.on("error", () => {})
      let head = ""
      const onData = (bytes: Buffer): void => {
        head += bytes.toString("latin1")
        if (!head.endsWith("\r\n\r\n")) return
        heads.push(head)
        socket.off("data", onData)
        if (head.includes("forbidden")) return void socket.end("HTTP/1.1 403 Forbidden\r\n\r\nno")
        if (head.includes("garbage")) return void socket.end("SSH-2.0-x\r\n\r\n")
        if (head.includes("closing")) return void socket.destroy()
        if (head.includes("endless")) return void socket.write("x".repeat(20_000))
        socket.write("HTTP/1.1 200 Connection established\r\nVia: it\r\n\r\nhello ")
        socket.pipe(socket)
      }
      socket.on("data", onData)
    })
  )
  return { heads, port }
})

/** What a connection of the guest receives that sends text and ends. */
const say = (egress: Egress.Egress, host: string, port: number, text: string) =>
  Effect.flatMap(gateway(egress, host, port), (to) =>
    Effect.callback<string>((resume) => {
      let said = ""
      const socket = net.connect({ port: to, host: "127.0.0.1", allowHalfOpen: true })
      socket.on("data", (bytes) => {
        said += bytes.toString()
      })
      socket.on("error", () => {})
      socket.on("close", () => resume(Effect.succeed(said)))
      socket.on("end", () => socket.end())
      socket.end(text)
    })
  )

/** An egress that resolves two names; the proxy resolves all others. */
const behind = (policy: NetworkPolicy.NetworkPolicy, env: { readonly [name: string]: string } | undefined) =>
  Egress.make(policy).pipe(
    Effect.provideService(NetworkPolicy.ProxyEnvironment, env),
    Effect.provideService(Resolver, (name) => {
      if (name === "public.example") return Effect.succeed(["203.0.113.9"])
      if (name === "inside.example") return Effect.succeed(["203.0.113.9", "10.0.0.7"])
      return Effect.fail(new Unresolved({ code: "ENOTFOUND" }))
    })
  )

const last = (egress: Egress.Egress) => egress.ledger.latest().at(-1)

describe("a host's proxy", () => {
  it.live("carries granted connections, by name, and only if the environment is to be used", () =>
    Effect.gen(function* () {
      const { heads, port } = yield* proxy
      const env = { https_proxy: `http://me:p%40s%s@127.0.0.1:${port}`, HTTP_PROXY: `127.0.0.1:${port}` }
      const egress = yield* behind(NetworkPolicy.allow(["*.example:7", "*.example", "203.0.113.9:7"]), env)
      assert.strictEqual(yield* say(egress, "unknown.example", 7, "there"), "hello there")
      const authorization = Buffer.from("me:p@s%s").toString("base64")
      assert.deepStrictEqual(heads.splice(0), [
        `CONNECT unknown.example:7 HTTP/1.1\r\nHost: unknown.example:7\r\nProxy-Authorization: Basic ${authorization}\r\n\r\n`
      ])
      assert.deepInclude(last(egress), {
        decision: "allow",
        rule: "*.example:7",
        bytesIn: 11,
        bytesOut: 5,
        reason: null
      })
      yield* say(egress, "public.example", 80, "x")
      yield* say(egress, "203.0.113.9", 7, "x")
      assert.deepStrictEqual(
        heads.splice(0).map((head) => head.split("\r\n", 1)[0]),
        ["CONNECT public.example:80 HTTP/1.1", "CONNECT 203.0.113.9:7 HTTP/1.1"]
      )

      const closed = yield* behind(NetworkPolicy.allow(["*.example:7"]), undefined)
      assert.strictEqual(yield* say(closed, "unknown.example", 7, "x"), "")
      assert.strictEqual(last(closed)?.reason, "ENOTFOUND")
      assert.deepStrictEqual(heads, [])
    })
  )

  it.live("gets no refused connection, nor one to a name that this host resolves to a private address", () =>
    Effect.gen(function* () {
      const { heads, port } = yield* proxy
      const near = yield* listening(net.createServer((socket) => void socket.end("near")))
      const env = { HTTPS_PROXY: `http://127.0.0.1:${port}` }
      const egress = yield* behind(NetworkPolicy.all([`host:${near}`]), env)
      for (const [host, rule] of [
        ["inside.example", "private"],
        ["10.0.0.7", "private"],
        ["169.254.169.254", "metadata"],
        ["127.0.0.1", "loopback"],
        ["localhost", "loopback"]
      ] as const) {
        assert.strictEqual(yield* say(egress, host, 443, "x"), "", host)
        assert.deepInclude(last(egress), { decision: "deny", rule }, host)
      }
      assert.strictEqual(yield* say(egress, "host", near, ""), "near")
      assert.deepStrictEqual(heads, [])
    })
  )

  it.live("that refuses makes the host unreachable, and its answer is in the ledger", () =>
    Effect.gen(function* () {
      const { port } = yield* proxy
      const rules = NetworkPolicy.allow(["*.example"])
      const egress = yield* behind(rules, { HTTPS_PROXY: `http://127.0.0.1:${port}` })
      for (const [host, reason] of [
        ["forbidden.example", "the proxy answers 403"],
        ["garbage.example", "the proxy answers no HTTP"],
        ["closing.example", "the proxy has closed the connection"],
        ["endless.example", "the proxy does not answer with HTTP"]
      ] as const) {
        assert.strictEqual(yield* say(egress, host, 443, "x"), "", host)
        assert.deepInclude(last(egress), { decision: "allow", rule: "*.example", reason })
      }
      const nobody = yield* behind(rules, { HTTPS_PROXY: "socks5://127.0.0.1:1" })
      yield* say(nobody, "a.example", 443, "x")
      assert.strictEqual(last(nobody)?.reason, "the proxy must be http://HOST:PORT")
    })
  )

  it("is not used for the hosts in NO_PROXY", () => {
    const cases: ReadonlyArray<readonly [noProxy: string, target: string, port: number, direct: boolean]> = [
      ["", "a.example", 443, false],
      ["*", "a.example", 443, true],
      ["a.example", "A.example.", 443, true],
      ["a.example", "x.a.example", 443, true],
      ["a.example", "xa.example", 443, false],
      [".a.example, b.example", "x.a.example", 443, true],
      ["*.a.example b.example", "b.example", 8443, true],
      ["a.example:8443", "a.example", 8443, true],
      ["a.example:8443", "a.example", 443, false],
      ["10.0.0.0/8", "10.1.2.3", 5432, true],
      ["10.0.0.0/8", "11.1.2.3", 5432, false],
      ["fd00::/8", "fd00::1", 443, true],
      ["10.1.2.3:80", "10.1.2.3", 81, false],
      ["10.1.2.3", "10.1.2.3", 81, true],
      ["nonsense/, :", "a.example", 443, false]
    ]
    for (const [no_proxy, text, port, direct] of cases) {
      const host = parseHost(text)
      if (host === undefined) return assert.fail(text)
      const found = routes({ HTTPS_PROXY: "http://p.example:3128", no_proxy })({ host, port })
      assert.strictEqual(found === undefined, direct, `${no_proxy} ${text}:${port}`)
      assert.strictEqual(found?.via?.host, direct ? undefined : "p.example")
    }
  })
})
