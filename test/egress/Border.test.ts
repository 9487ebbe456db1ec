import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { execFileSync } from "node:child_process"
import { X509Certificate } from "node:crypto"
import * as fs from "node:fs"
import * as net from "node:net"
import { join } from "node:path"
import * as SessionAuthority from "../../src/egress/SessionAuthority.ts"
import { ask, first, type Seen, second, world } from "../support/border.ts"
import { certificates } from "../support/servers.ts"

const header = ({ headers }: Seen, name: string): ReadonlyArray<string> =>
  headers.flatMap((it, at) => (at % 2 === 0 && it.toLowerCase() === name ? [headers[at + 1] ?? ""] : []))

const basic = (user: string, password: string): string =>
  `Basic ${Buffer.from(`${user}:${password}`).toString("base64")}`

describe("SessionAuthority", () => {
  it("its certificates are strictly valid, now, and for one name", () => {
    let now = Date.UTC(2049, 11, 30)
    const authority = SessionAuthority.make(() => now)
    const ca = new X509Certificate(authority.certificate)
    assert.isTrue(ca.ca)
    const long = `${"l".repeat(60)}.example`
    for (const name of ["a.example", long]) {
      const { cert, key } = authority.identity(name)
      const leaf = new X509Certificate(cert)
      assert.isTrue(leaf.verify(ca.publicKey) && leaf.checkIssued(ca) && leaf.checkPrivateKey(key) && !leaf.ca)
      assert.strictEqual(leaf.checkHost(name), name)
      assert.isUndefined(leaf.checkHost("b.example"))
      assert.strictEqual(leaf.validToDate.getTime() - leaf.validFromDate.getTime(), 4 * 86_400_000)
    }
    assert.strictEqual(authority.identity(long).cert, authority.identity(long).cert)
    const kept = authority.identity(long).cert
    now += 2.5 * 86_400_000
    assert.notStrictEqual(authority.identity(long).cert, kept)
    assert.notStrictEqual(SessionAuthority.make(() => now).certificate, authority.certificate)
  })

  it.live("its certificates pass OpenSSL's strict verification", () =>
    Effect.gen(function* () {
      const { directory } = yield* certificates([])
      const authority = SessionAuthority.make(Date.now)
      fs.writeFileSync(join(directory, "ca.pem"), authority.certificate)
      fs.writeFileSync(join(directory, "leaf.pem"), authority.identity("a.example").cert)
      const line = "verify -x509_strict -purpose sslserver -verify_hostname a.example -CAfile ca.pem leaf.pem"
      const said = execFileSync("openssl", line.split(" "), { cwd: directory, encoding: "utf8" })
      assert.strictEqual(said, "leaf.pem: OK\n")
    })
  )
})

