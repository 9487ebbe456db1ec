/**
 * Targets of connections: a host name or an IP address in canonical form, and a port. Ambiguous texts are neither.
 */
import * as net from "node:net"
import { domainToASCII } from "node:url"

/** A name is in lower case, punycode, without a trailing dot. An address is canonical. */
export type Host =
  | { readonly kind: "name"; readonly name: string }
  | { readonly kind: "address"; readonly address: string; readonly family: 4 | 6 }

const label = /^[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?$/

/** Whether URL parsers and resolvers would read the name as a number (`0x7f.1`, `127.1`, `2130706433`, `1.2.3.4.5`). */
const endsInNumber = (name: string): boolean => /(?:^|\.)(?:\d+|0x[0-9a-f]*)$/.test(name)

/** An IPv6 address in its shortest form, an IPv4-mapped one as IPv4. */
const canonicalV6 = (text: string): Host | undefined => {
  // A zone index names an interface of this host.
  if (net.isIPv6(text) && !text.includes("%")) {
    const address = new URL(`http://[${text}]/`).hostname.slice(1, -1)
    const mapped = embeddedV4(address, "mapped")
    return mapped === undefined
      ? { kind: "address", address, family: 6 }
      : { kind: "address", address: mapped, family: 4 }
  }
  return undefined
}

const groups = (part: string): ReadonlyArray<number> =>
  part === "" ? [] : part.split(":").map((group) => Number.parseInt(group, 16))

/** The eight groups of a canonical IPv6 address. */
export const groupsOf = (address: string): ReadonlyArray<number> => {
  const [head = "", tail] = address.split("::")
  const front = groups(head)
  if (tail === undefined) return front
  const back = groups(tail)
  return [...front, ...Array.from({ length: 8 - front.length - back.length }, () => 0), ...back]
}

const dotted = (high: number, low: number): string => [high >> 8, high & 255, low >> 8, low & 255].join(".")

/** The IPv4 address that an IPv6 address stands for or leads to: IPv4-mapped, NAT64 and 6to4. */
export const embeddedV4 = (address: string, only?: "mapped"): string | undefined => {
  const [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0] = groupsOf(address)
  const zero = a === 0 && b === 0 && c === 0 && d === 0
  if (zero && e === 0 && f === 0xffff) return dotted(g, h)
  if (only !== undefined) return undefined
  if (a === 0x64 && b === 0xff9b && c === 0 && d === 0 && e === 0 && f === 0) return dotted(g, h)
  if (a === 0x2002) return dotted(b, c)
  // "IPv4-compatible", long deprecated.
  if (zero && e === 0 && f === 0 && (g !== 0 || h > 1)) return dotted(g, h)
  return undefined
}

/**
 * Parses a host as people write it: any case, Unicode, one trailing dot, IPv6 with or without brackets. `undefined` for
 * anything else, such as numbers in odd forms.
 */
export const parseHost = (text: string): Host | undefined => {
  if (text.startsWith("[") || text.endsWith("]")) {
    return text.startsWith("[") && text.endsWith("]") ? canonicalV6(text.slice(1, -1)) : undefined
  }
  if (text.includes(":")) return canonicalV6(text)
  if (text.length === 0 || text.length > 1024) return undefined
  const dotless = text.endsWith(".") ? text.slice(0, -1) : text
  if (net.isIPv4(dotless)) return { kind: "address", address: dotless, family: 4 }
  // ASCII is taken as it is: UTS 46 would refuse some underscores and accept others.
  const name = /^[\u0021-\u007e]+$/.test(dotless) ? dotless.toLowerCase() : domainToASCII(dotless)
  if (name.length === 0 || name.length > 253 || endsInNumber(name)) return undefined
  const labels = name.split(".")
  if (!labels.every((it) => label.test(it))) return undefined
  // Punycode that is invalid, or has another canonical form, is not a name.
  if (labels.some((it) => it.startsWith("xn--")) && domainToASCII(name) !== name) return undefined
  return { kind: "name", name }
}

/** How a host is written, without its port. */
export const hostText = (host: Host): string =>
  host.kind === "name" ? host.name : host.family === 6 ? `[${host.address}]` : host.address

/** A host and a port, 1 to 65,535. */
export interface Target {
  readonly host: Host
  readonly port: number
}

/** Parses a port, 1 to 65,535. */
export const parsePort = (text: string): number | undefined => {
  const port = /^[1-9]\d{0,4}$/.test(text) ? Number(text) : 0
  return port >= 1 && port <= 65_535 ? port : undefined
}

/** Splits `HOST:PORT`; IPv6 needs brackets to have a port. `port` is undefined where there is none. */
export const splitPort = (text: string): { readonly host: string; readonly port: string | undefined } => {
  const [, host = text, port] = /^(\[[^\]]*\](?:\/\d+)?|[^:]*)(?::(.*))?$/s.exec(text) ?? []
  return { host, port }
}

export const targetText = ({ host, port }: Target): string => `${hostText(host)}:${port}`

/** A set of addresses out of CIDR ranges. */
export const ranges = (cidrs: ReadonlyArray<string>): net.BlockList => {
  const list = new net.BlockList()
  for (const cidr of cidrs) {
    const [address = "", bits] = cidr.split("/")
    list.addSubnet(address, Number(bits), address.includes(":") ? "ipv6" : "ipv4")
  }
  return list
}

/** Whether an address is in the set. */
export const contains = (list: net.BlockList, address: string): boolean =>
  list.check(address, address.includes(":") ? "ipv6" : "ipv4")
