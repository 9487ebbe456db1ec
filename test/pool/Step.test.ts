import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as PoolStep from "../../src/pool/Step.ts"

const settings: PoolStep.Settings = {
  size: 3,
  maxParallel: 2,
  maxAgeMs: 10_000,
  quietMs: 100,
  breakerAfter: 3,
  breakerMs: 1000
}

/** Applies messages in order, each at its time. */
const play = (
  settings: PoolStep.Settings,
  ...messages: ReadonlyArray<readonly [now: number, message: PoolStep.Message]>
) => {
  let state = PoolStep.initial(settings)
  const log: Array<ReadonlyArray<PoolStep.Action>> = []
  for (const [now, message] of messages) {
    const [next, actions] = PoolStep.step(state, message, now)
    state = next
    log.push(actions)
  }
  return { state, log, last: log.at(-1) ?? [] }
}

const tick: PoolStep.Message = { _tag: "Tick" }
const make = (id: number): PoolStep.Action => ({ _tag: "Make", id })
const give = (claim: number, id: number): PoolStep.Action => ({ _tag: "Give", claim, id })
const destroy = (id: number): PoolStep.Action => ({ _tag: "Destroy", id })
const ready = (id: number): PoolStep.Message => ({ _tag: "Ready", id })
const started = (id: number): PoolStep.Message => ({ _tag: "Started", id })
const claim = (claim: number): PoolStep.Message => ({ _tag: "Claim", claim })
const failed = (id: number): PoolStep.Message => ({ _tag: "Failed", id, cause: "no disk" })
const died = (id: number): PoolStep.Message => ({ _tag: "Died", id, cause: "killed" })

