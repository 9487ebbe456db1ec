import { assert, describe, it } from "@effect/vitest"
import * as Lines from "../../src/internal/Lines.ts"

describe("Lines", () => {
  it("returns whole lines, and undefined when a line is too long", () => {
    const lines = Lines.make(10)
    assert.deepStrictEqual(lines(Buffer.from("a\nbc")), ["a"])
    assert.deepStrictEqual(lines(Buffer.from("d\n\ne")), ["bcd", ""])
    assert.isUndefined(lines(Buffer.from("f".repeat(10))))
  })
})
