import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { compare, comparison, interval, rankSum } from "../bench/compare.ts"
import * as History from "../bench/History.ts"
import { type Measurement, table } from "../bench/Measure.ts"
import { picture } from "../bench/picture.ts"

/** Skewed samples around a middle, the same every time. */
const around = (middle: number, count: number, shift = 0): ReadonlyArray<number> =>
  Array.from({ length: count }, (_, n) => middle * (1 + ((n * 7 + shift) % 10) / 40 + (n % 10 === 3 ? 0.6 : 0)))

const measured = (samples: ReadonlyArray<number>, more: Partial<Measurement> = {}): Measurement => ({
  suite: "start",
  name: "restore",
  samples,
  ...more
})

const run = (changes: Partial<History.Run["conditions"]> = {}): History.Run => ({
  conditions: {
    at: "2026-01-01T00:00:00.000Z",
    commit: "abc1234",
    version: "0.1.0",
    short: true,
    seconds: 100,
    host: "h",
    cpu: null,
    cores: 2,
    memoryMiB: 1024,
    load: [0.1, 2],
    kernel: "6",
    node: "v24",
    qemu: "7.2.22",
    accelerator: "tcg",
    ...changes
  },
  measurements: [measured([1, 2, 3])]
})

describe("bench", () => {
  it("reports a difference only when noise does not explain it", () => {
    const before = around(100, 40)
    const verdict = (after: ReadonlyArray<number>) => compare([measured(before)], [measured(after)])[0]?.verdict
    assert.strictEqual(verdict(around(100, 40, 3)), "no difference seen")
    assert.strictEqual(verdict(around(130, 40)), "more")
    assert.strictEqual(verdict(around(70, 40)), "less")
    assert.strictEqual(verdict(around(130, 4)), "too few samples")
    assert.deepStrictEqual(compare([measured(before, { name: "other" })], [measured(before)]), [])
    const [low, high] = interval(before, around(130, 40))
    assert.isTrue(low > 1.1 && low < 1.3 && high > 1.3 && high < 1.5, `${low} … ${high}`)
    assert.deepStrictEqual(interval(before, before), interval(before, before))
  })

  it("the rank-sum test gives the known probability, with and without ties", () => {
    // 10 and 10 samples that do not overlap: U = 0, z = 49.5 / sqrt(175).
    const low = Array.from({ length: 10 }, (_, n) => n)
    const high = low.map((n) => n + 100)
    assert.closeTo(rankSum(low, high), 0.000183, 0.000002)
    assert.strictEqual(rankSum([1, 1, 1, 1], [1, 1, 1, 1]), 1)
    assert.isAbove(rankSum([1, 2, 2, 3, 5], [1, 2, 3, 3, 4]), 0.5)
  })

  it("records runs in a file, skips lines that are not runs, and finds the requested run", () => {
    const directory = fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-bench-"))
    try {
      const file = path.join(directory, "deep", "bench.jsonl")
      History.append(file, run())
      fs.appendFileSync(file, '{"conditions": 1}\nhalf a li\n')
      History.append(file, run({ commit: "def5678+", accelerator: "kvm" }))
      const runs = History.read(file)
      assert.deepStrictEqual(
        runs.map((it) => it.conditions.commit),
        ["abc1234", "def5678+"]
      )
      const like = run().conditions
      const found = (which: string) => History.find(which, runs, like)?.conditions.commit
      assert.deepStrictEqual([found("last"), found("def"), found("fff")], ["abc1234", "def5678+", undefined])
      const single = path.join(directory, "one.json")
      fs.writeFileSync(single, JSON.stringify(run({ commit: "file" }), null, 2))
      assert.strictEqual(found(single), "file")
    } finally {
      fs.rmSync(directory, { recursive: true })
    }
  })

  it("tables have the unit, p99 and the ratio to the floor; comparisons the interval", () => {
    const all = [
      measured(around(10, 20), { name: "floor" }),
      measured(around(20, 20), { floor: "floor" }),
      measured([3.5], { name: "rate", unit: "runs/s" })
    ]
    const lines = table(all).split("\n")
    assert.match(lines[0] ?? "", /p50 +p95 +p99 +unit +n$/)
    assert.match(lines[2] ?? "", /2\.00 × floor$/)
    assert.match(lines[3] ?? "", /3\.50 +3\.50 +3\.50 +runs\/s +1$/)
    assert.match(comparison(compare(all, all)), /× 1\.00 +0\.\d\d … 1\.\d\d +no difference seen/)
  })

  it("draws every sample, and accepts text and values that an SVG cannot contain", () => {
    const svg = picture("a < b & c", [
      measured([1, 10, 100], { name: 'x "<y>"' }),
      measured([0, 0], { name: "failures", unit: "of 8" }),
      measured([20.5], { name: "PSS", unit: "MiB" })
    ])
    assert.strictEqual(svg.match(/<circle /g)?.length, 4)
    assert.include(svg, "a &lt; b &amp; c")
    assert.notMatch(svg, /NaN|Infinity|of 8/)
  })
})
