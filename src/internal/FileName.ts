/**
 * Converts file names between bytes and strings. Linux allows any bytes but NUL and `/`; a string has a lone surrogate
 * U+DC80…U+DCFF for each byte that is not UTF-8, as in Python, so the conversion is exact in both directions.
 */
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true })

const decoded = (bytes: Uint8Array): string | undefined => {
  try {
    return utf8.decode(bytes)
  } catch {
    return undefined
  }
}

/** The length in bytes of a character with this first byte; 1 where no character begins. */
const lengthOf = (first: number): number => (first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 1)

/** The string of a name. */
export const fromBytes = (bytes: Uint8Array): string => {
  const whole = decoded(bytes)
  if (whole !== undefined) return whole
  let name = ""
  for (let at = 0; at < bytes.length;) {
    const first = bytes[at] ?? 0
    const character = first < 0x80 ? String.fromCharCode(first) : decoded(bytes.subarray(at, at + lengthOf(first)))
    name += character ?? String.fromCharCode(0xdc00 + first)
    at += character === undefined ? 1 : lengthOf(first)
  }
  return name
}

/** The bytes of a name; `undefined` for a string that no bytes have. */
export const toBytes = (name: string): Buffer | undefined => {
  if (name.isWellFormed()) return Buffer.from(name)
  const parts: Array<Buffer> = []
  for (const character of name) {
    if (character.isWellFormed()) {
      parts.push(Buffer.from(character))
      continue
    }
    const code = character.charCodeAt(0)
    if (code < 0xdc80 || code > 0xdcff) return undefined
    parts.push(Buffer.from([code - 0xdc00]))
  }
  return Buffer.concat(parts)
}
