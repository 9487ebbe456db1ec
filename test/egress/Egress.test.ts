/** What the egress grants and refuses, and how it passes on bytes. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as http from "node:http"
import * as net from "node:net"
import { Dialler } from "../../src/egress/Dial.ts"
import * as Egress from "../../src/egress/Egress.ts"
import { Finder } from "../../src/egress/Registries.ts"
import { Resolver, Unresolved } from "../../src/egress/Resolver.ts"
import * as NetworkPolicy from "../../src/NetworkPolicy.ts"
import { listening } from "../support/servers.ts"
import { attempts, clientHello, connect, received, refusedWith, shouting, world } from "../support/egress.ts"

describe("Egress", () => {
  it.live("connects to a granted host, with half-close, and counts the bytes", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      const egress = yield* world(NetworkPolicy.allow(["a.example:7"]), server.port, { "a.example": ["203.0.113.9"] })
      const guest = connect(egress, "A.Example", 7)
      yield* guest.until(() => guest.notes.length > 0)
      assert.deepStrictEqual(guest.notes, [{ event: "connected" }])
      guest.receiver.data(Buffer.from("hello "))
      yield* guest.until(() => guest.text() === "HELLO ")
      guest.receiver.end()
      yield* guest.until(() => guest.ending() === "close")
      assert.strictEqual(guest.text(), "HELLO BYE")
      assert.strictEqual(guest.granted, 6)
      assert.deepStrictEqual(egress.dialled, ["203.0.113.9:7"])
      assert.deepStrictEqual(egress.ledger.latest(), [
        { name: "a.example", port: 7, decision: "allow", rule: "a.example:7", reason: null, bytesIn: 9, bytesOut: 6 }
      ])
    })
  )

  it.live("refuses at once what is not granted, without asking a resolver", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      const egress = yield* world(NetworkPolicy.allow(["a.example"]), server.port, { "a.example": ["203.0.113.9"] })
      const targets: ReadonlyArray<readonly [host: string, port: number, rule: string]> = [
        ["b.example", 443, "not-granted"],
        ["a.example", 22, "not-granted"],
        ["a.example.b.example", 443, "not-granted"],
        ["127.0.0.1", server.port, "loopback"],
        ["10.0.0.1", 80, "private"],
        ["169.254.169.254", 80, "metadata"],
        ["100.64.0.1", 80, "carrier"],
        ["host", server.port, "loopback"],
        ["0x7f000001", 80, "invalid-name"],
        ["a.example", 0, "invalid-name"]
      ]
      for (const [host, port] of targets) {
        const guest = connect(egress, host, port)
        assert.strictEqual(refusedWith(guest), "ENETUNREACH", host)
        assert.isDefined(guest.ending())
      }
      assert.deepStrictEqual(
        attempts(egress),
        targets.map(([host, port, rule]) => `deny ${host}:${port} ${rule}`)
      )
      assert.deepStrictEqual(egress.asked, [])
      assert.deepStrictEqual(egress.dialled, [])
    })
  )

  it.live("refuses a granted name with a private address, even if it had a public one before", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      let answer: ReadonlyArray<string> = ["203.0.113.9"]
      const policy = NetworkPolicy.allow(["r.example:7", "s.example:7", "both.example:7", "10.9.0.0/16:7"])
      const egress = yield* world(policy, server.port, {
        "r.example": () => answer,
        "s.example": ["::ffff:7f00:1", "169.254.169.254"],
        "both.example": ["192.168.0.1", "10.9.0.1"]
      })
      const first = connect(egress, "r.example", 7)
      yield* first.until(() => first.notes.length > 0)
      assert.deepStrictEqual(first.notes, [{ event: "connected" }])
      // The resolver's new answer counts when the old one expires; until then the egress dials the address that it judged.
      answer = ["127.0.0.1"]
      const fresh = yield* world(policy, server.port, { "r.example": () => answer })
      const rebound = connect(fresh, "r.example", 7)
      yield* rebound.until(() => rebound.notes.length > 0)
      assert.strictEqual(refusedWith(rebound), "ENETUNREACH")
      assert.deepStrictEqual(attempts(fresh), ["deny r.example:7 loopback"])
      assert.strictEqual(fresh.ledger.latest()[0]?.reason, "it leads to 127.0.0.1")
      const mapped = connect(egress, "s.example", 7)
      yield* mapped.until(() => mapped.notes.length > 0)
      assert.strictEqual(refusedWith(mapped), "ENETUNREACH")
      const both = connect(egress, "both.example", 7)
      yield* both.until(() => both.notes.length > 0)
      assert.deepStrictEqual(egress.dialled, ["203.0.113.9:7", "10.9.0.1:7"])
    })
  )

  it.live("reports why a granted host could not be reached", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      const egress = yield* Egress.make(NetworkPolicy.allow(["none.example", `host:${server.port}`, "host:1"]))
      const unknown = connect(egress, "none.example", 443)
      const service = connect(egress, "host", server.port)
      const closed = connect(egress, "host", 1)
      yield* closed.until(() => closed.notes.length > 0)
      assert.strictEqual(refusedWith(closed), "ECONNREFUSED")
      yield* service.until(() => service.notes.length > 0)
      assert.deepStrictEqual(service.notes, [{ event: "connected" }])
      yield* unknown.until(() => unknown.notes.length > 0)
      assert.strictEqual(refusedWith(unknown), "EHOSTUNREACH")
      assert.strictEqual(egress.ledger.latest()[0]?.decision, "allow")
    }).pipe(Effect.provideService(Resolver, () => Effect.fail(new Unresolved({ code: "ENOTFOUND" }))))
  )

  it.live("passes only TLS with the granted name on port 443, and no byte before it", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      const egress = yield* world(NetworkPolicy.allow(["a.example", "b.example"]), server.port, {
        "a.example": ["203.0.113.9"]
      })
      const right = connect(egress, "a.example", 443)
      yield* right.until(() => right.notes.length > 0)
      const hello = yield* clientHello("A.example")
      for (const byte of hello) right.receiver.data(Buffer.from([byte]))
      yield* right.until(() => right.text().length >= hello.length)
      const wrong: ReadonlyArray<readonly [bytes: Buffer, reason: string]> = [
        [yield* clientHello("b.example"), 'TLS for "b.example"'],
        [yield* clientHello(undefined), "TLS without a server name"],
        // A name that equals the granted one only when read as Latin-1.
        [Buffer.from(hello.toString("latin1").replace("A.example", "\xaa.example"), "latin1"), 'TLS for "ª.example"'],
        [Buffer.from("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"), "it is not TLS"],
        [Buffer.concat([hello.subarray(0, 5), Buffer.alloc(65_536)]), "TLS that does not begin with a ClientHello"]
      ]
      for (const [bytes, reason] of wrong) {
        const guest = connect(egress, "a.example", 443)
        yield* guest.until(() => guest.notes.length > 0)
        guest.receiver.data(bytes)
        assert.strictEqual(guest.ending(), `closed: ${reason}`)
        const last = egress.ledger.latest().at(-1)
        assert.deepStrictEqual(last, {
          name: "a.example",
          port: 443,
          decision: "deny",
          rule: "sni",
          reason,
          bytesIn: 0,
          bytesOut: 0
        })
      }
      assert.strictEqual(server.seen.join("").length, hello.length)
    })
  )

  it.live("calls `ask` once for each target, with a time limit", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      const questions: Array<string> = []
      const ask: NetworkPolicy.Ask = ({ target }) => {
        questions.push(target)
        if (target === "slow.example:7") return Effect.never
        if (target === "broken.example:7") return Effect.die("no")
        return Effect.succeed({ allow: target === "yes.example:7", reason: `because of ${target}` })
      }
      const names = { "yes.example": ["203.0.113.9"], "private.example": ["10.0.0.1"] }
      const egress = yield* world(NetworkPolicy.allow([], { ask, askMs: 50 }), server.port, names)
      const hosts = ["yes.example", "yes.example", "no.example", "no.example", "slow.example", "broken.example"]
      const guests = hosts.map((host) => connect(egress, host, 7))
      for (const guest of guests) yield* guest.until(() => guest.notes.length > 0)
      assert.deepStrictEqual(attempts(egress), [
        "allow yes.example:7 ask: because of yes.example:7",
        "allow yes.example:7 ask: because of yes.example:7",
        "deny no.example:7 ask: because of no.example:7",
        "deny no.example:7 ask: because of no.example:7",
        "deny slow.example:7 ask: no answer in time",
        "deny broken.example:7 ask: it failed"
      ])
      assert.deepStrictEqual(questions, ["yes.example:7", "no.example:7", "slow.example:7", "broken.example:7"])
    })
  )

  it.live("an answer of `ask` is used even if the connection that caused the question is gone", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      const answer = yield* Deferred.make<NetworkPolicy.Answer>()
      let asked = 0
      const ask: NetworkPolicy.Ask = () => {
        asked++
        return Deferred.await(answer)
      }
      const egress = yield* world(NetworkPolicy.allow([], { ask }), server.port, { "a.example": ["203.0.113.9"] })
      connect(egress, "a.example", 7).receiver.gone()
      const second = connect(egress, "a.example", 7)
      yield* Deferred.succeed(answer, { allow: true, reason: "fine" })
      yield* second.until(() => second.notes.length > 0)
      assert.deepStrictEqual(second.notes, [{ event: "connected" }])
      assert.strictEqual(asked, 1)
      assert.strictEqual(egress.ledger.latest()[0]?.reason, "given up")
    })
  )

  it.live("limits the questions to `ask` at a time, also those whose connections are gone", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      let asked = 0
      const ask: NetworkPolicy.Ask = () =>
        Effect.andThen(
          Effect.sync(() => asked++),
          Effect.never
        )
      const egress = yield* world(NetworkPolicy.allow([], { ask }), server.port, {})
      for (let n = 0; n < 256; n++) {
        const guest = connect(egress, `n${n}.example`, 7)
        while (asked <= n) yield* Effect.yieldNow
        guest.receiver.gone()
      }
      const next = connect(egress, "next.example", 7)
      yield* next.until(() => next.notes.length > 0)
      assert.strictEqual(refusedWith(next), "ENETUNREACH")
      assert.strictEqual(attempts(egress).at(-1), "deny next.example:7 ask: too many questions at once")
      assert.strictEqual(asked, 256)
    })
  )

  it.live("a connection that completes after a change of policy needs the grant of the new policy", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      const dial = yield* Dialler
      const dialling = yield* Deferred.make<void>()
      const go = yield* Deferred.make<void>()
      const egress = yield* Egress.make(NetworkPolicy.allow(["a.example:7", "b.example:7"])).pipe(
        Effect.provideService(Dialler, () =>
          Effect.andThen(
            Effect.andThen(Deferred.succeed(dialling, undefined), Deferred.await(go)),
            dial("127.0.0.1", server.port)
          )
        ),
        Effect.provideService(Resolver, () => Effect.succeed(["203.0.113.9"]))
      )
      const a = connect(egress, "a.example", 7)
      const b = connect(egress, "b.example", 7)
      yield* Deferred.await(dialling)
      yield* egress.update(NetworkPolicy.allow(["b.example:7"]))
      yield* Deferred.succeed(go, undefined)
      for (const guest of [a, b]) yield* guest.until(() => guest.notes.length > 0)
      assert.strictEqual(refusedWith(a), "ENETUNREACH")
      assert.deepStrictEqual(b.notes, [{ event: "connected" }])
      assert.deepStrictEqual(attempts(egress), ["deny a.example:7 not-granted", "allow b.example:7 b.example:7"])
    })
  )

  it.live("a connection whose policy allows any name in TLS ends with that policy", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      const egress = yield* world(NetworkPolicy.all(), server.port, { "a.example": ["203.0.113.9"] })
      const before = connect(egress, "a.example", 443)
      const other = connect(egress, "a.example", 80)
      for (const guest of [before, other]) yield* guest.until(() => guest.notes.length > 0)
      before.receiver.data(yield* clientHello("b.example"))
      yield* egress.update(NetworkPolicy.allow(["a.example"]))
      assert.strictEqual(before.ending(), "closed: the session's network policy has changed")
      assert.isUndefined(other.ending())
      const after = connect(egress, "a.example", 443)
      yield* after.until(() => after.notes.length > 0)
      yield* egress.update(NetworkPolicy.allow(["a.example", "b.example"]))
      assert.isUndefined(after.ending())
    })
  )

  it.live("names of every valid length are distinguished", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      const label = "l".repeat(63)
      const longest = [label, label, label, "l".repeat(61)].join(".")
      assert.lengthOf(longest, 253)
      const policy = NetworkPolicy.allow([`${longest}:7`, `*.${label}:7`])
      const egress = yield* world(policy, server.port, { [longest]: ["203.0.113.9"], [`a.${label}`]: ["203.0.113.9"] })
      for (const host of [longest, `a.${label}`, `${longest}l`, `a.${label}l`, `${longest.slice(1)}`]) {
        const guest = connect(egress, host, 7)
        yield* guest.until(() => guest.notes.length > 0)
      }
      assert.deepStrictEqual(
        egress.ledger.latest().map(({ decision, rule }) => `${decision} ${rule}`),
        [`allow ${longest}:7`, `allow *.${label}:7`, "deny invalid-name", "deny invalid-name", "deny not-granted"]
      )
    })
  )

  it.live("limits lookups at a time, and drops those whose connections are gone", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      const slow = yield* Deferred.make<void>()
      const looking: Array<string> = []
      const egress = yield* Egress.make(NetworkPolicy.allow(["*.example:7"])).pipe(
        Effect.provideService(Dialler, yield* Dialler),
        Effect.provideService(Resolver, (name) => {
          looking.push(name)
          return Effect.as(Deferred.await(slow), ["127.0.0.1"])
        })
      )
      const names = Array.from({ length: 20 }, (_, n) => `n${n}.example`)
      for (const name of names) {
        const guest = connect(egress, name, 7)
        for (let turn = 0; turn < 20; turn++) yield* Effect.yieldNow
        guest.receiver.gone()
      }
      assert.deepStrictEqual(looking, names.slice(0, 2))
      yield* Deferred.succeed(slow, undefined)
      const next = connect(egress, "next.example", 7)
      yield* next.until(() => next.notes.length > 0)
      assert.deepStrictEqual(looking, [...names.slice(0, 2), "next.example"])
      assert.strictEqual(attempts(egress).at(-1), "deny next.example:7 loopback")
      assert.strictEqual(server.seen.length, 0)
    })
  )

  it.live("asks a registry for the host of its files when a connection to that host is tried", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      let asked = 0
      const index = yield* listening(
        http.createServer((_, response) => {
          asked++
          response.writeHead(200, { "content-type": "application/json" })
          response.end('{"files":[{"url":"http://files.example:7/x"},{"url":"http://inside.example:7/y"}]}')
        })
      )
      const url = (text: string) => ({ url: new URL(text), page: new URL(`http://127.0.0.1:${index}/pip/`) })
      const names = {
        "index.example": ["10.0.0.1"],
        "files.example": ["203.0.113.9"],
        "inside.example": ["10.0.0.1"]
      }
      const egress = yield* world(NetworkPolicy.packages(["python"], ["own.example:7"]), server.port, names).pipe(
        Effect.provideService(Finder, () => ({
          indexes: [url("http://index.example:7/simple")],
          env: { A: "b" },
          trusted: { env: {}, credentials: [] },
          withheld: []
        }))
      )
      const reach = Effect.fnUntraced(function* (host: string) {
        const guest = connect(egress, host, 7)
        yield* guest.until(() => guest.notes.length > 0)
      })
      yield* reach("index.example")
      assert.strictEqual(asked, 0)
      for (const host of ["other.example", "files.example", "inside.example"]) yield* reach(host)
      assert.strictEqual(asked, 1)
      assert.deepStrictEqual(attempts(egress), [
        "allow index.example:7 packages: index.example:7",
        "deny other.example:7 not-granted",
        "allow files.example:7 packages: files.example:7",
        "deny inside.example:7 private"
      ])
      assert.strictEqual(egress.grant(NetworkPolicy.packages())?.env["A"], "b")
      assert.isUndefined(egress.grant(NetworkPolicy.all())?.env["A"])
    })
  )

  it.live("applies a changed policy, also to open connections", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      const names = { "a.example": ["203.0.113.9"], "b.example": ["203.0.113.9"] }
      const egress = yield* world(NetworkPolicy.all(), server.port, names)
      const a = connect(egress, "a.example", 7)
      const b = connect(egress, "b.example", 7)
      yield* a.until(() => a.notes.length > 0)
      yield* b.until(() => b.notes.length > 0)
      yield* egress.update(NetworkPolicy.allow(["b.example:7"]))
      assert.strictEqual(a.ending(), "closed: the session's network policy has changed")
      assert.isUndefined(b.ending())
      assert.strictEqual(refusedWith(connect(egress, "a.example", 7)), "ENETUNREACH")
      b.receiver.data(Buffer.from("still here"))
      yield* b.until(() => b.text() === "STILL HERE")
      yield* egress.update(NetworkPolicy.none)
      assert.isDefined(b.ending())
    })
  )

  it.live("stops reading for a guest that does not read, and continues when it does", () =>
    Effect.gen(function* () {
      const size = 20 * 1024 * 1024
      const done = yield* Deferred.make<void>()
      const server = net.createServer((socket) => {
        socket.on("error", () => {})
        socket.end(Buffer.alloc(size, "x"), () => Deferred.doneUnsafe(done, Effect.void))
      })
      const port = yield* Effect.callback<number>((resume) => {
        server.listen(0, "127.0.0.1", () => {
          const address = server.address()
          if (typeof address === "object" && address !== null) resume(Effect.succeed(address.port))
        })
      })
      yield* Effect.addFinalizer(() => Effect.sync(() => server.close()))
      const egress = yield* Egress.make(NetworkPolicy.allow([`host:${port}`]))
      const guest = connect(egress, "host", port)
      guest.room = 100_000
      yield* guest.until(() => guest.room === 0)
      yield* Effect.sleep("200 millis")
      assert.isFalse(yield* Deferred.isDone(done))
      assert.strictEqual(guest.text().length, 100_000)
      guest.room = undefined
      guest.receiver.writable()
      yield* guest.until(() => guest.ending() !== undefined)
      assert.strictEqual(guest.text().length, size)
    })
  )

  it.live("delivers the remaining bytes after an orderly end of a connection, unless the policy ends it", () =>
    Effect.gen(function* () {
      const size = 20 * 1024 * 1024
      const port = yield* listening(
        net.createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) => {
          sockets.push(socket.end())
        })
      )
      const sockets: Array<net.Socket> = []
      const egress = yield* Egress.make(NetworkPolicy.allow([`host:${port}`]))
      for (let at = 0; at < 2; at++) {
        const guest = connect(egress, "host", port)
        yield* guest.until(() => guest.ending() === "end")
        guest.receiver.data(Buffer.alloc(size, "x"))
        guest.receiver.end()
        guest.receiver.gone()
      }
      assert.strictEqual(yield* received(sockets[0]), size)
      yield* egress.update(NetworkPolicy.none)
      assert.isBelow(yield* received(sockets[1]), size)
      assert.deepStrictEqual(
        egress.ledger.latest().map(({ reason }) => reason),
        [null, null]
      )
    })
  )

  it.live("limits the number of connections, and each one that ends makes room", () =>
    Effect.gen(function* () {
      const server = yield* shouting
      const egress = yield* world(NetworkPolicy.all(), server.port, { "a.example": ["203.0.113.9"] })
      const guests = Array.from({ length: 10_000 }, () => connect(egress, "a.example", 7))
      for (const guest of guests) yield* guest.until(() => guest.notes.length > 0)
      const refused = guests.filter((guest) => refusedWith(guest) === "ECONNREFUSED")
      assert.strictEqual(refused.length, 10_000 - 256)
      assert.strictEqual(attempts(egress).at(-1), "deny a.example:7 too-many-connections")
      guests[0]?.receiver.gone()
      const next = connect(egress, "a.example", 7)
      yield* next.until(() => next.notes.length > 0)
      assert.deepStrictEqual(next.notes, [{ event: "connected" }])
    })
  )
})
