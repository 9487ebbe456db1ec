import { assert, describe, it } from "@effect/vitest"
import { duplexPair } from "node:stream"
import * as Connections from "../../src/guest/Connections.ts"
import { endFlag, type Frame, initialCredit, Kind } from "../../src/guest/Frame.ts"

/** Connections with a fake guest that sends frames, and the calls that the acceptor received. */
const play = () => {
  const [socket] = duplexPair()
  const written: Array<number> = []
  const violations: Array<string> = []
  const calls: Array<string> = []
  const opened: Array<Connections.Connection> = []
  const connections = Connections.make(
    socket,
    (bytes) => {
      written.push(bytes[8] ?? 0)
      return true
    },
    (problem) => violations.push(problem)
  )
  const accept = () =>
    connections.accept((connection) => {
      opened.push(connection)
      return {
        data: (bytes) => calls.push(`data ${bytes.length}`),
        end: () => calls.push("end"),
        writable: () => calls.push("writable"),
        gone: () => calls.push("gone")
      }
    })
  const frame = (kind: number, stream: number, flags = 0, payload: Uint8Array = new Uint8Array()): boolean => {
    const it: Frame = { kind, stream, flags, payload: Buffer.from(payload) }
    return connections.frame(it, { method: "connect", host: "a.example", port: 443 })
  }
  return { connections, accept, frame, written, violations, calls, opened }
}

describe("connections that a guest opens", () => {
  it("are refused without an acceptor, or when malformed", () => {
    const it = play()
    it.frame(Kind.Open, 2)
    assert.deepStrictEqual(it.written, [Kind.Reset])
    it.accept()
    for (const request of [undefined, {}, { host: "a" }, { host: 1, port: 2 }, { host: "a", port: 65_536 }]) {
      it.connections.frame(
        { kind: Kind.Open, stream: 4 + it.written.length, flags: 0, payload: Buffer.alloc(0) },
        request
      )
    }
    assert.isEmpty(it.opened)
    assert.isEmpty(it.violations)
  })

  it("carry data with credit in both directions", () => {
    const it = play()
    it.accept()
    it.frame(Kind.Open, 2)
    assert.deepStrictEqual(it.opened[0]?.request, { host: "a.example", port: 443 })
    it.frame(Kind.Data, 2, 0, Buffer.alloc(initialCredit))
    assert.isEmpty(it.violations)
    it.opened[0]?.consumed(initialCredit)
    assert.deepStrictEqual(it.written, [Kind.Credit])
    it.frame(Kind.Data, 2, endFlag, Buffer.alloc(5))
    assert.deepStrictEqual(it.calls, [`data ${initialCredit}`, "data 5", "end"])
    // Never more than the guest has granted.
    assert.strictEqual(it.opened[0]?.send(Buffer.alloc(2 * initialCredit)), initialCredit)
    const grant = Buffer.alloc(4)
    grant.writeUInt32LE(10)
    it.frame(Kind.Credit, 2, 0, grant)
    assert.strictEqual(it.calls.at(-1), "writable")
    assert.strictEqual(it.opened[0]?.send(Buffer.alloc(100)), 10)
  })

  it("end with a violation when the guest breaks the protocol", () => {
    const broken: ReadonlyArray<(it: ReturnType<typeof play>) => void> = [
      (it) => it.frame(Kind.Open, 2),
      (it) => it.frame(Kind.Data, 2, 0, Buffer.alloc(initialCredit + 1)),
      (it) => it.frame(Kind.Data, 2),
      (it) => [it.frame(Kind.Data, 2, endFlag), it.frame(Kind.Data, 2, 0, Buffer.alloc(1))],
      (it) => it.frame(Kind.Credit, 2, 0, Buffer.alloc(3)),
      (it) => it.frame(Kind.Credit, 2, 0, Buffer.alloc(4, 0xff))
    ]
    for (const act of broken) {
      const it = play()
      it.accept()
      it.frame(Kind.Open, 2)
      act(it)
      assert.lengthOf(it.violations, 1)
    }
  })

  it("end once, and later frames belong to no connection", () => {
    const it = play()
    it.accept()
    it.frame(Kind.Open, 2)
    it.frame(Kind.Open, 4)
    it.frame(Kind.Open, 6)
    it.frame(Kind.Reset, 2)
    it.opened[1]?.reset("refused", "no")
    it.connections.clear()
    assert.deepStrictEqual(it.calls, ["gone", "gone"])
    assert.isFalse(it.frame(Kind.Data, 2, 0, Buffer.alloc(1)))
    assert.isFalse(it.frame(Kind.Data, 4, 0, Buffer.alloc(1)))
    assert.strictEqual(it.opened[2]?.send(Buffer.alloc(1)), 0)
    assert.deepStrictEqual(it.written, [Kind.Reset])
    assert.isEmpty(it.violations)
  })

  it("are limited in number", () => {
    const it = play()
    it.accept()
    for (let id = 2; id <= 20_000; id += 2) it.frame(Kind.Open, id)
    assert.lengthOf(it.opened, 1024)
    assert.lengthOf(it.written, 10_000 - 1024)
    assert.isEmpty(it.violations)
  })
})
