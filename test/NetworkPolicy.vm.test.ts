/**
 * Networks of real sessions: what programs reach, what is refused, secrets and changed policies. One file, because all tests share
 * one set of servers and one sandbox.
 */
import { assert, layer } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Tracer from "effect/Tracer"
import { execFileSync } from "node:child_process"
import * as http from "node:http"
import * as https from "node:https"
import * as net from "node:net"
import * as tls from "node:tls"
import { Dialler } from "../src/egress/Dial.ts"
import { Resolver, Unresolved } from "../src/egress/Resolver.ts"
import type { Language } from "../src/Execution.ts"
import * as NetworkPolicy from "../src/NetworkPolicy.ts"
import { Receipt } from "../src/Receipt.ts"
import { Sandbox, type PlainSessionOptions } from "../src/Sandbox.ts"
import type { SandboxError } from "../src/SandboxError.ts"
import type { Session } from "../src/Session.ts"
import { ended, failure, stdout } from "./support/executions.ts"
import { certificates, listening } from "./support/servers.ts"

const connect = (host: string) => `
import socket
try:
    print(socket.create_connection((${JSON.stringify(host)}, 443), 30) and "connected")
except OSError as error:
    print(error.errno)`

/** A program takes long to start under emulation, and longer on a busy host. */
const limits = { timeMs: 120_000 }
const patience = 240_000

/** The headers that may have a secret, as the servers received them. */
const heard: Array<string> = []

/** The answer of every host. */
const answer: http.RequestListener = (request, response) => {
  const { headers, url } = request
  const { authorization, "x-key": key } = headers
  if (authorization !== undefined || key !== undefined) heard.push(`${headers.host}${url} ${authorization ?? key}`)
  if (url === "/redirect") return void response.writeHead(302, { location: "http://10.0.0.1/" }).end()
  if (url?.startsWith("/repo/info/refs")) return void response.end(`${"01".repeat(20)}\trefs/heads/main\n`)
  if (url === "/large") return void response.end(Buffer.alloc(2_000_000, "x"))
  let size = 0
  request.on("data", (bytes: Buffer) => {
    size += bytes.length
  })
  request.on("end", () => response.end(`${headers.host} ${url} ${size}`))
}

/** The hosts of these tests, and the servers behind them. */
class World extends Context.Service<
  World,
  {
    readonly plain: number
    readonly silent: number
    /** A session in which the names of these hosts lead to their servers, and no other name resolves. */
    readonly session: (options: PlainSessionOptions) => Effect.Effect<Session, SandboxError, Scope.Scope>
    /** The same for sessions that are forked from it. */
    readonly within: <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
  }
>()("exec-sandbox/test/World") {
  static readonly layer = Layer.effect(
    this,
    Effect.gen(function* () {
      const sandbox = yield* Sandbox
      const certs = yield* certificates(["a.example", "b.example"])
      const { NODE_EXTRA_CA_CERTS = "", SSL_CERT_FILE = "" } = process.env
      Object.assign(process.env, { NODE_EXTRA_CA_CERTS: certs.authority, SSL_CERT_FILE: certs.authority })
      yield* Effect.addFinalizer(() =>
        Effect.sync(() => Object.assign(process.env, { NODE_EXTRA_CA_CERTS, SSL_CERT_FILE }))
      )
      const contexts = new Map([...certs.byName].map(([name, pair]) => [name, tls.createSecureContext(pair)]))
      const secure = yield* listening(
        https.createServer({ SNICallback: (name, done) => done(null, contexts.get(name)) }, answer)
      )
      const plain = yield* listening(http.createServer(answer))
      const silent = yield* listening(net.createServer((socket) => socket.on("error", () => {}).pause()))
      const dial = yield* Dialler
      const within = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
        effect.pipe(
          Effect.provideService(Dialler, (address, port) => {
            if (address === "127.0.0.1") return dial(address, port)
            return dial("127.0.0.1", port === 443 ? secure : port === 9 ? silent : plain)
          }),
          Effect.provideService(Resolver, (name) =>
            name.endsWith(".example")
              ? Effect.succeed([name === "private.example" ? "192.168.7.7" : "203.0.113.80"])
              : Effect.fail(new Unresolved({ code: "ENOTFOUND" }))
          )
        )
      const session = (options: PlainSessionOptions) => within(sandbox.session({ limits, ...options }))
      return { plain, silent, session, within }
    })
  )
}

