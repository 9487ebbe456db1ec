import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Metric from "effect/Metric"
import * as Option from "effect/Option"
import { TestClock } from "effect/testing"
import * as fs from "node:fs"
import { draw, gather } from "../src/cli/trace.ts"
import * as Capacity from "../src/Capacity.ts"
import * as Observe from "../src/internal/Observe.ts"
import * as Counts from "../src/telemetry/Counts.ts"
import { fail, NotStarted } from "../src/SandboxError.ts"
import * as Telemetry from "../src/Telemetry.ts"
import { receipt } from "./support/receipts.ts"

const fresh = Effect.provideService(Metric.MetricRegistry, new Map())

describe("Telemetry", () => {
  it("names every span that the sources open", () => {
    const source = new URL("../src/", import.meta.url)
    const opening = /(?:Effect\.fn|withSpan|makeSpanScoped|makeSpan|lateSpan)\(\s*(?:effect, )?"([A-Z][A-Za-z.]+)"/g
    const opened = fs
      .globSync("**/*.ts", { cwd: source })
      .flatMap((file) => [...fs.readFileSync(new URL(file, source), "utf8").matchAll(opening)].map(([, name]) => name))
      .filter((name) => !name?.startsWith("Files."))
    assert.sameMembers([...Telemetry.spanNames], [...new Set(opened)])
  })

  it.effect("an execution is counted by language and outcome, and its span has the receipt's values", () =>
    Effect.gen(function* () {
      const { spans, tracer } = gather()
      yield* Counts.receipt(receipt({ outcome: "TaskFailed", exitCode: 3 })).pipe(
        Effect.withSpan("Session.exec"),
        Effect.withTracer(tracer)
      )
      assert.deepStrictEqual(Object.fromEntries(spans[0]?.attributes ?? []), {
        "exec_sandbox.receipt": "exe-0123456789abcdef",
        "exec_sandbox.language": "python",
        "exec_sandbox.outcome": "TaskFailed",
        "exec_sandbox.exit_code": 3,
        "exec_sandbox.queue_ms": 0,
        "exec_sandbox.execute_ms": 2
      })
      const counted = Metric.withAttributes(Telemetry.executions, { language: "python", outcome: "TaskFailed" })
      assert.strictEqual((yield* Metric.value(counted)).count, 1)
      const took = Metric.withAttributes(Telemetry.executionDuration, { language: "python" })
      assert.deepStrictEqual([(yield* Metric.value(took)).count, (yield* Metric.value(took)).sum], [1, 2])
    }).pipe(fresh)
  )

  it.effect("a gauge counts the callers that wait for capacity, and a counter those refused", () =>
    Effect.gen(function* () {
      const host = { cores: 1, freeMemoryMiB: 8000, totalMemoryMiB: 8000, memoryPressure: null }
      const capacity = Capacity.make(
        { ...Capacity.defaults, cpuOvercommit: 1, maxWaitMs: 1000 },
        { host: () => host, privateMemoryMiB: () => 0 }
      )
      yield* capacity.reserve({ memoryMiB: 100 })
      const waiting = Effect.map(Metric.value(Telemetry.capacityWaiting), (it) => it.value)
      const second = yield* Effect.forkChild(Effect.flip(Effect.scoped(capacity.reserve({ memoryMiB: 100 }))), {
        startImmediately: true
      })
      assert.strictEqual(yield* waiting, 1)
      yield* TestClock.adjust("1 second")
      assert.strictEqual((yield* Fiber.join(second)).reason._tag, "CapacityExceeded")
      assert.strictEqual(yield* waiting, 0)
      assert.strictEqual((yield* Metric.value(Telemetry.capacityRefused)).count, 1)
    }).pipe(Effect.scoped, fresh)
  )

  it.effect(
    "the parent of a late span is the span of its beginning if still open, else the span of its end, else none",
    () =>
      Effect.gen(function* () {
        const { spans, tracer } = gather()
        const begun = yield* Effect.withSpan(Observe.currentSpan, "start").pipe(Effect.withTracer(tracer))
        const end = Observe.lateSpan("end", begun, { pid: 1 })(Effect.void)
        yield* Effect.gen(function* () {
          yield* end
          yield* Effect.withSpan(end, "caller")
          yield* Effect.gen(function* () {
            const inner = yield* Effect.withSpan(Observe.currentSpan, "inner")
            yield* Effect.withSpan(Observe.lateSpan("end", inner, {})(Effect.void), "caller")
          }).pipe(Effect.withSpan("session"))
        }).pipe(Effect.withTracer(tracer))
        const parents = spans
          .filter((it) => it.name === "end")
          .map((it) => {
            const parent = Option.getOrUndefined(it.parent)
            return parent?._tag === "Span" ? parent.name : null
          })
        assert.deepStrictEqual(parents, [null, "caller", "session"])
        assert.strictEqual(spans.find((it) => it.name === "end")?.attributes.get("exec_sandbox.pid"), 1)
      })
  )

  it("draws a tree in order of time, with failures and interruptions", () => {
    const { spans, tracer } = gather()
    Effect.runSync(
      Effect.gen(function* () {
        yield* Observe.annotate({ memory_mib: 640, missed: ["pool: there is no pool"], nothing: null })
        yield* Effect.withSpan(Effect.void, "Vm.restore")
        yield* Effect.exit(Effect.withSpan(Effect.fail(fail(new NotStarted({ problem: "no" }))), "Vm.handover"))
        yield* Effect.exit(Effect.withSpan(Effect.interrupt, "Session.exec"))
      }).pipe(Effect.withSpan("Sandbox.run"), Effect.withTracer(tracer))
    )
    const lines = draw(spans).trimEnd().split("\n")
    assert.deepStrictEqual(
      lines.map((line) => line.replace(/^ *(at ms|[\d.]+) +(took ms|[\d.]+) {2}/, "")),
      [
        "span",
        'Sandbox.run     memory_mib=640 missed=["pool: there is no pool"]',
        "  Vm.restore",
        "  Vm.handover   failed: SandboxError",
        "  Session.exec  interrupted"
      ]
    )
  })
})
