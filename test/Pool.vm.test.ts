/** A pool of real VMs. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as Capacity from "../src/Capacity.ts"
import { Host } from "../src/Host.ts"
import { Image } from "../src/Image.ts"
import { Pool, type PoolOptions, Settings } from "../src/Pool.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { Snapshots } from "../src/Snapshot.ts"
import { Template } from "../src/Template.ts"
import { qemus } from "./support/processes.ts"

/** A sandbox whose pool and capacity the test can inspect. */
const pooled = (options: PoolOptions, capacity: Partial<Capacity.CapacityOptions> = {}) =>
  Sandbox.layerOver.pipe(
    Layer.provide(Snapshots.layerUnsupported),
    Layer.provideMerge(Pool.layer),
    Layer.provideMerge(Capacity.Capacity.layer),
    Layer.provide(Template.layer),
    Layer.provide(Image.layer),
    Layer.provide(Host.layer),
    Layer.provide(Layer.succeed(Settings, options)),
    Layer.provide(Layer.succeed(Capacity.Settings, capacity))
  )

const stats = Effect.map(
  Pool.use((pool) => pool.stats),
  ([it]) => it
)

/** Waits until `size` clones are ready and none is being made. */
const filled = (size: number) =>
  stats.pipe(
    Effect.repeat({
      until: (it) => it?.ready === size && it.making === 0,
      schedule: Schedule.spaced("20 millis")
    }),
    Effect.timeout("200 seconds")
  )

const session = Sandbox.use((sandbox) => sandbox.session())

/** Fails unless the value is a list. */
const list = (value: unknown): ReadonlyArray<unknown> => {
  if (!Array.isArray(value)) assert.fail("no list")
  return value
}

/** Code whose values must differ between two machines. */
const unique = {
  python: "import random, uuid, secrets; [random.random(), str(uuid.uuid4()), secrets.token_hex(8)]",
  javascript: `const c = require("node:crypto"); [Math.random(), c.randomUUID(), c.randomBytes(8).toString("hex"),
    c.generateKeyPairSync("ed25519").publicKey.export({ type: "spki", format: "pem" })]`,
  bash: "echo $RANDOM$RANDOM $SRANDOM $(cat /proc/sys/kernel/random/uuid) $(hostname) $(cat /etc/machine-id)"
} as const

