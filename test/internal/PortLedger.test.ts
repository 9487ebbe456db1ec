import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import * as Pieces from "../../src/internal/Pieces.ts"
import * as PortLedger from "../../src/internal/PortLedger.ts"

describe("PortLedger", () => {
  it.effect("tells what went through while it recorded, of ports that were open then", () =>
    Effect.gen(function* () {
      const ledger = PortLedger.make()
      const early = ledger.begin(80, "127.0.0.1", 5000)
      early.bytesIn = 7
      const over = ledger.begin(81, "127.0.0.1", 5001)
      const http = ledger.begin(82, null, null)
      ledger.end(over)
      const scope = yield* Scope.make()
      const read = yield* Scope.provide(ledger.record, scope)
      early.bytesIn += 3
      early.connections++
      ledger.end(early)
      const late = ledger.begin(83, "127.0.0.1", 5002)
      late.refused++
      const quiet = { connections: 0, refused: 0, bytesIn: 0, bytesOut: 0 }
      const expected = [
        { guestPort: 80, host: "127.0.0.1", port: 5000, ...quiet, connections: 1, bytesIn: 3 },
        { guestPort: 83, host: "127.0.0.1", port: 5002, ...quiet, refused: 1 }
      ]
      assert.deepStrictEqual(read(), expected)
      // One that begins later does not see the port that is closed, and the HTTP client only where it was used.
      const second = yield* Effect.scoped(
        Effect.map(ledger.record, (again) => {
          http.connections++
          return again()
        })
      )
      assert.deepStrictEqual(second, [
        { guestPort: 82, host: null, port: null, ...quiet, connections: 1 },
        { guestPort: 83, host: "127.0.0.1", port: 5002, ...quiet }
      ])
      yield* Scope.close(scope, Exit.void)
      assert.deepStrictEqual(
        (yield* Effect.scoped(Effect.map(ledger.record, (again) => again()))).map((use) => use.guestPort),
        [83]
      )
    })
  )
})

describe("Pieces", () => {
  it("joins small pieces and cuts large ones, and keeps every byte in its place", () => {
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
