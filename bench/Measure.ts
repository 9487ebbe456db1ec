/** Measurements: samples of a duration, and the table they are printed in. */
import * as Effect from "effect/Effect"

/** Samples of one thing in ms; `floor` names the measurement it is compared with. */
export interface Measurement {
  readonly suite: string
  readonly name: string
  readonly samples: ReadonlyArray<number>
  readonly floor?: string
}

const quantile = (samples: ReadonlyArray<number>, q: number): number => {
  const sorted = samples.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.ceil(q * sorted.length) - 1)] ?? Number.NaN
}

export const p50 = (measurement: Measurement): number => quantile(measurement.samples, 0.5)
export const p95 = (measurement: Measurement): number => quantile(measurement.samples, 0.95)

/** Runs an effect several times, one after another, and keeps how long each took, in ms. */
export const repeat = <A, E, R>(times: number, effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const samples: Array<number> = []
    for (let n = 0; n < times; n++) {
      const started = performance.now()
      yield* effect
      samples.push(performance.now() - started)
    }
    return samples
  })

const ms = (value: number): string => (value < 100 ? value.toFixed(2) : value.toFixed(0))

/** The measurements as a table of text. */
export const table = (measurements: ReadonlyArray<Measurement>): string => {
  const rows = measurements.map((it) => {
    const floor = measurements.find((other) => other.name === it.floor && other.suite === it.suite)
    const ratio = floor === undefined ? "" : `${(p50(it) / p50(floor)).toFixed(2)} × floor`
    return [it.suite, it.name, ms(p50(it)), ms(p95(it)), `${it.samples.length}`, ratio]
  })
  const all = [["suite", "measurement", "p50 ms", "p95 ms", "n", ""], ...rows]
  const widths = all[0]?.map((_, column) => Math.max(...all.map((row) => (row[column] ?? "").length))) ?? []
  return all
    .map((row) =>
      row
        .map((cell, column) =>
          column >= 2 && column <= 4 ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0)
        )
        .join("  ")
        .trimEnd()
    )
    .join("\n")
}
