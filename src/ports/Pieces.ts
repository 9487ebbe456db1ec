/** Bytes that wait for a reader. Small pieces are joined, so that a thousand single bytes do not become a thousand objects. */

export interface Pieces {
  readonly push: (bytes: Uint8Array) => void
  /** The next bytes, at most 64 KiB; `undefined` when there are none. */
  readonly take: () => Uint8Array | undefined
  readonly empty: () => boolean
}

const small = 4096
const large = 64 * 1024

export const make = (): Pieces => {
  const pieces: Array<Uint8Array> = []
  return {
    push: (bytes) => {
      const last = pieces.at(-1)
      if (last !== undefined && last.length + bytes.length <= small)
        pieces[pieces.length - 1] = Buffer.concat([last, bytes])
      // Copied: a view of a few bytes would keep the whole buffer alive in which they arrived.
      else if (bytes.length > 0) pieces.push(bytes.length < small ? Buffer.from(bytes) : bytes)
    },
    take: () => {
      const first = pieces[0]
      if (first === undefined || first.length <= large) return pieces.shift()
      pieces[0] = first.subarray(large)
      return first.subarray(0, large)
    },
    empty: () => pieces.length === 0
  }
}