describe("Pool", () => {
  it.live(
    "a claimed clone has fresh state, randomness, clock, identity and env; the pool refills; its end leaves no QEMU",
    () =>
      Effect.gen(function* () {
        const scope = yield* Scope.make()
        const context = yield* Layer.buildWithScope(pooled({ size: 2 }), scope)
        yield* Effect.gen(function* () {
          yield* filled(2)
          const idle = qemus()
          assert.strictEqual(idle.length, 2)
          const seen: Array<ReadonlyArray<string>> = []
          for (let n = 0; n < 2; n++) {
            yield* Effect.scoped(
              Effect.gen(function* () {
                const mine = yield* Sandbox.use((it) => it.session({ env: { WHO: `claim ${n}` } }))
                assert.deepStrictEqual((yield* mine.changes()).files, [])
                const values: Array<string> = []
                for (const language of ["python", "javascript", "bash"] as const) {
                  const { receipt, result, stdout } = yield* mine.exec({ language, code: unique[language] })
                  assert.deepStrictEqual(receipt.startPath, { kind: "pool", missed: [] })
                  assert.strictEqual(receipt.state, "kept")
                  values.push(...(language === "bash" ? stdout.trim().split(" ") : list(result?.json)).map(String))
                }
                seen.push(values)
                const state = yield* mine.exec({
                  language: "python",
                  code: "import os, time; [time.time(), os.environ['WHO']]"
                })
                const [time, who] = list(state.result?.json)
                assert.isBelow(Math.abs(Number(time) * 1000 - Date.now()), 20_000)
                assert.strictEqual(who, `claim ${n}`)
                const files = yield* mine.exec({ language: "bash", code: 'ls -A ~ | wc -l; touch ~/mine; echo "$WHO"' })
                assert.match(files.stdout, new RegExp(`^\\d+\nclaim ${n}\n$`))
                const answer = `response.end("claim ${n}")`
                const server = `require("http").createServer((_, response) => ${answer}).listen(8099)`
                yield* mine.exec({ language: "javascript", code: server })
                const { url } = yield* mine.ports.expose(8099)
                assert.strictEqual(yield* Effect.promise(async () => (await fetch(url)).text()), `claim ${n}`)
                if (n === 0) yield* mine.exec({ language: "python", code: "leftover = 1" })
                else {
                  const fresh = yield* mine.exec({ language: "python", code: "'leftover' in globals()" })
                  assert.strictEqual(fresh.result?.json, false)
                }
              })
            )
            yield* filled(2)
          }
          const [first = [], second = []] = seen
          assert.strictEqual(first.length, 12)
          first.forEach((value, index) => assert.notStrictEqual(value, second[index], `value ${index}`))
          // Used VMs are dead, and others have replaced them.
          assert.strictEqual(qemus().filter((pid) => idle.includes(pid)).length, 0)
        }).pipe(Effect.provide(context))
        yield* Scope.close(scope, Exit.void)
        assert.deepStrictEqual(qemus(), [])
      }),
    240_000
  )

  it.live(
    "a killed clone is replaced; one killed just before its claim is not used, and the receipt says why",
    () =>
      Effect.gen(function* () {
        yield* filled(1)
        const [before] = qemus()
        process.kill(before as number, "SIGKILL")
        yield* stats.pipe(Effect.repeat({ until: (it) => it?.ready === 0, schedule: Schedule.spaced("2 millis") }))
        yield* filled(1)
        assert.notInclude(qemus(), before)

        // Killed at the same moment as it is claimed.
        const [now] = qemus()
        process.kill(now as number, "SIGKILL")
        const { receipt, stdout } = yield* Sandbox.use((it) => it.run({ language: "bash", code: "echo ok" }))
        assert.strictEqual(stdout, "ok\n")
        assert.strictEqual(receipt.startPath.kind, "restore")
        const [missed] = receipt.startPath.missed
        assert.strictEqual(missed?.kind, "pool")
        assert.match(missed?.reason ?? "", /did not take over|is ready/)
      }).pipe(Effect.provide(pooled({ size: 1 }))),
    240_000
  )

  it.live(
    "twelve runs at once with a pool of two: all succeed, two or more from the pool; the others' receipts say why not",
    () =>
      Effect.gen(function* () {
        yield* filled(2)
        const sandbox = yield* Sandbox
        const results = yield* Effect.forEach(
          Array.from({ length: 12 }, (_, n) => n),
          (n) => sandbox.run({ language: "python", code: `print(${n})`, limits: { timeMs: 120_000 } }),
          { concurrency: "unbounded" }
        )
        assert.deepStrictEqual(
          results.map((it) => it.stdout),
          Array.from({ length: 12 }, (_, n) => `${n}\n`)
        )
        const kinds = results.map((it) => it.receipt.startPath.kind)
        assert.isAtLeast(kinds.filter((it) => it === "pool").length, 2)
        for (const { receipt } of results) {
          if (receipt.startPath.kind === "pool") continue
          assert.deepStrictEqual(receipt.startPath, {
            kind: "restore",
            missed: [{ kind: "pool", reason: "none of the pool's 2 clones is ready" }]
          })
        }
        yield* filled(2)
        const { held } = yield* Capacity.Capacity.use((it) => it.stats)
        assert.deepStrictEqual(held, { vms: 2, memoryMiB: 384, cpus: 2 })
      }).pipe(Effect.provide(pooled({ size: 2 }))),
    240_000
  )

  it.live(
    "a memory size without a pool is reported, and waits for capacity until an idle clone is destroyed",
    () =>
      Effect.gen(function* () {
        yield* filled(1)
        const { receipt } = yield* Sandbox.use((it) =>
          it.run({ language: "bash", code: "echo", limits: { memoryMiB: 256 } })
        )
        assert.deepStrictEqual(receipt.startPath.missed[0], {
          kind: "pool",
          reason: "there is no pool for this memory size"
        })
      }).pipe(Effect.provide(pooled({ size: 1 }, { cpuOvercommit: 0.001 }))),
    240_000
  )

  it.live(
    "a pool that does not fit on the host runs without clones and reports why, as a session does",
    () =>
      Effect.gen(function* () {
        yield* stats.pipe(
          Effect.repeat({ until: (it) => it?.breaker === "open", schedule: Schedule.spaced("10 millis") }),
          Effect.timeout("20 seconds")
        )
        assert.include((yield* stats)?.cause ?? "", "no capacity")
        const error = yield* Effect.flip(Effect.scoped(session))
        assert.strictEqual(error.reason._tag, "CapacityExceeded")
        assert.strictEqual(error.retry, "never")
        assert.deepStrictEqual(qemus(), [])
      }).pipe(Effect.provide(pooled({ size: 4 }, { keepFreeMiB: 2 ** 40 }))),
    60_000
  )

  it.live(
    "layerPool has its pool also where another layer without one is provided",
    () =>
      Effect.gen(function* () {
        const run = Sandbox.use((it) => it.run({ language: "bash", code: "echo" }))
        const [without, pooled] = yield* Effect.all([
          Effect.map(Effect.provide(run, Sandbox.layer), (it) => it.receipt.startPath),
          run.pipe(
            Effect.repeat({
              until: (it) => it.receipt.startPath.kind === "pool",
              schedule: Schedule.spaced("20 millis")
            }),
            Effect.timeout("100 seconds"),
            Effect.map((it) => it.receipt.startPath),
            Effect.provide(Sandbox.layerPool({ size: 1 }))
          )
        ]).pipe(Effect.provide(Sandbox.layer))
        assert.deepStrictEqual(without.missed[0], { kind: "pool", reason: "there is no pool" })
        assert.deepStrictEqual(pooled, { kind: "pool", missed: [] })
      }),
    240_000
  )

  it.live("invalid options are refused", () =>
    Effect.gen(function* () {
      const error = yield* Effect.flip(Effect.scoped(Layer.build(Sandbox.layerPool({ size: -1 }))))
      assert.deepInclude(error.reason, { _tag: "InvalidInput", field: "size" })
    })
  )
})
