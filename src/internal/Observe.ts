/** How the library tells its spans and metrics; `Telemetry` says which there are. */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"
import type { Receipt } from "../Receipt.ts"
import * as Telemetry from "../Telemetry.ts"

/** The current span, for what may go on when it has ended. */
export const currentSpan: Effect.Effect<Option.Option<Tracer.AnySpan>> = Effect.serviceOption(Tracer.ParentSpan)

/** Attributes of the current span, without their prefix. Nothing happens without a span. */
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

/** Counts an effect while it runs. */
export const during =
  (gauge: Metric.Gauge<number>) =>
  <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.acquireUseRelease(
      Metric.modify(gauge, 1),
      () => effect,
      () => Metric.modify(gauge, -1)
    )

/** The nearest span that is still open, the given one or one that it is part of. */
const open = (given: Option.Option<Tracer.AnySpan>): Tracer.AnySpan | undefined => {
  let span = Option.getOrUndefined(given)
  while (span?._tag === "Span" && span.status._tag === "Ended") span = Option.getOrUndefined(span.parent)
  return span
}

/** A span for the end of what was begun in another: part of what is still open of that one, else of where it ends. */
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

/** What a receipt says, on the execution's span and in the metrics. */
export const receipt = (it: Receipt): Effect.Effect<void> => {
  const language = it.language ?? "command"
  const { executeMs, queueMs } = it.timing
  return annotate({
    receipt: it.id,
    language,
    outcome: it.outcome,
    exit_code: it.exitCode,
    queue_ms: queueMs,
    execute_ms: executeMs
  }).pipe(
    Effect.andThen(Metric.update(Metric.withAttributes(Telemetry.executions, { language, outcome: it.outcome }), 1)),
    Effect.andThen(
      executeMs === null
        ? Effect.void
        : Metric.update(Metric.withAttributes(Telemetry.executionDuration, { language }), executeMs)
    )
  )
}

/** Why a VM has ended; see `Telemetry.vmDeaths`. */
export type DeathCause = "destroyed" | "violation" | "silent" | "start-failed" | "parked" | "killed" | "exited"

/** Counts one VM while it lives, and its death. For callbacks: each may be called once. */
export const life: Effect.Effect<{ readonly began: () => void; readonly ended: (cause: DeathCause) => void }> =
  Effect.map(Effect.context<never>(), (context) => {
    const live = (change: 1 | -1): void => Telemetry.vmsLive.modifyUnsafe(change, context)
    return {
      began: () => live(1),
      ended: (cause) => {
        live(-1)
        Metric.withAttributes(Telemetry.vmDeaths, { cause }).updateUnsafe(1, context)
      }
    }
  })