describe("PoolStep", () => {
  it("fills to its size, at most `maxParallel` at a time", () => {
    const { log, state } = play(settings, [0, tick], [1, ready(1)], [2, ready(2)], [3, ready(3)])
    assert.deepStrictEqual(log, [[make(1), make(2)], [make(3)], [], []])
    assert.deepStrictEqual(
      state.ready.map((it) => it.id),
      [1, 2, 3]
    )
  })

  it("gives the oldest, and refills after the quiet time, which further claims do not extend", () => {
    const one = { ...settings, size: 2 }
    const { log, state } = play(
      one,
      [0, tick],
      [1, ready(1)],
      [2, ready(2)],
      [1000, claim(7)],
      [1090, claim(8)],
      [1100, tick]
    )
    assert.deepStrictEqual(log.slice(3), [[give(7, 1)], [give(8, 2)], [make(3), make(4)]])
    assert.strictEqual(PoolStep.wakeAt(state, 1100), undefined)
  })

  it("a claim waits for a clone that is being restored if no other claim does; otherwise it misses at once", () => {
    const { log } = play(
      settings,
      [0, tick],
      [1, claim(1)],
      [2, started(1)],
      [3, claim(2)],
      [4, claim(3)],
      [5, started(2)],
      [6, claim(4)],
      [7, ready(2)],
      [8, ready(1)]
    )
    const reason = "none of the pool's 3 clones is ready"
    const kind = "none-ready"
    assert.deepStrictEqual(log, [
      [make(1), make(2)],
      [{ _tag: "Miss", claim: 1, kind, reason }],
      [],
      [],
      [{ _tag: "Miss", claim: 3, kind, reason }],
      [],
      [],
      [give(2, 2)],
      [give(4, 1)]
    ])
  })

  it("gives nothing to a claim that was cancelled", () => {
    const { last } = play(
      settings,
      [0, tick],
      [1, started(1)],
      [2, claim(1)],
      [3, { _tag: "Cancel", claim: 1 }],
      [4, ready(1)]
    )
    assert.deepStrictEqual(last, [make(3)])
  })

  it("a claim misses when the clone it waits for fails", () => {
    const { last } = play(settings, [0, tick], [1, started(1)], [2, claim(1)], [3, failed(1)])
    assert.deepStrictEqual(last, [
      { _tag: "Miss", claim: 1, kind: "none-ready", reason: "none of the pool's 3 clones is ready" },
      make(3)
    ])
  })

  it("does not give a dead clone or one that is too old", () => {
    const kind = "none-ready"
    const one = { ...settings, size: 1 }
    const { log } = play(one, [0, tick], [1, ready(1)], [2, died(1)], [3, claim(1)], [4, ready(2)], [10_004, claim(2)])
    const reason = "none of the pool's 1 clones is ready"
    assert.deepStrictEqual(log, [
      [make(1)],
      [],
      [destroy(1), make(2)],
      [{ _tag: "Miss", claim: 1, kind, reason }],
      [],
      [destroy(2), { _tag: "Miss", claim: 2, kind, reason }, make(3)]
    ])
  })

  it("suspends making after failures in a row, then tries one clone, and suspends for longer each time", () => {
    const one = { ...settings, size: 2, maxParallel: 1 }
    const opened = play(one, [0, tick], [10, failed(1)], [20, failed(2)], [30, failed(3)])
    assert.deepStrictEqual(opened.last, [])
    assert.strictEqual(PoolStep.breaker(opened.state, 1029), "open")
    assert.strictEqual(PoolStep.wakeAt(opened.state, 30), 1030)
    const [, miss] = PoolStep.step(opened.state, claim(1), 500)
    assert.deepStrictEqual(miss, [
      { _tag: "Miss", claim: 1, kind: "breaker", reason: "the pool's clones keep failing: no disk" }
    ])

    const [half, trying] = PoolStep.step(opened.state, tick, 1030)
    assert.strictEqual(PoolStep.breaker(half, 1030), "half-open")
    assert.deepStrictEqual(trying, [make(4)])
    const [again, none] = PoolStep.step(half, failed(4), 1040)
    assert.deepStrictEqual(none, [])
    assert.strictEqual(PoolStep.wakeAt(again, 1040), 3040)

    const [closed, filling] = PoolStep.step(half, ready(4), 1040)
    assert.strictEqual(PoolStep.breaker(closed, 1040), "closed")
    assert.deepStrictEqual(filling, [make(5)])
  })

  it("suspends making also when idle clones die one after another", () => {
    const one = { ...settings, size: 1 }
    const { state } = play(
      one,
      [0, tick],
      [1, ready(1)],
      [2, died(1)],
      [3, ready(2)],
      [4, died(2)],
      [5, ready(3)],
      [6, died(3)]
    )
    assert.strictEqual(PoolStep.breaker(state, 7), "open")
  })

  it("resizes, sheds and drains", () => {
    const full = play(settings, [0, tick], [1, ready(1)], [2, ready(2)], [3, ready(3)]).state
    const [smaller, fewer] = PoolStep.step(full, { _tag: "Resize", size: 1 }, 4)
    assert.deepStrictEqual(fewer, [destroy(1), destroy(2)])
    assert.deepStrictEqual(PoolStep.step(smaller, { _tag: "Resize", size: 2 }, 5)[1], [make(4)])
    assert.deepStrictEqual(PoolStep.step(full, { _tag: "Shed" }, 4)[1], [destroy(1), make(4)])
    const [drained, gone] = PoolStep.step(full, { _tag: "Drain" }, 4)
    assert.deepStrictEqual(gone, [destroy(1), destroy(2), destroy(3)])
    assert.deepStrictEqual(PoolStep.step(drained, claim(1), 5)[1], [
      { _tag: "Miss", claim: 1, kind: "closing", reason: "the pool is closing" }
    ])
  })

  /** An event for a pool; `pick` chooses among the clones or claims that exist at that moment. */
  const Happening = Schema.Struct({
    kind: Schema.Literals([
      "claim",
      "claim",
      "claim",
      "cancel",
      "started",
      "started",
      "ready",
      "ready",
      "ready",
      "failed",
      "died",
      "resize",
      "shed",
      "tick",
      "late"
    ]),
    pick: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 1000 })),
    ms: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 3000 }))
  })

  it.effect.prop(
    "any events: no clone is given twice, dead or old; numbers are bounded; each claim is answered once, in order",
    [Arbitrary.array(Arbitrary.schema(Happening), { maxLength: 150 })],
    ([happenings]) =>
      Effect.sync(() => {
        let state = PoolStep.initial(settings)
        let now = 0
        const alive = new Map<number, "making" | "ready">()
        const since = new Map<number, number>()
        const open: Array<number> = []
        const gone = new Set<number>()
        let nextClaim = 1
        const run = (message: PoolStep.Message): void => {
          const breaker = PoolStep.breaker(state, now)
          if (message._tag === "Ready" && alive.get(message.id) === "making") {
            alive.set(message.id, "ready")
            since.set(message.id, now)
          }
          if (message._tag === "Failed") alive.delete(message.id)
          const [next, actions] = PoolStep.step(state, message, now)
          state = next
          for (const action of actions) {
            switch (action._tag) {
              case "Make":
                assert.isFalse(alive.has(action.id) || gone.has(action.id), "a number is used once")
                assert.isFalse(breaker === "open" && PoolStep.breaker(state, now) === "open", "nothing made while open")
                alive.set(action.id, "making")
                break
              case "Destroy":
                assert.isTrue(alive.has(action.id), "destroyed once")
                alive.delete(action.id)
                gone.add(action.id)
                break
              case "Give": {
                assert.strictEqual(alive.get(action.id), "ready", "given only when ready, and once")
                assert.isBelow(now - (since.get(action.id) ?? 0), settings.maxAgeMs)
                alive.delete(action.id)
                gone.add(action.id)
                assert.strictEqual(open.shift(), action.claim, "in the order of the claims")
                break
              }
              case "Miss": {
                const at = open.indexOf(action.claim)
                assert.isAtLeast(at, 0, "answered once")
                open.splice(at, 1)
              }
            }
          }
          const making = [...alive.values()].filter((it) => it === "making").length
          assert.isAtMost(making, settings.maxParallel)
          assert.isAtMost(alive.size - making, Math.max(state.settings.size, 0))
          assert.deepStrictEqual(state.waiting, open)
          assert.deepStrictEqual(
            [...state.ready, ...state.making].map((it) => it.id).toSorted(),
            [...alive.keys()].toSorted()
          )
        }
        const some = (kind: "making" | "ready", pick: number): number | undefined => {
          const ids = [...alive].filter(([, it]) => it === kind).map(([id]) => id)
          return ids[pick % ids.length]
        }
        run(tick)
        for (const { kind, ms, pick } of happenings) {
          now += ms
          const making = some("making", pick)
          const idle = some("ready", pick)
          switch (kind) {
            case "claim":
              open.push(nextClaim)
              run(claim(nextClaim++))
              break
            case "cancel": {
              const [left] = open.splice(pick % Math.max(1, open.length), 1)
              if (left !== undefined) run({ _tag: "Cancel", claim: left })
              break
            }
            case "started":
              if (making !== undefined) run(started(making))
              break
            case "ready":
              if (making !== undefined) run(ready(making))
              break
            case "failed":
              if (making !== undefined) run(failed(making))
              break
            case "died":
              if (idle !== undefined) run(died(idle))
              break
            case "resize":
              run({ _tag: "Resize", size: pick % 5 })
              break
            case "shed":
              run({ _tag: "Shed" })
              break
            case "tick":
              run(tick)
              break
            case "late":
              // Messages about a clone that is no longer the pool's.
              for (const id of [...gone].slice(-2)) {
                run(ready(id))
                run(died(id))
                run(started(id))
              }
          }
        }
        // Without further events, and when clones can be made, the pool becomes full.
        run({ _tag: "Resize", size: 3 })
        for (let n = 0; n < 200; n++) {
          const making = some("making", 0)
          if (making !== undefined) run(ready(making))
          else {
            const at = PoolStep.wakeAt(state, now)
            if (at === undefined || state.ready.length === 3) break
            now = at
            run(tick)
          }
        }
        assert.strictEqual(state.ready.length, 3)
        assert.deepStrictEqual(open, [])
        run({ _tag: "Drain" })
        assert.strictEqual(alive.size, 0)
        assert.strictEqual(PoolStep.wakeAt(state, now), undefined)
      }),
    { arbitrary: { runs: 500 } }
  )
})
