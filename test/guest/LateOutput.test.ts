import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as LateOutput from "../../src/guest/LateOutput.ts"
import { Sub } from "../../src/guest/Frame.ts"

const bytes = (text: string): Uint8Array => Buffer.from(text)

/** A buffer whose next bytes belong to execution 3, and the grants so far. */
const make = () => {
  const granted: Array<number> = []
  const late = LateOutput.make((n) => void granted.push(n))
  late.begin()
  late.note({ execution: 3 })
  return { late, granted }
}
const shown = (pieces: ReadonlyArray<LateOutput.Late | LateOutput.Dropped>) =>
  pieces.map((it) => (it._tag === "Dropped" ? [it._tag, it.bytes] : [it._tag, it.stream, `${Buffer.from(it.bytes)}`]))

describe("LateOutput", () => {
  it.effect("keeps order and origin, and joins consecutive bytes of the same stream", () =>
    Effect.gen(function* () {
      const { granted, late } = make()
      late.data(Sub.stdout, bytes("a"))
      late.data(Sub.stdout, bytes("b"))
      late.data(Sub.stderr, bytes("c"))
      late.note({ execution: 5 })
      late.data(Sub.stderr, bytes("d"))
      assert.deepStrictEqual(granted, [])
      assert.deepStrictEqual(shown(yield* late.takeAll), [
        ["Stdout", 3, "ab"],
        ["Stderr", 3, "c"],
        ["Stderr", 5, "d"]
      ])
      assert.deepStrictEqual(granted, [4])
    })
  )

  it.effect("waits for the first piece, and ends when it is closed and empty", () =>
    Effect.gen(function* () {
      const { late } = make()
      const reader = yield* Effect.forkChild(late.takeAll, { startImmediately: true })
      late.data(Sub.stdout, bytes("x"))
      assert.deepStrictEqual(shown(yield* Fiber.join(reader)), [["Stdout", 3, "x"]])
      late.data(Sub.stdout, bytes("last"))
      late.close()
      assert.deepStrictEqual(shown(yield* late.takeAll), [["Stdout", 3, "last"]])
      assert.isTrue(Exit.isFailure(yield* Effect.exit(late.takeAll)))
    })
  )

  it.effect("drops bytes beyond the limit of pieces, counts them, and grants credit for them at once", () =>
    Effect.gen(function* () {
      const { granted, late } = make()
      for (let i = 0; i < 3000; i++) late.data(i % 2 === 0 ? Sub.stdout : Sub.stderr, bytes("x"))
      late.note({ dropped: 10 })
      const pieces = shown(yield* late.takeAll)
      assert.strictEqual(pieces.length, 1025)
      assert.deepStrictEqual(pieces.at(-1), ["Dropped", 3000 - 1024 + 10])
      assert.strictEqual(
        granted.reduce((sum, n) => sum + n, 0),
        3000
      )
    })
  )

  it.effect("joins many single bytes of one stream into one piece", () =>
    Effect.gen(function* () {
      const { late } = make()
      for (let i = 0; i < 200_000; i++) late.data(Sub.stdout, bytes("y"))
      const [piece, ...rest] = yield* late.takeAll
      assert.deepStrictEqual(rest, [])
      assert.isTrue(piece._tag === "Stdout" && Buffer.from(piece.bytes).equals(Buffer.alloc(200_000, "y")))
    })
  )

  const nonsense = [null, 1, "x", { execution: "3" }, { execution: -1 }, { dropped: 1.5 }, { dropped: -4 }, {}]
  it.effect("ignores malformed notes, and drops bytes of an unknown origin", () =>
    Effect.gen(function* () {
      const late = LateOutput.make(() => {})
      for (const note of nonsense) late.note(note)
      late.data(Sub.stdout, bytes("nobody's"))
      assert.deepStrictEqual(shown(yield* late.takeAll), [["Dropped", 8]])
    })
  )
})
