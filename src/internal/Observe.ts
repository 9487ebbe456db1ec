/** Spans and measurements round an effect; `Telemetry` lists which there are. */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"

/** The current span, for work that may outlive it. */
export const currentSpan: Effect.Effect<Option.Option<Tracer.AnySpan>> = Effect.serviceOption(Tracer.ParentSpan)

/** Adds attributes, given without their prefix, to the current span, if there is one. */
export const annotate = (attributes: Readonly<Record<string, unknown>>): Effect.Effect<void> =>
  Effect.map(currentSpan, (current) => {
    if (Option.isNone(current) || current.value._tag !== "Span" || current.value.status._tag !== "Started") return
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined) current.value.attribute(`exec_sandbox.${name}`, value)
    }
  })

/** Measures how long an effect took when it succeeds, ms. */
export const timed =
  (histogram: Metric.Histogram<number>) =>
  <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.gen(function* () {
      const started = yield* Clock.currentTimeNanos
      const value = yield* effect
      yield* Metric.update(histogram, Number((yield* Clock.currentTimeNanos) - started) / 1e6)
      return value
    })

/** Counts an effect in a gauge while it runs. */
export const during =
  (gauge: Metric.Gauge<number>) =>
  <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.acquireUseRelease(
      Metric.modify(gauge, 1),
      () => effect,
      () => Metric.modify(gauge, -1)
    )

/** The nearest open span: the given one or one of its parents. */
const open = (given: Option.Option<Tracer.AnySpan>): Tracer.AnySpan | undefined => {
  let span = Option.getOrUndefined(given)
  while (span?._tag === "Span" && span.status._tag === "Ended") span = Option.getOrUndefined(span.parent)
  return span
}

/** A span for the end of work that began in the span `begun`. Its parent is the nearest open one of that, else of the current span. */
export const lateSpan =
  (name: string, begun: Option.Option<Tracer.AnySpan>, attributes: Readonly<Record<string, unknown>>) =>
  <A, E>(effect: Effect.Effect<A, E>): Effect.Effect<A, E> =>
    Effect.flatMap(currentSpan, (current) => {
      const parent = open(begun) ?? open(current)
      const named = Object.entries(attributes).map(([key, it]) => [`exec_sandbox.${key}`, it] as const)
      return Effect.withSpan(effect, name, {
        attributes: Object.fromEntries(named),
        ...(parent === undefined ? { root: true } : { parent })
      })
    })
