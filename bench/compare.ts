/**
 * Compares two runs: how the medians differ, and how much of that may be noise.
 *
 * Machines drift by half, and samples are few and skewed, so no distribution is assumed: a bootstrap gives the interval of the ratio
 * of medians, and the rank-sum test of Mann and Whitney says whether the samples differ at all.
 */
import { columns, type Measurement, quantile, short } from "./Measure.ts"

/** How many resamples the bootstrap takes. */
const rounds = 2000
/** The significance level of the rank-sum test. */
const level = 0.01
/** With fewer samples in one of the runs there is no verdict. */
const fewest = 5

/** A small random generator with a fixed seed (mulberry32), so that the same samples always give the same interval. */
const generator = (): (() => number) => {
  let state = 0x9e3779b9
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }
}

const median = (samples: ReadonlyArray<number>): number => {
  const sorted = samples.toSorted((a, b) => a - b)
  const middle = sorted.length / 2
  return sorted.length % 2 === 1
    ? (sorted[Math.floor(middle)] ?? Number.NaN)
    : ((sorted[middle - 1] ?? Number.NaN) + (sorted[middle] ?? Number.NaN)) / 2
}

/** The 95 % interval of median(after) / median(before). */
export const interval = (
  before: ReadonlyArray<number>,
  after: ReadonlyArray<number>
): readonly [low: number, high: number] => {
  const random = generator()
  const resampled = (samples: ReadonlyArray<number>): number =>
    median(samples.map(() => samples[Math.floor(random() * samples.length)] ?? Number.NaN))
  const ratios = Array.from({ length: rounds }, () => resampled(after) / resampled(before))
  return [quantile(ratios, 0.025), quantile(ratios, 0.975)]
}

/** The upper tail of the normal distribution, within 1.5e-7 (Abramowitz and Stegun 7.1.26). */
const tail = (z: number): number => {
  const x = z / Math.SQRT2
  const t = 1 / (1 + 0.3275911 * x)
  const polynomial = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
  return 0.5 * polynomial * Math.exp(-x * x)
}

/** The p-value of the rank-sum test (two-sided, corrected for ties). */
export const rankSum = (a: ReadonlyArray<number>, b: ReadonlyArray<number>): number => {
  const all = [...a.map((value) => ({ value, first: true })), ...b.map((value) => ({ value, first: false }))]
  all.sort((x, y) => x.value - y.value)
  let ranks = 0
  let ties = 0
  for (let from = 0; from < all.length;) {
    let to = from
    while (to < all.length && all[to]?.value === all[from]?.value) to++
    const rank = (from + 1 + to) / 2
    for (let at = from; at < to; at++) if (all[at]?.first === true) ranks += rank
    ties += (to - from) ** 3 - (to - from)
    from = to
  }
  const n = all.length
  const mean = (a.length * b.length) / 2
  const variance = ((a.length * b.length) / 12) * (n + 1 - ties / (n * (n - 1)))
  if (!(variance > 0)) return 1
  const u = ranks - (a.length * (a.length + 1)) / 2
  const z = Math.max(0, Math.abs(u - mean) - 0.5) / Math.sqrt(variance)
  return Math.min(1, 2 * tail(z))
}

/** One measurement in both runs: the medians, their ratio with its 95 % interval, and the verdict. */
export interface Difference {
  readonly measurement: Measurement
  readonly before: number
  readonly after: number
  readonly ratio: number
  readonly low: number
  readonly high: number
  readonly verdict: "more" | "less" | "no difference seen" | "too few samples"
}

/** Compares the measurements that both runs have. */
export const compare = (
  before: ReadonlyArray<Measurement>,
  after: ReadonlyArray<Measurement>
): ReadonlyArray<Difference> =>
  after.flatMap((measurement): ReadonlyArray<Difference> => {
    const { name, samples, suite, unit } = measurement
    const old = before.find((it) => it.suite === suite && it.name === name && it.unit === unit)
    if (old === undefined) return []
    const [from, to] = [median(old.samples), median(samples)]
    if (Math.min(samples.length, old.samples.length) < fewest) {
      const known = { measurement, before: from, after: to, ratio: to / from }
      return [{ ...known, low: Number.NaN, high: Number.NaN, verdict: "too few samples" }]
    }
    const [low, high] = interval(old.samples, samples)
    const sure = rankSum(old.samples, samples) < level && (low > 1 || high < 1)
    const verdict = sure ? (to > from ? "more" : "less") : "no difference seen"
    return [{ measurement, before: from, after: to, ratio: to / from, low, high, verdict }]
  })

const number = (value: number): string => (Number.isNaN(value) ? "" : short(value))

/** The comparison as a table of text. */
export const comparison = (differences: ReadonlyArray<Difference>): string => {
  const rows = differences.map(({ after, before, high, low, measurement, ratio, verdict }) => [
    measurement.suite,
    measurement.name,
    number(before),
    number(after),
    measurement.unit ?? "ms",
    Number.isFinite(ratio) ? `× ${ratio.toFixed(2)}` : "",
    Number.isNaN(low) ? "" : `${low.toFixed(2)} … ${high.toFixed(2)}`,
    verdict
  ])
  return columns(
    [["suite", "measurement", "before", "now", "unit", "ratio", "95 % interval", ""], ...rows],
    (column) => column === 2 || column === 3
  )
}
