/**
 * Measurements, and the table that prints them.
 *
 * A suite is a file that exports `measure(times)`, an effect that gives measurements; `main.ts` runs it.
 */
import * as Effect from "effect/Effect"

/** Samples of one quantity, in ms unless `unit` says otherwise; `floor` names the measurement that it is compared with. */
export interface Measurement {
  readonly suite: string
  readonly name: string
  readonly samples: ReadonlyArray<number>
  readonly floor?: string
  readonly unit?: string
}

export const quantile = (samples: ReadonlyArray<number>, q: number): number => {
  const sorted = samples.toSorted((a, b) => a - b)
  return sorted[Math.max(0, Math.min(sorted.length - 1, Math.ceil(q * sorted.length) - 1))] ?? Number.NaN
}

/** Runs an effect `times` times, one after another, and gives how long each run took, in ms. */
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

/** A number with few digits. */
export const short = (value: number): string =>
  Math.abs(value) < 100 && !Number.isInteger(value) ? value.toFixed(2) : value.toFixed(0)

/** Aligns rows of cells in columns; `right` says which columns are aligned to the right. */
export const columns = (rows: ReadonlyArray<ReadonlyArray<string>>, right: (column: number) => boolean): string => {
  const widths = rows[0]?.map((_, column) => Math.max(...rows.map((row) => (row[column] ?? "").length))) ?? []
  return rows
    .map((row) =>
      row
        .map((cell, column) => (right(column) ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0)))
        .join("  ")
        .trimEnd()
    )
    .join("\n")
}

/** The measurements as a table of text. */
export const table = (measurements: ReadonlyArray<Measurement>): string => {
  const rows = measurements.map((it) => {
    const floor = measurements.find((other) => other.name === it.floor && other.suite === it.suite)
    const ratio =
      floor === undefined ? "" : `${(quantile(it.samples, 0.5) / quantile(floor.samples, 0.5)).toFixed(2)} × floor`
    const quantiles = [0.5, 0.95, 0.99].map((q) => short(quantile(it.samples, q)))
    return [it.suite, it.name, ...quantiles, it.unit ?? "ms", `${it.samples.length}`, ratio]
  })
  return columns(
    [["suite", "measurement", "p50", "p95", "p99", "unit", "n", ""], ...rows],
    (column) => (column >= 2 && column <= 4) || column === 6
  )
}
