import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { randomBytes } from "node:crypto"
import { nameFromBytes, nameToBytes } from "../src/Files.ts"

describe("names", () => {
  it.effect("bytes become a string and come back, whatever they are", () =>
    Effect.sync(() => {
      for (let round = 0; round < 3000; round++) {
        const bytes = randomBytes(round % 12)
        // Every third round has bytes that are nearly UTF-8: lead bytes, continuations, encoded surrogates.
        for (let i = 0; i < bytes.length; i++)
          if (round % 3 === 0) bytes[i] = [0xed, 0xa0, 0x80, 0xf0, 0xc3, 0xe2][(bytes[i] ?? 0) % 6] ?? 0
        const name = nameFromBytes(bytes)
        assert.isTrue(Buffer.from(bytes).equals(Buffer.from(nameToBytes(name) ?? [])), bytes.toString("hex"))
        assert.strictEqual(name.isWellFormed(), !/[\udc80-\udcff]/u.test(name))
      }
      assert.strictEqual(nameFromBytes(Buffer.from("é\u{1f600}\ufeff")), "é\u{1f600}\ufeff")
      assert.strictEqual(nameFromBytes(Buffer.from([0x61, 0xff])), "a\udcff")
      assert.isUndefined(nameToBytes("\ud800"))
      assert.isUndefined(nameToBytes("\udc41"))
    })
  )
})
