/**
 * The rules of a policy: parses them, and finds the one that grants a target.
 */
import type * as net from "node:net"
import { contains, groupsOf, type Host, parseHost, parsePort, splitPort, ranges, type Target } from "./Target.ts"

/** Ports that a rule without a port grants. */
export const defaultPorts: ReadonlyArray<number> = [443, 80]

export type Rule = {
  readonly text: string
  readonly ports: ReadonlyArray<number>
  /** The host's configuration contains it, so its address may be private. */
  readonly own?: boolean
} & (
  | { readonly kind: "name"; readonly name: string }
  | { readonly kind: "suffix"; readonly suffix: string }
  | { readonly kind: "range"; readonly range: net.BlockList }
  | { readonly kind: "host" }
)

/** The name by which a guest reaches services on the host's loopback. */
export const hostName = "host"

const isLoopbackName = (name: string): boolean => name === "localhost" || name.endsWith(".localhost")

const parseRange = (address: string, bits: string): net.BlockList | string => {
  const host = parseHost(address)
  if (host?.kind !== "address") return "an IP address before the slash"
  const width = host.family === 4 ? 32 : 128
  const prefix = /^\d{1,3}$/.test(bits) ? Number(bits) : width + 1
  if (prefix > width) return `a prefix of 0 to ${width} bits`
  const range = ranges([`${host.address}/${prefix}`])
  // Bits after the prefix suggest a mistake.
  return lowest(host.address, prefix, host.family) ? range : "a range whose address has no bits behind its prefix"
}

/** Whether an address is the lowest of its range. */
const lowest = (address: string, prefix: number, family: 4 | 6): boolean => {
  const width = family === 4 ? 8 : 16
  const parts = family === 4 ? address.split(".").map(Number) : groupsOf(address)
  const bits = parts.map((part) => part.toString(2).padStart(width, "0")).join("")
  return !bits.slice(prefix).includes("1")
}

/** Parses a rule; for a bad one, returns what would be right. */
export const parseRule = (text: string): Rule | string => {
  if (/\s/.test(text)) return "a rule without spaces"
  if (/[/@?#]/.test(text.replace(/\/\d+(?=:|$)/, ""))) return "a host, not a URL"
  const split = splitPort(text)
  const bare = parseHost(text)
  // IPv6 without brackets is all host.
  const { host, port } = bare?.kind === "address" ? { host: text, port: undefined } : split
  const number = port === undefined ? undefined : parsePort(port)
  if (port !== undefined && number === undefined) return "a port from 1 to 65535 after the colon"
  const ports = number === undefined ? defaultPorts : [number]
  const [, address, bits] = /^(.*)\/(\d+)$/.exec(host) ?? []
  if (address !== undefined && bits !== undefined) {
    const range = parseRange(address, bits)
    return typeof range === "string" ? range : { kind: "range", text, ports, range }
  }
  if (host.startsWith("*.")) {
    const parent = parseHost(host.slice(2))
    if (parent?.kind !== "name") return "a domain after `*.`"
    return { kind: "suffix", text, ports, suffix: `.${parent.name}` }
  }
  if (host.includes("*")) return "an asterisk only as the whole first label, as in `*.example.com`"
  const parsed = parseHost(host)
  if (parsed === undefined) return "a host name, an IP address in its usual form, or a range such as 10.0.0.0/8"
  if (parsed.kind === "address") {
    return { kind: "range", text, ports, range: ranges([`${parsed.address}/${parsed.family === 4 ? 32 : 128}`]) }
  }
  if (isLoopbackName(parsed.name)) return "`host:PORT` for a service on the host's loopback"
  if (parsed.name === hostName) {
    return number === undefined ? "a port: `host:PORT`" : { kind: "host", text, ports }
  }
  return { kind: "name", text, ports, name: parsed.name }
}

/** Parses a host of a secret: a name or `*.DOMAIN`, with one port. */
export const parseSecretHost = (text: string): Rule | string => {
  const rule = parseRule(text)
  if (typeof rule === "string") return rule
  if (rule.kind !== "name" && rule.kind !== "suffix") return "a name, as in `api.example.com`, because TLS contains it"
  return rule.ports === defaultPorts ? { ...rule, ports: [443] } : rule
}

/** The first rule that grants a target as it was asked for, by name or by address. */
export const granting = (rules: ReadonlyArray<Rule>, { host, port }: Target): Rule | undefined =>
  rules.find((rule) => rule.ports.includes(port) && matches(rule, host))

const matches = (rule: Rule, host: Host): boolean => {
  switch (rule.kind) {
    case "name":
      return host.kind === "name" && host.name === rule.name
    case "suffix":
      return host.kind === "name" && host.name.endsWith(rule.suffix)
    case "host":
      return host.kind === "name" && host.name === hostName
    case "range":
      return host.kind === "address" && contains(rule.range, host.address)
  }
}

/** The rule that grants an address that a granted name resolved to. */
export const grantingAddress = (rules: ReadonlyArray<Rule>, address: string, port: number): Rule | undefined =>
  rules.find((rule) => rule.kind === "range" && rule.ports.includes(port) && contains(rule.range, address))
