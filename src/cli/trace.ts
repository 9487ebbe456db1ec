/** `--trace`: collects the spans of a command and draws them as a tree with times. */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"
import { write } from "./output.ts"

/** The most spans that are collected; a command has a few dozen. */
const maxSpans = 10_000

/** Makes a tracer that collects every span. */
export const gather = (): { readonly tracer: Tracer.Tracer; readonly spans: ReadonlyArray<Tracer.Span> } => {
  const spans: Array<Tracer.Span> = []
  const tracer = Tracer.make({
    span: (options) => {
      const span = new Tracer.NativeSpan(options)
      if (spans.length < maxSpans) spans.push(span)
      return span
    }
  })
  return { tracer, spans }
}

const prefix = "exec_sandbox."

const value = (it: unknown): string => (typeof it === "string" ? it : JSON.stringify(it))

/** A span's attributes, and how it ended if it failed. */
const details = (span: Tracer.Span): string => {
  const said = [...span.attributes]
    .filter(([name]) => name.startsWith(prefix))
    .map(([name, it]) => `${name.slice(prefix.length)}=${value(it)}`)
  if (span.status._tag === "Started") said.push("not ended")
  else if (Exit.isFailure(span.status.exit)) {
    const { cause } = span.status.exit
    const error = Option.getOrUndefined(Cause.findErrorOption(cause))
    const text = error instanceof Error ? error.name : "died"
    said.push(Cause.hasInterruptsOnly(cause) ? "interrupted" : `failed: ${text}`)
  }
  return said.join(" ")
}

const ms = (nanos: bigint): string => (Number(nanos) / 1e6).toFixed(1)

/** Draws a line per span: its start in ms after the first, how long it took in ms, and its name, indented below its parent. */
export const draw = (spans: ReadonlyArray<Tracer.Span>): string => {
  const sorted = spans.toSorted((a, b) => (a.status.startTime < b.status.startTime ? -1 : 1))
  const origin = sorted[0]?.status.startTime ?? 0n
  const known = new Set(spans.map((it) => it.spanId))
  const children = Map.groupBy(sorted, (span) => {
    const parent = Option.getOrUndefined(span.parent)?.spanId
    return parent !== undefined && known.has(parent) ? parent : ""
  })
  const rows: Array<readonly [string, string, string, string]> = []
  const walk = (parent: string, depth: number): void => {
    for (const span of children.get(parent) ?? []) {
      const { status } = span
      const took = status._tag === "Ended" ? ms(status.endTime - status.startTime) : "?"
      rows.push([ms(status.startTime - origin), took, `${"  ".repeat(depth)}${span.name}`, details(span)])
      walk(span.spanId, depth + 1)
    }
  }
  walk("", 0)
  const all = [["at ms", "took ms", "span", ""] as const, ...rows]
  const width = (column: 0 | 1 | 2): number => Math.max(...all.map((row) => row[column].length))
  return all
    .map(([at, took, name, said]) =>
      `${at.padStart(width(0))}  ${took.padStart(width(1))}  ${name.padEnd(width(2))}  ${said}`.trimEnd()
    )
    .map((line) => `${line}\n`)
    .join("")
}

/** Runs an effect and prints its spans to stderr at its end, also when it failed. */
export const traced = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.suspend(() => {
    const { spans, tracer } = gather()
    return effect.pipe(
      Effect.withTracer(tracer),
      Effect.ensuring(Effect.ignore(Effect.suspend(() => write(process.stderr, draw(spans)))))
    )
  })
