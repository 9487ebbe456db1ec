/**
 * The server name in a TLS ClientHello (RFC 8446, RFC 6066), read from bytes that a hostile guest has written.
 */

/** `More`: not all of it is there yet. `Not`: this is no ClientHello. `name` is null where the extension is absent. */
export type Hello =
  | { readonly _tag: "More" }
  | { readonly _tag: "Not"; readonly problem: string }
  | { readonly _tag: "Hello"; readonly name: string | null }

/** A ClientHello may be large (post-quantum keys, ECH), but not larger than this many bytes. */
export const maxHello = 64 * 1024

const not = (problem: string): Hello => ({ _tag: "Not", problem })
const more: Hello = { _tag: "More" }

class Short extends Error {}

/** Reads fields one after the other; throws `Short` at the end of the bytes. */
const reader = (bytes: Buffer) => {
  let at = 0
  const take = (length: number): Buffer => {
    if (at + length > bytes.length) throw new Short()
    at += length
    return bytes.subarray(at - length, at)
  }
  const number = (size: number): number => take(size).readUIntBE(0, size)
  return { number, take, vector: (size: number): Buffer => take(number(size)), left: () => bytes.length - at }
}

/** The handshake message out of its records, as far as they are there. */
const handshake = (bytes: Buffer): Buffer | Hello => {
  const parts: Array<Buffer> = []
  let size = 0
  let wanted = 4
  for (let at = 0; size < wanted;) {
    if (bytes.length > at && bytes[at] !== 22) return not("it is not TLS")
    if (bytes.length > at + 1 && bytes[at + 1] !== 3) return not("it is not TLS")
    if (bytes.length < at + 5) return more
    const length = bytes.readUInt16BE(at + 3)
    if (length === 0 || length > 16_384) return not("a TLS record of a length that there is not")
    const part = bytes.subarray(at + 5, at + 5 + length)
    parts.push(part)
    size += part.length
    const head = Buffer.concat(parts)
    if (head.length > 0 && head[0] !== 1) return not("TLS that begins with something else than a ClientHello")
    if (head.length >= 4) wanted = 4 + head.readUIntBE(1, 3)
    if (wanted > maxHello) return not("a ClientHello that is too long")
    if (part.length < length && size < wanted) return more
    at += 5 + length
  }
  return Buffer.concat(parts).subarray(4, wanted)
}

const serverName = (body: Buffer): string | null => {
  const message = reader(body)
  message.take(2 + 32)
  message.vector(1)
  message.vector(2)
  message.vector(1)
  if (message.left() === 0) return null
  const extensions = reader(message.vector(2))
  let found: string | null = null
  while (extensions.left() > 0) {
    const kind = extensions.number(2)
    const value = extensions.vector(2)
    if (kind !== 0) continue
    if (found !== null) throw new Error("two server names")
    const list = reader(reader(value).vector(2))
    const type = list.number(1)
    const name = list.vector(2)
    if (type !== 0 || list.left() > 0) throw new Error("a server name that is no host's")
    found = name.toString("latin1")
  }
  return found
}

/** Reads the first bytes of a connection. With ECH the name is the outer one, which is all that can be seen. */
export const read = (bytes: Buffer): Hello => {
  const message = handshake(bytes)
  if ("_tag" in message) return message
  try {
    return { _tag: "Hello", name: serverName(message) }
  } catch (error) {
    return not(error instanceof Short || !(error instanceof Error) ? "a ClientHello that is cut short" : error.message)
  }
}
