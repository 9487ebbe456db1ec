import { assert, describe, it } from "@effect/vitest"
import * as Pieces from "../../src/ports/Pieces.ts"

describe("Pieces", () => {
  it("joins small pieces and cuts large ones, and keeps the order of all bytes", () => {
    const pieces = Pieces.make()
    const whole = Buffer.from(Array.from({ length: 300_000 }, (_, n) => n % 251))
    for (let at = 0; at < 10_000; at++) pieces.push(whole.subarray(at, at + 1))
    pieces.push(whole.subarray(10_000))
    const taken: Array<Uint8Array> = []
    for (let piece = pieces.take(); piece !== undefined; piece = pieces.take()) taken.push(piece)
    assert.isTrue(pieces.empty())
    assert.isTrue(whole.equals(Buffer.concat(taken)))
    assert.deepStrictEqual(
      taken.map((piece) => piece.length),
      [4096, 4096, 1808, 65_536, 65_536, 65_536, 65_536, 27_856]
    )
  })
})
