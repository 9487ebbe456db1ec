/** The spans and metrics of a real VM's whole life. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import type * as Tracer from "effect/Tracer"
import { gather } from "../src/cli/trace.ts"
import { Pool } from "../src/Pool.ts"
import { Sandbox } from "../src/Sandbox.ts"
import * as Telemetry from "../src/Telemetry.ts"
import { pooled } from "./support/pooled.ts"

const claims = (attributes: Record<string, string>) =>
  Effect.map(Metric.value(Metric.withAttributes(Telemetry.poolClaims, attributes)), (it) => it.count)

/** A span's path from its root. */
const path = (span: Tracer.AnySpan): string => {
  const parent = Option.getOrUndefined(span._tag === "Span" ? span.parent : Option.none<Tracer.AnySpan>())
  const name = span._tag === "Span" ? span.name : "?"
  return parent === undefined ? name : `${path(parent)} > ${name}`
}

describe("Telemetry", () => {
  it.live(
    "has the spans and metrics of a run from the pool, of a restored one, and of the end of both",
    () => {
      const { spans, tracer } = gather()
      const registry: Metric.MetricRegistry = new Map()
      const full = Pool.use((pool) => pool.stats).pipe(
        Effect.repeat({ until: ([it]) => it?.ready === 1, schedule: Schedule.spaced("20 millis") })
      )
      const program = Effect.gen(function* () {
        const sandbox = yield* Sandbox
        yield* full
        // The first run takes the pool's only clone; the second asks for another size, which the pool does not have.
        yield* sandbox.run({ language: "python", code: "1" })
        yield* Effect.flip(sandbox.run({ language: "bash", code: "exit 3", limits: { memoryMiB: 128 } }))
        const live = yield* Metric.value(Telemetry.vmsLive)
        assert.isAtMost(live.value, 1)
        assert.strictEqual(yield* claims({ result: "hit" }), 1)
        assert.strictEqual(yield* claims({ result: "miss", reason: "no-pool-for-size" }), 1)
      }).pipe(Effect.provide(pooled))
      return Effect.gen(function* () {
        yield* program
        const paths = spans.map(path)
        const expected = [
          "Pool.refill > Template.clone > Vm.restore",
          "Pool.refill > Pool.warmUp > Vm.handover",
          "Sandbox.run > Sandbox.session > Pool.clone > Pool.claim",
          "Sandbox.run > Sandbox.session > Pool.clone > Vm.handover",
          "Sandbox.run > Sandbox.session > Pool.clone > Capacity.reserve",
          "Sandbox.run > Sandbox.session > Pool.clone > Template.clone > Vm.restore",
          "Sandbox.run > Session.exec",
          "Sandbox.run > Vm.destroy"
        ]
        for (const it of expected) assert.include(paths, it)
        assert.strictEqual(paths.filter((it) => it === "Sandbox.run > Vm.destroy").length, 2)
        const names = new Set<string>(Telemetry.spanNames)
        assert.deepStrictEqual(
          [...new Set(spans.map((it) => it.name))].filter((it) => !names.has(it)),
          []
        )
        assert.deepStrictEqual(spans.filter((it) => it.status._tag !== "Ended").map(path), [])
        const acquired = spans
          .filter((it) => it.name === "Pool.clone")
          .map((it) => it.attributes.get("exec_sandbox.start_path"))
        assert.strictEqual(acquired[0], "pool")
        assert.include(["restore", "boot"], acquired[1])

        const counts = new Map(
          (yield* Metric.snapshot).map((it) => [
            `${it.id} ${JSON.stringify(it.attributes ?? {})}`,
            "count" in it.state ? it.state.count : "value" in it.state ? it.state.value : null
          ])
        )
        assert.strictEqual(counts.get('exec_sandbox_executions {"language":"python","outcome":"Success"}'), 1)
        assert.strictEqual(counts.get('exec_sandbox_executions {"language":"bash","outcome":"TaskFailed"}'), 1)
        assert.strictEqual(counts.get("exec_sandbox_vms_live {}"), 0)
        const deaths = Number(counts.get('exec_sandbox_vm_deaths {"cause":"destroyed"}'))
        const restores = Number(counts.get("exec_sandbox_restore_duration_ms {}"))
        assert.isAtLeast(restores, 2)
        assert.isAtLeast(deaths, restores)
      }).pipe(Effect.withTracer(tracer), Effect.provideService(Metric.MetricRegistry, registry))
    },
    240_000
  )
})
