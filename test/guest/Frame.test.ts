import { assert, describe, it } from "@effect/vitest"
import { randomBytes } from "node:crypto"
import { encode, encodeJson, endFlag, type Frame, Kind, magic, makeDecoder, maxPayload } from "../../src/guest/Frame.ts"

interface Seen {
  readonly epochs: Array<string>
  readonly frames: Array<Frame>
  readonly violations: Array<string>
}

const decoding = (): { readonly push: (bytes: Buffer) => void; readonly seen: Seen } => {
  const seen: Seen = { epochs: [], frames: [], violations: [] }
  const push = makeDecoder({
    onEpoch: (epoch) => seen.epochs.push(epoch.toString("hex")),
    onFrame: (frame) => seen.frames.push(frame),
    onViolation: (problem) => seen.violations.push(problem)
  })
  return { push, seen }
}

const epoch = Buffer.from("0102030405060708", "hex")
const opening = Buffer.concat([magic, epoch])

/** Splits bytes into pieces of random length. */
const pieces = (bytes: Buffer, random: () => number): Array<Buffer> => {
  const cut: Array<Buffer> = []
  for (let at = 0; at < bytes.length;) {
    const size = 1 + Math.floor(random() * (random() < 0.5 ? 3 : 5000))
    cut.push(bytes.subarray(at, at + size))
    at += size
  }
  return cut
}

describe("Frame", () => {
  it("decodes what was encoded, however the bytes are split", () => {
    for (let round = 0; round < 50; round++) {
      const payloads = [0, 1, 11, 12, 13, 4096, 70_000, maxPayload].map((size) => randomBytes(size))
      const bytes = Buffer.concat([
        opening,
        ...payloads.map((payload, index) => encode(Kind.Data, 2 * index + 1, index % 2 === 0 ? endFlag : 1, payload))
      ])
      const { push, seen } = decoding()
      for (const piece of pieces(bytes, Math.random)) push(piece)
      assert.deepStrictEqual(seen.epochs, [epoch.toString("hex")])
      assert.deepStrictEqual(seen.violations, [])
      assert.deepStrictEqual(
        seen.frames.map((frame) => [frame.stream, frame.kind, frame.flags]),
        payloads.map((_, index) => [2 * index + 1, Kind.Data, index % 2 === 0 ? endFlag : 1])
      )
      seen.frames.forEach((frame, index) => assert.isTrue(frame.payload.equals(payloads[index] as Buffer)))
    }
  })

  it("discards everything before the magic", () => {
    const { push, seen } = decoding()
    push(Buffer.concat([randomBytes(100_000), magic.subarray(0, 9), randomBytes(3)]))
    push(magic.subarray(0, 15) as Buffer)
    push(Buffer.concat([magic.subarray(15), epoch, encodeJson(Kind.Hello, 0, { protocol: 1 })]))
    assert.deepStrictEqual(seen.epochs, [epoch.toString("hex")])
    assert.strictEqual(seen.frames.length, 1)
    assert.strictEqual(seen.frames[0]?.payload.toString(), '{"protocol":1}')
  })

  it("begins a new epoch when the magic comes in place of a frame", () => {
    const { push, seen } = decoding()
    push(Buffer.concat([opening, encode(Kind.Ping, 0, 0, Buffer.alloc(8)), magic, Buffer.alloc(8, 9)]))
    push(encode(Kind.Pong, 0, 0, Buffer.alloc(8)))
    assert.deepStrictEqual(seen.epochs, [epoch.toString("hex"), "09".repeat(8)])
    assert.deepStrictEqual(
      seen.frames.map((frame) => frame.kind),
      [Kind.Ping, Kind.Pong]
    )
  })

  it("reports a frame that is too long at its header, and then ignores everything", () => {
    const { push, seen } = decoding()
    const header = Buffer.alloc(12)
    header.writeUInt32LE(maxPayload + 1, 0)
    push(Buffer.concat([opening, header]))
    push(encode(Kind.Ping, 0, 0, Buffer.alloc(8)))
    assert.deepStrictEqual(seen.violations, [`a frame of ${maxPayload + 1} bytes, ${maxPayload} allowed`])
    assert.strictEqual(seen.frames.length, 0)
  })

  it("reports an unknown kind", () => {
    for (const kind of [0, 10, 255]) {
      const { push, seen } = decoding()
      push(Buffer.concat([opening, encode(kind, 1, 0, Buffer.alloc(0))]))
      assert.deepStrictEqual(seen.violations, [`a frame of unknown kind ${kind}`])
    }
  })

  it("accepts any bytes: at most one violation, and no frame longer than allowed", () => {
    for (let round = 0; round < 300; round++) {
      const { push, seen } = decoding()
      const garbage = randomBytes(Math.floor(Math.random() * 20_000))
      const bytes = Math.random() < 0.5 ? Buffer.concat([opening, garbage]) : garbage
      for (const piece of pieces(bytes, Math.random)) push(piece)
      assert.isAtMost(seen.violations.length, 1)
      for (const frame of seen.frames) assert.isAtMost(frame.payload.length, maxPayload)
    }
  })
})
