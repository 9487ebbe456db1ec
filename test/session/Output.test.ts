import { assert, describe, it } from "@effect/vitest"
import { randomBytes } from "node:crypto"
import * as Output from "../../src/session/Output.ts"

describe("Output", () => {
  it("keeps an output within the limit whole", () => {
    const bytes = randomBytes(1000)
    const output = Output.make(1000)
    for (const byte of bytes) output.push(Uint8Array.of(byte))
    assert.isTrue(bytes.equals(output.bytes()))
    assert.isFalse(output.truncated())
    assert.strictEqual(output.total(), 1000)
  })

  it("keeps head and tail of a longer output, whatever its pieces, and counts all bytes", () => {
    for (const limit of [0, 1, 2, 7, 1000, 100_000]) {
      for (let round = 0; round < 20; round++) {
        const bytes = randomBytes(limit + 1 + Math.floor(Math.random() * 300_000))
        const output = Output.make(limit)
        for (let at = 0; at < bytes.length;) {
          const size = 1 + Math.floor(Math.random() * 40_000)
          output.push(bytes.subarray(at, at + size))
          at += size
        }
        const head = Math.ceil(limit / 2)
        const expected = Buffer.concat([bytes.subarray(0, head), bytes.subarray(bytes.length - (limit - head))])
        assert.isTrue(expected.equals(output.bytes()), `limit ${limit}`)
        assert.strictEqual(output.total(), bytes.length)
        assert.isTrue(output.truncated())
        assert.include(output.text(), `[… ${bytes.length - limit} bytes omitted …]`)
      }
    }
  })

  it("does not split a character that arrives in pieces", () => {
    const output = Output.make(100)
    for (const byte of Buffer.from("a😀é")) output.push(Uint8Array.of(byte))
    assert.strictEqual(output.text(), "a😀é")
  })

  it("copies what it keeps", () => {
    const output = Output.make(10)
    const bytes = Buffer.from("abc")
    output.push(bytes)
    bytes.fill(0)
    assert.strictEqual(output.text(), "abc")
  })
})
