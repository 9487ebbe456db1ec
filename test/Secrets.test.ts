import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Result from "effect/Result"
import * as Tracer from "effect/Tracer"
import * as NetworkPolicy from "../src/NetworkPolicy.ts"
import * as Receipts from "../src/Receipts.ts"
import { Sandbox, type SessionOptions } from "../src/Sandbox.ts"
import type { Session } from "../src/Session.ts"
import * as Testing from "../src/Testing.ts"

const value = "ghp_do-not-show-this"
const network = NetworkPolicy.allow(["api.example", "*.below.example", "other.example:8443"])
const secret = { value: Redacted.make(value), hosts: ["api.example"] }
const kit = Testing.layer({ script: (task) => Testing.prints(JSON.stringify(task.env)) })
const code = { language: "python", code: "1" } as const
const placeholder = /^exec-sandbox-secret-[0-9a-f]{40}$/

const tokenOf = (session: Session) =>
  Effect.map(session.exec(code), ({ stdout }) => (JSON.parse(stdout) as Record<string, string>)["TOKEN"])

describe("Secrets", () => {
  it.effect("the code's environment has a placeholder, a different one in every session", () =>
    Effect.gen(function* () {
      const sandbox = yield* Sandbox
      const options = { network, env: { A: "b" }, secrets: { TOKEN: secret, OTHER: { ...secret, header: "X-Key" } } }
      const seen = new Set<string>()
      for (let round = 0; round < 3; round++) {
        const { stdout } = yield* sandbox.run(code, options)
        const env = JSON.parse(stdout) as Record<string, string>
        assert.strictEqual(env["A"], "b")
        for (const name of ["TOKEN", "OTHER"]) {
          assert.match(env[name] ?? "", placeholder)
          seen.add(env[name] ?? "")
        }
      }
      assert.strictEqual(seen.size, 6)
    }).pipe(Effect.provide(kit))
  )

  it.effect("a fork keeps its parent's secrets unless it is given others; a snapshot contains none", () =>
    Effect.gen(function* () {
      const sandbox = yield* Sandbox
      const options = { network, secrets: { TOKEN: secret } }
      const forked = Effect.fnUntraced(function* (session: Session, given?: Omit<SessionOptions, "from">) {
        const [child] = yield* session.fork(1, given)
        return child === undefined ? assert.fail() : yield* Effect.fromResult(child)
      })
      const parent = yield* sandbox.session(options)
      const mine = yield* tokenOf(parent)
      assert.match(mine ?? "", placeholder)
      // The fork keeps them even if the policy has changed meanwhile.
      yield* parent.network.update(NetworkPolicy.none)
      const child = yield* forked(parent)
      assert.strictEqual(yield* tokenOf(child), mine)
      assert.strictEqual(yield* tokenOf(yield* forked(child)), mine)
      assert.isUndefined(yield* tokenOf(yield* forked(parent, { secrets: {} })))
      const others = yield* tokenOf(yield* forked(parent, options))
      const ungranted = yield* Effect.flip(forked(parent, { secrets: options.secrets }))
      assert.deepInclude(ungranted.reason, { _tag: "InvalidInput", field: "secrets.TOKEN.hosts" })

      const from = yield* parent.snapshot()
      assert.isUndefined(yield* tokenOf(yield* sandbox.session({ from, network })))
      const later = yield* tokenOf(yield* sandbox.session({ ...options, from }))
      for (const token of [others, later]) assert.match(token ?? "", placeholder)
      assert.strictEqual(new Set([mine, others, later]).size, 3)
    }).pipe(Effect.scoped, Effect.provide(kit))
  )

  it.effect("a value is in no receipt, span, error or task", () =>
    Effect.gen(function* () {
      const spans: Array<Tracer.Span> = []
      const tracer = Tracer.make({
        span: (options) => {
          const span = new Tracer.NativeSpan(options)
          spans.push(span)
          return span
        }
      })
      const options = { network, secrets: { TOKEN: secret } }
      const shown = yield* Effect.gen(function* () {
        const sandbox = yield* Sandbox
        const machines = yield* Testing.Machines
        const result = yield* sandbox.run(code, options)
        const failed = yield* Effect.flip(sandbox.run({ ...code, limits: { memoryMiB: 1 } }, options))
        const refused = yield* Effect.flip(sandbox.run(code, { ...options, network: NetworkPolicy.none }))
        const session = yield* sandbox.session(options)
        const copied = yield* Effect.flip(session.fork(0))
        for (const child of yield* session.fork(1)) yield* Result.getOrThrow(child).exec(code)
        const receipts = yield* (yield* Receipts.Memory).all
        const tasks = (yield* machines.tasks).map(({ argv, code, env }) => ({ argv, code, env }))
        return [result, failed, refused, copied, String(refused), receipts, tasks, session.network]
      }).pipe(
        Effect.scoped,
        Effect.withTracer(tracer),
        Effect.provide(kit.pipe(Layer.provideMerge(Receipts.layerMemory())))
      )
      const named = spans.map((span) => [span.name, [...span.attributes]])
      assert.isAbove(named.length, 3)
      const text = JSON.stringify([shown, named], (_, it: unknown) =>
        it instanceof Error ? { ...it, message: it.message, stack: it.stack } : it
      )
      for (const there of ["exec-sandbox-secret-", '"version":1', "Sandbox.run"]) assert.include(text, there)
      assert.notInclude(text, value)
    })
  )

  it.effect("an invalid secret is refused before anything starts, and not shown", () =>
    Effect.gen(function* () {
      const sandbox = yield* Sandbox
      const wrong: ReadonlyArray<readonly [field: string, problem: string, options: unknown]> = [
        ["secrets.TOKEN.hosts", 'does not grant "api.example" (none)', { secrets: { TOKEN: secret } }],
        [
          "secrets.TOKEN.hosts",
          'does not grant "*.example" (not-granted)',
          { network, secrets: { TOKEN: { ...secret, hosts: ["x.below.example", "*.example"] } } }
        ],
        [
          "secrets.TOKEN.hosts",
          'does not grant "other.example" (not-granted)',
          {
            network,
            secrets: { TOKEN: { ...secret, hosts: ["*.below.example", "other.example:8443", "other.example"] } }
          }
        ],
        ["env.TOKEN", "also a secret", { network, env: { TOKEN: "x" }, secrets: { TOKEN: secret } }],
        ["secrets.TOKEN.value", "got string", { network, secrets: { TOKEN: { ...secret, value } } }],
        ["secrets.TOKEN", "got string", { network, secrets: { TOKEN: value } }],
        ["secrets", "got string", { network, secrets: value }],
        ["secret", "got object", { network, secret: { TOKEN: value } }],
        ["secrets", "got object", { network, secrets: { "not a name": secret } }],
        [
          "secrets",
          "got object",
          { network, secrets: Object.fromEntries(Array.from({ length: 33 }, (_, n) => [`T${n}`, secret])) }
        ],
        ["secrets.TOKEN.hosts", "got object", { network, secrets: { TOKEN: { ...secret, hosts: [] } } }],
        [
          "secrets.TOKEN.header",
          "got string",
          { network, secrets: { TOKEN: { ...secret, header: "Content-Length" } } }
        ],
        ["secrets.TOKEN.header", "got string", { network, secrets: { TOKEN: { ...secret, header: "a b" } } }],
        ...["", " a", "a\r\nb: c", "é", "a\0"].map(
          (value) =>
            [
              "secrets.TOKEN.value",
              "got object",
              { network, secrets: { TOKEN: { ...secret, value: Redacted.make(value) } } }
            ] as const
        ),
        ...["10.0.0.1", "host:8080", "https://api.example", "*", "localhost", "[::1]"].map(
          (host) =>
            [
              "secrets.TOKEN.hosts.0",
              "got string",
              { network, secrets: { TOKEN: { ...secret, hosts: [host] } } }
            ] as const
        )
      ]
      for (const [field, problem, options] of wrong) {
        const error = yield* Effect.flip(sandbox.run(code, options as SessionOptions))
        if (error._tag !== "SandboxError" || error.reason._tag !== "InvalidInput") return assert.fail(String(error))
        assert.strictEqual(error.reason.field, field)
        assert.include(error.reason.problem, problem, field)
        assert.notInclude(error.message, value)
      }
      assert.strictEqual(yield* (yield* Testing.Machines).started, 0)
      const asked = NetworkPolicy.allow([], { ask: () => Effect.succeed({ allow: false, reason: "no" }) })
      for (const network of [asked, NetworkPolicy.all()])
        yield* sandbox.run(code, { network, secrets: { TOKEN: secret } })
    }).pipe(Effect.provide(kit))
  )
})