const bash = (session: Session, code: string) => session.exec({ language: "bash", code })
const python = (session: Session, code: string) => session.exec({ language: "python", code })
const javascript = (session: Session, code: string) => session.exec({ language: "javascript", code })

layer(World.layer.pipe(Layer.provideMerge(Sandbox.layer)), { excludeTestServices: true, timeout: "240 seconds" })(
  "network",
  (it) => {
    it.effect(
      "ordinary programs reach granted hosts by name, over HTTP and TLS",
      () =>
        Effect.gen(function* () {
          const { plain, session } = yield* World
          const policy = NetworkPolicy.allow(["a.example", "*.b.example:8080", `host:${plain}`])
          const it = yield* session({ network: policy })
          const fetched = yield* javascript(
            it,
            `const text = async (url, options) => (await fetch(url, options)).text()
           console.log(await text("https://a.example/js", { method: "POST", body: "x".repeat(1_000_000) }))
           console.log(await text("http://x.b.example:8080/js"), await text("http://host:${plain}/js"))`
          )
          assert.strictEqual(
            fetched.stdout,
            `a.example /js 1000000\nx.b.example:8080 /js 0 host:${plain} /js 0\n`,
            fetched.stderr
          )
          const { egress, egressOmitted } = fetched.receipt
          assert.strictEqual(egressOmitted, 0)
          assert.deepStrictEqual(
            egress?.map(({ decision, name, port, rule }) => [name, port, decision, rule]),
            [
              ["a.example", 443, "allow", "a.example"],
              ["x.b.example", 8080, "allow", "*.b.example:8080"],
              ["host", plain, "allow", `host:${plain}`]
            ]
          )
          assert.isAbove(egress?.[0]?.bytesOut ?? 0, 1_000_000)
          assert.isAbove(egress?.[1]?.bytesIn ?? 0, 20)
          yield* Schema.decodeUnknownEffect(Receipt)(JSON.parse(JSON.stringify(fetched.receipt)))

          // An open connection prevents parking; after waking the session has its network again.
          yield* python(it, 'import socket; held = socket.create_connection(("a.example", 80))')
          assert.isFalse(yield* it.park)
          yield* python(it, "held.close()")
          yield* Effect.repeat(it.park, { until: (parked) => parked, schedule: Schedule.spaced("5 millis") })

          const urllib = `
import urllib.request
print(urllib.request.urlopen("https://a.example/py").read().decode())
print(len(urllib.request.urlopen("http://a.example/large").read()))`
          assert.strictEqual(yield* stdout(python(it, urllib)), "a.example /py 0\n2000000\n")

          const programs = `
curl -sS https://a.example/curl http://a.example/plain; echo
git ls-remote https://a.example/repo`
          assert.strictEqual(
            yield* stdout(bash(it, programs)),
            `a.example /curl 0a.example /plain 0\n${"01".repeat(20)}\trefs/heads/main\n`
          )
        }),
      patience
    )

    it.effect(
      "a refused connection fails at once, and the task that fails for it gets PermissionDenied",
      () =>
        Effect.gen(function* () {
          const { session } = yield* World
          const it = yield* session({ network: NetworkPolicy.allow(["a.example", "private.example:8080"]) })
          const raised = yield* failure(
            python(it, 'import urllib.request\nurllib.request.urlopen("https://other.example/x")')
          )
          assert.deepInclude(raised, {
            _tag: "PermissionDenied",
            operation: "network",
            target: "other.example:443",
            rule: "not-granted",
            grant: 'allow "other.example" in the session\'s network policy'
          })
          assert.strictEqual(raised.receipt.stopReason, "permission")
          const thrown = yield* failure(javascript(it, 'await fetch("http://private.example:8080/")'))
          assert.deepInclude(thrown, { _tag: "PermissionDenied", target: "private.example:8080", rule: "private" })

          // A refusal that a task survives is in its receipt, and does not turn a later failure into PermissionDenied.
          const survived = yield* ended(
            python(
              it,
              `
import socket
errors = []
for family, kind, target in [
    (socket.AF_INET, socket.SOCK_STREAM, ("10.0.0.1", 80)),
    (socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
    (socket.AF_INET, socket.SOCK_STREAM, ("192.168.0.1", 22)),
    (socket.AF_INET, socket.SOCK_STREAM, ("100.64.0.1", 443)),
    (socket.AF_INET, socket.SOCK_STREAM, ("8.8.8.8", 53)),
    (socket.AF_INET, socket.SOCK_STREAM, ("host", 22)),
    (socket.AF_INET, socket.SOCK_STREAM, ("a.example", 22)),
    (socket.AF_INET, socket.SOCK_STREAM, ("xa.example", 443)),
    (socket.AF_INET, socket.SOCK_STREAM, ("a.example.evil.example", 443)),
    (socket.AF_INET, socket.SOCK_STREAM, ("198.18.200.200", 443)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("8.8.8.8", 53)),
    (socket.AF_INET6, socket.SOCK_STREAM, ("2001:4860:4860::8888", 443)),
]:
    s = socket.socket(family, kind)
    s.settimeout(30)
    try:
        s.connect(target)
        errors.append("connected")
    except OSError as error:
        errors.append(error.errno)
print(set(errors))
print([a[4] for a in socket.getaddrinfo("xa.example", 443, socket.AF_UNSPEC, socket.SOCK_STREAM) if a[0] != socket.AF_INET])
raise KeyError("mine")`
            )
          )
          assert.strictEqual(survived.stdout, "{101}\n[]\n")
          assert.strictEqual(survived.receipt.outcome, "TaskFailed")
          assert.deepStrictEqual(
            survived.receipt.egress?.map(({ decision, name, port, rule }) => `${decision} ${name}:${port} ${rule}`),
            [
              "deny 10.0.0.1:80 private",
              "deny 169.254.169.254:80 metadata",
              "deny 192.168.0.1:22 private",
              "deny 100.64.0.1:443 carrier",
              "deny 8.8.8.8:53 not-granted",
              "deny host:22 loopback",
              "deny a.example:22 not-granted",
              "deny xa.example:443 not-granted",
              "deny a.example.evil.example:443 not-granted",
              "deny 198.18.200.200:443 reserved"
            ]
          )

          // There is nothing but TCP and name resolution, for root either.
          const others = `
import socket
def errno(family, kind, protocol, target):
    try:
        with socket.socket(family, kind, protocol) as s:
            return s.sendto(b"\\x08\\0\\xf7\\xff\\0\\0\\0\\0", target)
    except OSError as error:
        return error.errno
print([errno(*it) for it in (
    (socket.AF_INET, socket.SOCK_DGRAM, 0, ("8.8.8.8", 443)),
    (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP, ("8.8.8.8", 0)),
    (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP, ("8.8.8.8", 0)),
    (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW, ("8.8.8.8", 0)),
    (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6, ("2001:4860:4860::8888", 0)),
    (socket.AF_PACKET, socket.SOCK_RAW, 0, ("tun0", 0x800)),
)])`
          assert.strictEqual(yield* stdout(python(it, others)), "[101, 13, 1, 1, 1, 1]\n")
          const asRoot = yield* it.run(["python3", "-c", others], { user: "root" })
          assert.match(asRoot.stdout, /^\[101, 13, 101, /)
          assert.deepStrictEqual(asRoot.receipt.egress, [])

          // A name is granted only for TLS with that name, and a redirect of a granted server grants nothing.
          const cheating = yield* ended(
            bash(
              it,
              `curl -sS --connect-to b.example:443:a.example:443 https://b.example/; echo $?
             curl -sS http://a.example:443/; echo $?
             curl -sSL http://a.example/redirect; echo $?`
            )
          )
          assert.strictEqual(cheating.stdout, "35\n56\n7\n", cheating.stderr)
          assert.deepStrictEqual(
            cheating.receipt.egress?.map(({ bytesOut, decision, reason, rule }) => [
              decision,
              rule,
              reason,
              bytesOut > 0
            ]),
            [
              ["deny", "sni", 'TLS for "b.example"', false],
              ["deny", "sni", "it is not TLS", false],
              ["allow", "a.example", null, true],
              ["deny", "private", null, false]
            ]
          )
        }),
      patience
    )

    it.effect(
      "a program that fails because of a refusal gets PermissionDenied, one that fails for another reason TaskFailed",
      () =>
        Effect.gen(function* () {
          const { session } = yield* World
          const it = yield* session({ network: NetworkPolicy.allow(["a.example"]) })
          const curl = "curl -sS http://no.example/"
          const denied = {
            _tag: "PermissionDenied",
            operation: "network",
            target: "no.example:80",
            rule: "not-granted"
          } as const
          const cases: ReadonlyArray<readonly [Language, string, object, number]> = [
            ["bash", curl, denied, 7],
            ["bash", `set -e; f() { (${curl}); }; f; echo not reached`, denied, 7],
            ["bash", `set +e -o pipefail; ${curl} | cat`, denied, 7],
            ["bash", `set +o pipefail; text=$(${curl})`, denied, 7],
            ["bash", "git ls-remote https://no.example/repo", { ...denied, target: "no.example:443" }, 128],
            [
              "bash",
              "pip install -q --retries 0 -i https://no.example/simple six",
              { ...denied, target: "no.example:443" },
              1
            ],
            [
              "bash",
              "curl -sS --connect-to b.example:443:a.example:443 https://b.example/",
              { _tag: "PermissionDenied", target: "a.example:443", rule: "sni" },
              35
            ],
            ["bash", `sh -c '${curl}'`, denied, 7],
            ["python", `import subprocess; subprocess.run("${curl}", shell=True, check=True)`, denied, 1],
            ["javascript", `require("node:child_process").execSync("${curl}")`, denied, 1],
            ["bash", `${curl} || true`, { receipt: "Success" }, 0],
            ["bash", `${curl}; exit 3`, { receipt: "TaskFailed" }, 3],
            ["bash", `${curl}; false`, { receipt: "TaskFailed" }, 1],
            ["bash", `${curl} || ls /nowhere`, { receipt: "TaskFailed" }, 2],
            ["bash", `(${curl}; exit 9)`, { receipt: "TaskFailed" }, 9],
            ["bash", `sh -c '${curl}; exit 5'`, { receipt: "TaskFailed" }, 5],
            ["python", `subprocess.run("${curl}", shell=True)\nassert False`, { receipt: "TaskFailed" }, 1],
            ["python", `subprocess.run("${curl}", shell=True)\nraise SystemExit(7)`, { receipt: "TaskFailed" }, 7]
          ]
          for (const [language, code, what, exitCode] of cases) {
            const done = yield* ended(it.exec({ language, code }))
            assert.deepInclude(
              { ...done, receipt: done.receipt.outcome },
              { receipt: "PermissionDenied", ...what },
              code
            )
            assert.strictEqual(done.receipt.exitCode, exitCode, code)
            assert.strictEqual(done.receipt.egress?.at(-1)?.decision, "deny", code)
          }
          const spawned = yield* Effect.flip(it.run(["curl", "-sS", "http://no.example/"]))
          assert.deepInclude(spawned, denied)
          const handled = yield* Effect.flip(it.run(`${curl}; exit 3`))
          assert.strictEqual(handled._tag, "TaskFailed")
        }),
      patience
    )

    it.effect(
      "secrets are put into requests to their hosts, and the guest never has them",
      () =>
        Effect.gen(function* () {
          const { session, within } = yield* World
          const spans: Array<Tracer.Span> = []
          const tracer = Tracer.make({
            span: (options) => {
              const span = new Tracer.NativeSpan(options)
              spans.push(span)
              return span
            }
          })
          const value = "ghp_the-value-of-the-token"
          const basic = `Basic ${Buffer.from(`user:${value}`).toString("base64")}`
          const shown: Array<unknown> = []
          yield* Effect.gen(function* () {
            const it = yield* session({
              network: NetworkPolicy.allow(["a.example", "b.example"]),
              secrets: {
                TOKEN: { value: Redacted.make(value), hosts: ["a.example"] },
                KEY: { value: Redacted.make("the-key"), hosts: ["b.example"], header: "X-Key" }
              }
            })
            const urllib = `
import os, urllib.request
token = os.environ["TOKEN"]
def ask(url, **headers):
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers)).read().decode()
print(ask("https://a.example/py", Authorization=f"Bearer {token}"), ask("https://b.example/py", **{"X-Key": os.environ["KEY"]}))`
            shown.push(yield* python(it, urllib))
            shown.push(
              yield* javascript(
                it,
                `const headers = { authorization: "token " + process.env.TOKEN }
                 await (await fetch("https://a.example/js", { headers, method: "POST", body: "x".repeat(300_000) })).text()`
              )
            )
            const programs = `
curl -sS --http2 -u "user:$TOKEN" https://a.example/curl
env | grep -c ^TOKEN=exec-sandbox-secret-`
            const ran = yield* bash(it, programs)
            shown.push(ran)
            assert.strictEqual(ran.stdout, "a.example /curl 01\n")
            assert.deepStrictEqual(heard, [
              `a.example/py Bearer ${value}`,
              "b.example/py the-key",
              `a.example/js token ${value}`,
              `a.example/curl ${basic}`
            ])
            assert.deepStrictEqual(
              ran.receipt.egress?.map(({ name, rule, secrets }) => [name, rule, secrets]),
              [["a.example", "a.example", ["TOKEN"]]]
            )

            heard.length = 0
            const elsewhere = yield* failure(python(it, 'ask("https://b.example/", Authorization="Bearer " + token)'))
            shown.push(elsewhere)
            assert.deepInclude(elsewhere, { _tag: "PermissionDenied", target: "b.example:443", rule: "secret" })
            const plain = yield* failure(bash(it, 'curl -sS -H "Authorization: Bearer $TOKEN" http://a.example/'))
            shown.push(plain)
            assert.deepInclude(plain, {
              _tag: "PermissionDenied",
              target: "a.example:80",
              rule: "secret",
              grant: 'send TOKEN over TLS to one of its hosts, or add "a.example:80" to them'
            })

            // Clients that support HTTP/1.1 used it; one that offers HTTP/2 only is refused with the reason.
            const insisting = { _tag: "PermissionDenied", target: "a.example:443", rule: "http-version" } as const
            const http2 = `await new Promise((ready, failed) =>
              require("node:http2").connect("https://a.example").on("connect", ready).on("error", failed))`
            assert.deepInclude(yield* failure(javascript(it, http2)), { ...insisting, grant: "speak HTTP/1.1" })
            const curl2 = yield* failure(bash(it, "curl -sS --http2-prior-knowledge https://a.example/"))
            assert.deepInclude(curl2, insisting)
            assert.deepInclude(curl2.receipt.egress?.[0], { decision: "deny", reason: 'TLS for "h2" only' })

            // A fork's programs continue, with the placeholders that they have.
            const [forked] = yield* within(it.fork(1))
            if (forked === undefined || Result.isFailure(forked)) return assert.fail(String(forked))
            const child = forked.success
            shown.push(yield* python(child, 'ask("https://a.example/fork", Authorization=token)'))
            assert.deepStrictEqual(heard, [`a.example/fork ${value}`])
            shown.push(yield* it.network.attempts, execFileSync("ps", ["-eo", "args"], { encoding: "utf8" }))
          }).pipe(Effect.scoped, Effect.withTracer(tracer))
          const text = JSON.stringify([shown, spans.map(({ attributes, name }) => [name, [...attributes]])])
          for (const there of ["TOKEN", '"version":1', "Session.fork", "qemu-system"]) {
            assert.include(text, there)
          }
          assert.notInclude(text, value)
          assert.notInclude(text, Buffer.from(value).toString("base64"))
        }),
      patience
    )

    it.effect(
      "a policy can change while the session runs, from none to a grant and back",
      () =>
        Effect.gen(function* () {
          const { session } = yield* World
          const it = yield* session({})
          const closed = yield* python(it, connect("203.0.113.80"))
          assert.strictEqual(closed.stdout, "101\n")
          assert.isNull(closed.receipt.egress)
          const nowhere = { _tag: "PermissionDenied", operation: "network", target: null, rule: "none" } as const
          const named = 'import urllib.request; urllib.request.urlopen("http://a.example/")'
          assert.deepInclude(yield* failure(python(it, named)), nowhere)
          assert.deepInclude(yield* failure(javascript(it, 'await fetch("http://a.example/")')), nowhere)
          assert.deepInclude(yield* failure(javascript(it, 'await fetch("http://203.0.113.80/")')), nowhere)
          assert.strictEqual(
            yield* stdout(bash(it, "ls /sys/class/net; env | grep -c -E '_CERT|_CA_'; true")),
            "lo\n0\n"
          )

          yield* it.network.update(NetworkPolicy.allow(["a.example"]))
          assert.deepStrictEqual(yield* it.network.policy, NetworkPolicy.allow(["a.example"]))
          assert.strictEqual(yield* stdout(python(it, connect("a.example"))), "connected\n")
          assert.strictEqual(yield* stdout(bash(it, "curl -sS https://a.example/later")), "a.example /later 0")
          const text = yield* javascript(it, 'await (await fetch("https://a.example/warm")).text()')
          assert.strictEqual(text.result?.json, "a.example /warm 0")
          const allowed = yield* it.network.explain("A.EXAMPLE")
          assert.deepStrictEqual(allowed, { decision: "allow", rule: "a.example", grant: null })
          assert.strictEqual((yield* it.network.explain("a.example:22")).decision, "deny")
          for (const bad of ["", "a b", "a.example:http", "127.1"]) {
            assert.strictEqual((yield* Effect.flip(it.network.explain(bad))).reason._tag, "InvalidInput", bad)
          }
          const problem = yield* Effect.flip(it.network.update(NetworkPolicy.allow(["*"])))
          assert.strictEqual(problem.reason._tag, "InvalidInput")

          yield* it.network.update(NetworkPolicy.none)
          const again = yield* python(it, connect("a.example"))
          assert.strictEqual(again.stdout, "101\n")
          const attempts = yield* it.network.attempts
          assert.deepInclude(attempts.at(-1), { name: "a.example", decision: "deny", rule: "none" })
          assert.deepInclude(yield* failure(bash(it, "curl -sS http://a.example/")), {
            _tag: "PermissionDenied",
            target: "a.example:80",
            rule: "none"
          })
        }),
      patience
    )

    it.effect(
      "a hostile guest uses bounded resources and does not disturb other sessions",
      () =>
        Effect.gen(function* () {
          const { session } = yield* World
          const hostile = yield* session({ network: NetworkPolicy.allow(["a.example", "silent.example:9"]) })
          const other = yield* session({ network: NetworkPolicy.allow(["a.example"]) })
          const before = process.memoryUsage().rss
          const flood = `
import os, socket, struct
kept, counts = [], {}
for i in range(300):
    s = socket.socket()
    try:
        s.connect(("silent.example", 9))
        s.setblocking(False)
        try:
            while i < 20: s.send(b"x" * 65536)
        except BlockingIOError:
            pass
        kept.append(s)
        key = "connected"
    except OSError as error:
        key = error.errno
    counts[key] = counts.get(key, 0) + 1
for i in range(300):
    try: socket.getaddrinfo(f"{os.urandom(20).hex()}.example", 80)
    except OSError as error: counts["dns"] = error.errno
print(counts)
for s in kept:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()
garbage = socket.create_connection(("a.example", 443))
garbage.sendall(b"GET" + os.urandom(100_000))
garbage.recv(1)`
          const [attack, calm] = yield* Effect.all(
            [ended(python(hostile, flood)), bash(other, "curl -sS https://a.example/1 https://a.example/2")],
            { concurrency: "unbounded" }
          )
          assert.strictEqual(attack.stdout, "{'connected': 256, 111: 44}\n", attack.stderr)
          assert.deepInclude(attack, { _tag: "PermissionDenied", target: "a.example:443", rule: "sni" })
          assert.strictEqual(attack.receipt.egress?.length, 200)
          assert.strictEqual(attack.receipt.egressOmitted, 101)
          assert.strictEqual(calm.stdout, "a.example /1 0a.example /2 0")
          // The credit of each connection, and the buffers of Node's sockets.
          assert.isBelow(process.memoryUsage().rss - before, 512 * 1024 * 1024)
          assert.strictEqual(yield* stdout(bash(hostile, "curl -sS http://a.example/after")), "a.example /after 0")
        }),
      patience
    )
  }
)