describe("Border", () => {
  it.live("replaces a placeholder anywhere in the headers of requests to the secret's hosts", () =>
    Effect.gen(function* () {
      const it = yield* world()
      const headers = {
        host: "a.example",
        authorization: `Bearer ${it.first}`,
        "x-a": it.first,
        "x-b": `a=${it.first};b=${it.first}`,
        cookie: "k=v"
      }
      const done = yield* ask(it, "a.example", { path: `/${it.first}`, method: "POST", headers, body: it.first })
      assert.deepInclude(done, { status: 200, body: "fine" })
      const [seen] = it.seen
      assert.isDefined(seen)
      if (seen === undefined) return
      // In the URL and the body it is not replaced.
      assert.deepInclude(seen, { line: `POST /${it.first}`, body: it.first })
      assert.deepStrictEqual(seen.headers.slice(0, 10), [
        "host",
        "a.example",
        "authorization",
        `Bearer ${first}`,
        "x-a",
        first,
        "x-b",
        `a=${first};b=${first}`,
        "cookie",
        "k=v"
      ])
      for (const authorization of [basic("user", it.first), basic(it.first, ""), basic("", `${it.first}:x`)]) {
        yield* ask(it, "a.example", { headers: { host: "A.example:443", authorization } })
      }
      assert.deepStrictEqual(
        it.seen.slice(1).flatMap((it) => header(it, "authorization")),
        [basic("user", first), basic(first, ""), basic("", `${first}:x`)]
      )
      // Replaced only in the named header.
      yield* ask(it, "b.example", { headers: { host: "b.example", "x-KEY": it.second, "x-other": it.second } })
      assert.deepStrictEqual(it.seen.at(-1)?.headers.slice(2, 6), ["x-KEY", second, "x-other", it.second])
      yield* ask(it, "x.wide.example", { to: 8443, headers: { host: "x.wide.example:8443", "x-a": it.first } })
      assert.deepStrictEqual(it.seen.at(-1)?.headers.slice(2, 4), ["x-a", first])
      const used = it.egress.ledger.latest()
      assert.deepStrictEqual(
        used.map(({ secrets }) => secrets),
        [["FIRST"], ["FIRST"], ["FIRST"], ["FIRST"], ["SECOND"], ["FIRST"]]
      )
      assert.isTrue(used.every(({ bytesIn, bytesOut }) => bytesIn > 500 && bytesOut > 500))
      assert.notInclude(JSON.stringify(used), first)
    })
  )

  it.live("refuses a placeholder sent anywhere else, and names its secret", () =>
    Effect.gen(function* () {
      const it = yield* world()
      const foreign = it.second
      const inBody = ["x".repeat(70_000) + foreign.slice(0, 7), foreign.slice(7)]
      const coded = Buffer.from(`{"k":"${foreign}"}`).toString("base64")
      const tries: ReadonlyArray<Parameters<typeof ask>[2]> = [
        { headers: { host: "a.example", "x-key": foreign } },
        { headers: { host: "a.example", authorization: basic("user", foreign) } },
        { headers: { host: "a.example" }, path: `/?k=${foreign}` },
        { headers: { host: "a.example", [foreign]: "x" } },
        { headers: { host: "a.example" }, method: "POST", body: inBody },
        { headers: { host: "a.example" }, method: "POST", body: coded }
      ]
      for (const options of tries) {
        assert.strictEqual(yield* ask(it, "a.example", options), "ECONNRESET")
        assert.deepInclude(it.last(), { decision: "deny", rule: "secret", reason: "the placeholder of SECOND" })
      }
      const strange = `exec-sandbox-secret-${"0".repeat(40)}`
      const stale = { headers: { host: "a.example", authorization: `Bearer ${strange}` } }
      assert.strictEqual(yield* ask(it, "a.example", stale), "ECONNRESET")
      assert.strictEqual(it.last().reason, 'a placeholder of another session in "authorization"')
      assert.deepStrictEqual(it.seen, [])

      // In plain text to any host, also in pieces.
      for (const [port, bytes] of [
        [80, `GET / HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer ${it.first}\r\n\r\n`],
        [80, `GET / HTTP/1.1\r\nHost: a.example\r\nAuthorization: ${basic("me", it.first)}\r\n\r\n`],
        [7, it.first]
      ] as const) {
        const to = yield* it.to("a.example", port)
        yield* Effect.callback<void>((resume) => {
          const socket = net.connect({ port: to, noDelay: true })
          socket.on("error", () => {})
          socket.on("close", () => resume(Effect.void))
          const pieces = [bytes.slice(0, -30), bytes.slice(-30, -29), bytes.slice(-29)]
          const next = (): void => {
            const piece = pieces.shift()
            if (piece !== undefined) socket.write(piece, () => setTimeout(next, 5))
          }
          next()
        })
        assert.deepInclude(it.last(), { decision: "deny", rule: "secret", reason: "the placeholder of FIRST" })
      }
      assert.notInclude(it.plain(), it.first)
      const refused = it.egress.ledger.watch()
      assert.strictEqual(yield* ask(it, "a.example", tries[0]), "ECONNRESET")
      assert.deepInclude(refused.refused()[0], {
        errno: "ECONNRESET",
        grant: 'send SECOND over TLS to one of its hosts, or add "a.example:443" to them'
      })
      // TLS of a host without secrets is not terminated.
      const through = yield* ask(it, "c.example", { headers: { host: "c.example", "x-key": it.second } })
      assert.deepInclude(through, { status: 200 })
      assert.deepStrictEqual(
        it.seen.flatMap((seen) => header(seen, "x-key")),
        [it.second]
      )
    })
  )
})
