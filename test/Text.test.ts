/** Output as text while it runs: no character is split, whatever chunks its bytes come in. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import * as Execution from "../src/Execution.ts"
import { fields } from "./support/receipts.ts"

const done = { _tag: "Done", result: new Execution.Result({ ...fields(), result: null }) } as const
const out = (...bytes: ReadonlyArray<number>): Execution.Event => ({ _tag: "Stdout", bytes: Uint8Array.from(bytes) })
const err = (...bytes: ReadonlyArray<number>): Execution.Event => ({ _tag: "Stderr", bytes: Uint8Array.from(bytes) })

const said = (events: ReadonlyArray<Execution.Event>) =>
  Stream.fromIterable(events).pipe(
    Execution.text,
    Stream.map((event) => (event._tag === "Done" ? "Done" : `${event._tag} ${event.text}`)),
    Stream.runCollect
  )

describe("text", () => {
  it.effect("gives the same text for every way to cut it", () =>
    Effect.gen(function* () {
      const text = "aé€😀\ufeffz"
      const bytes = Buffer.from(text)
      for (let first = 0; first <= bytes.length; first++) {
        for (let second = first; second <= bytes.length; second++) {
          const parts = [bytes.subarray(0, first), bytes.subarray(first, second), bytes.subarray(second)]
          const events = yield* Stream.fromIterable(parts.map((part) => out(...part))).pipe(
            Execution.text,
            Stream.runCollect
          )
          const texts = events.map((event) => (event._tag === "Stdout" ? event.text : ""))
          assert.strictEqual(texts.join(""), text)
          for (const it of texts) assert.isTrue(it !== "" && it.isWellFormed() && !it.includes("\ufffd"))
        }
      }
    })
  )

  it.effect("keeps stdout and stderr apart and in order", () =>
    Effect.gen(function* () {
      const events = [out(0xe2, 0x82), err(0x78), err(0xc3), out(0xac), err(0xa9), done]
      assert.deepStrictEqual(yield* said(events), ["Stderr x", "Stdout €", "Stderr é", "Done"])
    })
  )

  it.effect("shows what is no UTF-8, and an unfinished character before the result", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* said([out(0xff, 0x61), err(0xf0, 0x9f), done]), ["Stdout �a", "Stderr �", "Done"])
    })
  )

  it.effect("shows an unfinished character before the error too, and begins anew each time", () =>
    Effect.gen(function* () {
      const seen: Array<string> = []
      const events = Stream.concat(Stream.fromIterable([out(0x61, 0xe2)]), Stream.fail("no" as const)).pipe(
        Execution.text,
        Stream.tap((event) => Effect.sync(() => void seen.push(event._tag === "Done" ? "" : event.text)))
      )
      assert.strictEqual(yield* Effect.flip(Stream.runDrain(events)), "no")
      assert.strictEqual(yield* Effect.flip(Stream.runDrain(events)), "no")
      assert.deepStrictEqual(seen, ["a", "�", "a", "�"])
    })
  )
})
