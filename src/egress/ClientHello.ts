/**
 * Parses the server name out of a TLS ClientHello (RFC 8446, RFC 6066). The bytes come from a hostile guest.
 */

/**
 * `More`: it is not complete yet. `Not`: it is not a ClientHello. `name` is null without the extension, `protocols` are those
 * of ALPN.
 */
export type Hello =
  | { readonly _tag: "More" }
  | { readonly _tag: "Not"; readonly problem: string }
  | { readonly _tag: "Hello"; readonly name: string | null; readonly protocols: ReadonlyArray<string> | null }

/** A ClientHello may be large (post-quantum keys, ECH), but not larger than this many bytes, records included. */
const maxHello = 64 * 1024

/** The most protocols of ALPN that are read. */
const maxProtocols = 32

const not = (problem: string): Hello => ({ _tag: "Not", problem })
const more: Hello = { _tag: "More" }

class Short extends Error {}

/** Reads fields in order; throws `Short` at the end of the bytes. */
const fields = (bytes: Buffer) => {
  let at = 0
  const take = (length: number): Buffer => {
    if (at + length > bytes.length) throw new Short()
    at += length
    return bytes.subarray(at - length, at)
  }
  const number = (size: number): number => take(size).readUIntBE(0, size)
  return { number, take, vector: (size: number): Buffer => take(number(size)), left: () => bytes.length - at }
}

/** The name in the extension `server_name`. */
const serverName = (value: Buffer): string => {
  const list = fields(fields(value).vector(2))
  const type = list.number(1)
  const name = list.vector(2)
  if (type !== 0 || list.left() > 0) throw new Error("a server name that is not a host name")
  return name.toString("latin1")
}

const protocolsIn = (value: Buffer): ReadonlyArray<string> => {
  const list = fields(fields(value).vector(2))
  const found: Array<string> = []
  while (list.left() > 0 && found.length < maxProtocols) found.push(list.vector(1).toString("latin1"))
  return found
}

const extensionsOf = (body: Buffer): Hello => {
  const message = fields(body)
  message.take(2 + 32)
  message.vector(1)
  message.vector(2)
  message.vector(1)
  let name: string | null = null
  let protocols: ReadonlyArray<string> | null = null
  const extensions = fields(message.left() === 0 ? Buffer.alloc(0) : message.vector(2))
  while (extensions.left() > 0) {
    const kind = extensions.number(2)
    const value = extensions.vector(2)
    if (kind === 0 && name !== null) throw new Error("two server names")
    if (kind === 0) name = serverName(value)
    if (kind === 16) protocols ??= protocolsIn(value)
  }
  return { _tag: "Hello", name, protocols }
}

/** With ECH this is the outer name, the only visible one. */
const parse = (body: Buffer): Hello => {
  try {
    return extensionsOf(body)
  } catch (error) {
    return not(error instanceof Short || !(error instanceof Error) ? "a truncated ClientHello" : error.message)
  }
}

/** Appends bytes to a buffer, which doubles when it is full. */
const growing = () => {
  let room = Buffer.alloc(1024)
  let size = 0
  return {
    add: (bytes: Uint8Array): void => {
      if (size + bytes.length > room.length) {
        const larger = Buffer.alloc(2 * (size + bytes.length))
        room.copy(larger, 0, 0, size)
        room = larger
      }
      room.set(bytes, size)
      size += bytes.length
    },
    all: (): Buffer => room.subarray(0, size)
  }
}

/**
 * Reads the first bytes of a connection as they come, and each byte once, however small the pieces and the records are.
 * `all` are the bytes so far.
 */
export const reader = (): { readonly read: (bytes: Uint8Array) => Hello; readonly all: () => Buffer } => {
  const raw = growing()
  /** The handshake message, without the records' headers. */
  const message = growing()
  /** The position in `raw` of the next unread byte, and how many bytes of its record are left. */
  let at = 0
  let left = 0
  let said: Hello = more
  const next = (): Hello => {
    const bytes = raw.all()
    for (;;) {
      if (left === 0) {
        if (bytes.length > at && bytes[at] !== 22) return not("it is not TLS")
        if (bytes.length > at + 1 && bytes[at + 1] !== 3) return not("it is not TLS")
        if (bytes.length < at + 5) return more
        left = bytes.readUInt16BE(at + 3)
        if (left === 0 || left > 16_384) return not("a TLS record with an invalid length")
        at += 5
      }
      const part = bytes.subarray(at, at + left)
      if (part.length === 0) return more
      message.add(part)
      at += part.length
      left -= part.length
      const whole = message.all()
      if (whole[0] !== 1) return not("TLS that does not begin with a ClientHello")
      if (whole.length < 4) continue
      const wanted = 4 + whole.readUIntBE(1, 3)
      if (wanted > maxHello) return not("a ClientHello that is too long")
      if (whole.length >= wanted) return parse(whole.subarray(4, wanted))
    }
  }
  return {
    read: (bytes) => {
      raw.add(bytes)
      if (said._tag !== "More") return said
      said = next()
      if (said._tag === "More" && raw.all().length >= maxHello) said = not("a ClientHello that is too long")
      return said
    },
    all: raw.all
  }
}
