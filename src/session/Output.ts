/**
 * Keeps the head and the tail of an output of any length within a number of bytes, and counts all of it.
 */

export interface Output {
  /** Takes the next bytes. The view is copied as far as it is kept. */
  readonly push: (bytes: Uint8Array) => void
  /** All bytes that came, kept or not. */
  readonly total: () => number
  readonly truncated: () => boolean
  /** What was kept, in order. */
  readonly bytes: () => Uint8Array
  /** The same as text, with a line that says how much is missing where something is. */
  readonly text: () => string
}

/** Half of `limit` is kept from the beginning and half from the end, once the output is longer than `limit`. */
export const make = (limit: number): Output => {
  const headLimit = Math.ceil(limit / 2)
  const tailLimit = limit - headLimit
  const head: Array<Uint8Array> = []
  let headBytes = 0
  let tail: Array<Uint8Array> = []
  let tailBytes = 0
  let total = 0

  /** Lets go of what lies before the last `tailLimit` bytes, when enough has gathered to be worth the copy. */
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
