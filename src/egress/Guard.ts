/**
 * Addresses that no policy grants by accident: private ones, the host's own, and reserved ones. They are reached only where a
 * rule contains the address itself.
 *
 * 192.0.2.0/24, 198.51.100.0/24 and 203.0.113.0/24 are reserved by RFC 5737 but not guarded: there are networks whose gateway
 * resolves every public name to an address from there.
 */
import * as os from "node:os"
import { contains, embeddedV4, ranges } from "../network/Target.ts"

/** Why an address is guarded. */
export type Guarded =
  | "loopback"
  | "private"
  | "carrier"
  | "link-local"
  | "metadata"
  | "multicast"
  | "reserved"
  | "host-address"

const tables: ReadonlyArray<readonly [Guarded, ReadonlyArray<string>]> = [
  // First, because some of them are in other ranges as well.
  ["metadata", ["169.254.169.254/32", "169.254.170.2/32", "168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32"]],
  ["metadata", ["fd00:ec2::254/128", "fd20:ce::254/128"]],
  ["loopback", ["127.0.0.0/8", "::1/128"]],
  ["private", ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"]],
  ["carrier", ["100.64.0.0/10"]],
  ["link-local", ["169.254.0.0/16", "fe80::/10"]],
  ["multicast", ["224.0.0.0/4", "ff00::/8"]],
  // 198.18.0.0/15 are the addresses that stand for names inside a guest.
  ["reserved", ["0.0.0.0/8", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4", "::/128"]],
  ["reserved", ["64:ff9b:1::/48", "100::/64", "2001::/23"]]
]

const lists = tables.map(([why, cidrs]) => [why, ranges(cidrs)] as const)
const globalV6 = ranges(["2000::/3"])

const ownAddresses = (): ReadonlySet<string> =>
  new Set(
    Object.values(os.networkInterfaces())
      .flatMap((addresses) => addresses ?? [])
      .map(({ address }) => address)
  )

/** Why an address is guarded, `undefined` when it is not. `own` are the host's addresses. */
export const guarded = (address: string, own: ReadonlySet<string> = ownAddresses()): Guarded | undefined => {
  for (const [why, list] of lists) if (contains(list, address)) return why
  if (own.has(address)) return "host-address"
  if (!address.includes(":")) return undefined
  const inner = embeddedV4(address)
  if (inner !== undefined) return guarded(inner, own)
  // Other addresses than global unicast mean nothing on the Internet.
  return contains(globalV6, address) ? undefined : "reserved"
}
