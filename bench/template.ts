/** The build of a template: boot to warm interpreters, seal, and the whole build, in an empty template store. */
import * as Effect from "effect/Effect"
import * as Tracer from "effect/Tracer"
import { Template } from "../src/Template.ts"
import type { Measurement } from "./Measure.ts"

/** Runs an effect and gives the durations of its spans, by name, in ms. */
const timed = <A, E, R>(effect: Effect.Effect<A, E, R>) => {
  const took = new Map<string, Array<number>>()
  const tracer = Tracer.make({
    span: (options) => {
      const span = new Tracer.NativeSpan(options)
      const end = span.end.bind(span)
      span.end = (time, exit) => {
        took.set(options.name, [...(took.get(options.name) ?? []), Number(time - options.startTime) / 1e6])
        end(time, exit)
      }
      return span
    }
  })
  return Effect.as(Effect.withTracer(effect, tracer), took)
}

export const measure = (times: number) =>
  Effect.gen(function* () {
    const templates = yield* Template
    const all = new Map<string, Array<number>>()
    for (let n = 0; n < times; n++) {
      yield* templates.prune(0)
      const took = yield* timed(templates.warm(512))
      for (const [name, samples] of took) all.set(name, [...(all.get(name) ?? []), ...samples])
    }
    const names = [
      ["Vm.boot", "boot to warm interpreters"],
      ["Vm.seal", "seal"],
      ["Template.build", "whole build"]
    ] as const
    return names.map(([span, name]): Measurement => ({ suite: "template", name, samples: all.get(span) ?? [] }))
  })
