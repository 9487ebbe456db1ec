/**
 * Frames of the channel between host and guest: encoding, and a decoder for bytes that a hostile guest may have written.
 *
 * A header is 12 bytes, little-endian: `length u32` (payload bytes), `stream u32`, `kind u8`, `flags u8`, `reserved u16`.
 * After every (re)connection each side sends the 16-byte magic and an 8-byte epoch first. The magic begins with a length
 * that no frame may have, so it cannot be mistaken for a frame.
 */

/** Bytes of a frame's header. */
export const headerSize = 12

/** The most payload bytes one frame may carry. */
export const maxPayload = 256 * 1024

/** Credit in bytes that each direction of a stream starts with. */
export const initialCredit = 256 * 1024

/** The numbers of the frame kinds on the wire. */
export const Kind = {
  Hello: 1,
  Open: 2,
  Data: 3,
  Credit: 4,
  Note: 5,
  End: 6,
  Reset: 7,
  Ping: 8,
  Pong: 9
} as const

/** The sub-channels of DATA frames, in the low four bits of `flags`. */
export const Sub = { stdin: 0, stdout: 1, stderr: 2, code: 3, file: 4 } as const

/** Bit of `flags`: this sub-channel ends after this payload. */
export const endFlag = 0x80

/** What each direction sends first after a (re)connection. */
export const magic: Uint8Array = Buffer.concat([Buffer.from([0xff, 0xff, 0xff, 0xff]), Buffer.from("exec-sandbox")])

/** Bytes of an epoch. */
export const epochSize = 8

/** One frame as decoded. `payload` is a view that stays valid: the decoder never writes to it again. */
export interface Frame {
  readonly stream: number
  readonly kind: number
  readonly flags: number
  readonly payload: Buffer
}

/** Encodes one frame. The payload must not be longer than `maxPayload`. */
export const encode = (kind: number, stream: number, flags: number, payload: Uint8Array): Buffer => {
  const frame = Buffer.allocUnsafe(headerSize + payload.length)
  frame.writeUInt32LE(payload.length, 0)
  frame.writeUInt32LE(stream, 4)
  frame[8] = kind
  frame[9] = flags
  frame[10] = 0
  frame[11] = 0
  frame.set(payload, headerSize)
  return frame
}

/** Encodes one frame with a JSON payload. */
export const encodeJson = (kind: number, stream: number, value: unknown): Buffer =>
  encode(kind, stream, 0, Buffer.from(JSON.stringify(value)))

/** The decoder's callbacks: a new epoch began, a frame arrived, or the bytes broke the protocol (then nothing follows). */
export interface Handler {
  readonly onEpoch: (epoch: Buffer) => void
  readonly onFrame: (frame: Frame) => void
  readonly onViolation: (problem: string) => void
}

/**
 * Makes a decoder: a function that takes the bytes as they arrive and calls the handler.
 *
 * It first searches for the magic and discards everything before it. It buffers at most one frame (`maxPayload + headerSize`
 * bytes) in addition to the chunk it is given. After a violation it ignores everything.
 */
export const makeDecoder = (handler: Handler): ((chunk: Buffer) => void) => {
  let pending: Array<Buffer> = []
  let pendingBytes = 0
  let needed = 1
  let searching = true
  let dead = false

  /** Consumes one unit from the front of `bytes`. Returns how many bytes it used or, negative, how many it needs. */
  const step = (bytes: Buffer): number => {
    if (searching) {
      const at = bytes.indexOf(magic)
      if (at === -1) {
        // The magic may have begun at the very end: keep what could be its beginning.
        const keep = Math.min(bytes.length, magic.length - 1)
        return bytes.length > keep ? bytes.length - keep : -magic.length
      }
      if (at > 0) return at
      const total = magic.length + epochSize
      if (bytes.length < total) return -total
      searching = false
      handler.onEpoch(Buffer.from(bytes.subarray(magic.length, total)))
      return total
    }
    if (bytes.length < 4) return -headerSize
    const length = bytes.readUInt32LE(0)
    if (length === 0xffffffff) {
      if (bytes.length < magic.length) return -magic.length
      if (magic.every((byte, index) => byte === bytes[index])) {
        searching = true
        return 0
      }
    }
    if (length > maxPayload) {
      dead = true
      handler.onViolation(`a frame of ${length} bytes, ${maxPayload} allowed`)
      return 0
    }
    const total = headerSize + length
    if (bytes.length < total) return -total
    const kind = bytes[8] ?? 0
    if (kind < Kind.Hello || kind > Kind.Pong) {
      dead = true
      handler.onViolation(`a frame of unknown kind ${kind}`)
      return 0
    }
    handler.onFrame({
      stream: bytes.readUInt32LE(4),
      kind,
      flags: bytes[9] ?? 0,
      payload: bytes.subarray(headerSize, total)
    })
    return total
  }

  let busy = false
  return (chunk) => {
    if (dead) return
    pending.push(chunk)
    pendingBytes += chunk.length
    // A handler may cause more bytes to arrive while it runs; the loop below handles them.
    if (busy) return
    busy = true
    while (!dead && pendingBytes >= needed) {
      let bytes = pending.length === 1 ? (pending[0] as Buffer) : Buffer.concat(pending, pendingBytes)
      pending = []
      pendingBytes = 0
      needed = 1
      while (!dead && bytes.length > 0 && needed === 1) {
        const used = step(bytes)
        if (used < 0) needed = -used
        else bytes = bytes.subarray(used)
      }
      if (bytes.length > 0) {
        pending.unshift(bytes)
        pendingBytes += bytes.length
      }
    }
    busy = false
  }
}
