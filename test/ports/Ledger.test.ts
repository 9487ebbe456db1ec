import { assert, describe, it } from "@effect/vitest"
import * as PortLedger from "../../src/ports/Ledger.ts"

describe("PortLedger", () => {
  it("a recording has the traffic of its time, for the ports that were open then", () => {
    const ledger = PortLedger.make()
    const early = ledger.begin(80, "127.0.0.1", 5000)
    early.bytesIn = 7
    const over = ledger.begin(81, "127.0.0.1", 5001)
    const http = ledger.begin(82, null, null)
    ledger.end(over)
    const first = ledger.record()
    early.bytesIn += 3
    early.connections++
    ledger.end(early)
    const late = ledger.begin(83, "127.0.0.1", 5002)
    late.refused++
    const quiet = { connections: 0, refused: 0, bytesIn: 0, bytesOut: 0 }
    assert.deepStrictEqual(first.uses(), [
      { guestPort: 80, host: "127.0.0.1", port: 5000, ...quiet, connections: 1, bytesIn: 3 },
      { guestPort: 83, host: "127.0.0.1", port: 5002, ...quiet, refused: 1 }
    ])
    // A later recording does not contain the closed port, and the HTTP client's port only because it was used.
    const second = ledger.record()
    http.connections++
    assert.deepStrictEqual(second.uses(), [
      { guestPort: 82, host: null, port: null, ...quiet, connections: 1 },
      { guestPort: 83, host: "127.0.0.1", port: 5002, ...quiet }
    ])
    second.stop()
    first.stop()
    assert.deepStrictEqual(
      ledger
        .record()
        .uses()
        .map((use) => use.guestPort),
      [83]
    )
  })
})
