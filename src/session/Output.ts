/** Collects an output of any length: keeps its head and its tail within a limit, and counts all of its bytes. */

export interface Output {
  /** Adds the next bytes. Those that are kept are copied. */
  readonly push: (bytes: Uint8Array) => void
  /** How many bytes were added, kept or not. */
  readonly total: () => number
  readonly truncated: () => boolean
  /** The bytes that were kept, in order. */
  readonly bytes: () => Uint8Array
  /** The same as text. When bytes are missing in the middle, a line there says how many. */
  readonly text: () => string
}

/** When an output is longer than `limit` bytes, half of `limit` is kept from its beginning and half from its end. */
export const make = (limit: number): Output => {
  const headLimit = Math.ceil(limit / 2)
  const tailLimit = limit - headLimit
  const head: Array<Uint8Array> = []
  let headBytes = 0
  let tail: Array<Uint8Array> = []
  let tailBytes = 0
  let total = 0

  /** Drops all but the last `tailLimit` bytes, once `slack` more have gathered, so that few copies are made. */
  const trim = (slack: number): void => {
    if (tailBytes <= tailLimit + slack) return
    const joined = Buffer.concat(tail, tailBytes)
    const kept = Buffer.from(joined.subarray(tailBytes - tailLimit))
    tail = [kept]
    tailBytes = kept.length
  }

  const push = (bytes: Uint8Array): void => {
    total += bytes.length
    const room = headLimit - headBytes
    if (room > 0) {
      const part = bytes.subarray(0, room)
      head.push(Buffer.from(part))
      headBytes += part.length
    }
    const rest = bytes.subarray(Math.max(0, room))
    if (rest.length === 0) return
    tail.push(Buffer.from(rest))
    tailBytes += rest.length
    trim(Math.max(tailLimit, 64 * 1024))
  }

  const halves = (): readonly [Buffer, Buffer] => {
    trim(0)
    return [Buffer.concat(head, headBytes), Buffer.concat(tail, tailBytes)]
  }

  return {
    push,
    total: () => total,
    truncated: () => total > limit,
    bytes: () => Buffer.concat(halves()),
    text: () => {
      const [first, last] = halves()
      if (total <= limit) return Buffer.concat([first, last]).toString("utf8")
      const missing = total - first.length - last.length
      return `${first.toString("utf8")}\n[… ${missing} bytes omitted …]\n${last.toString("utf8")}`
    }
  }
}
