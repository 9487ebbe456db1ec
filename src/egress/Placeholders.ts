/**
 * Placeholders: the texts that a guest has in place of secrets. Makes them, finds them in what the guest sends, and replaces
 * them with the secrets.
 */
import * as Redacted from "effect/Redacted"
import { randomBytes } from "node:crypto"
import type { Secrets } from "../Secrets.ts"
import { granting, parseSecretHost, type Rule } from "../network/Rules.ts"
import type { Target } from "../network/Target.ts"

/** The beginning of every placeholder, of any session. */
const beginning = "exec-sandbox-secret-"
const anyPlaceholder = /exec-sandbox-secret-[0-9a-f]{40}/

/** A secret of one session. */
export interface Bound {
  readonly name: string
  readonly value: string
  readonly placeholder: string
  /** The header in which it is put, in lower case; all headers when absent. */
  readonly header: string | undefined
  readonly hosts: ReadonlyArray<Rule>
  /** Where given, the secret is put only into requests that read, below this path, which ends with a slash. */
  readonly below: string | undefined
  /** The placeholder as it is, and in base64 wherever it begins. */
  readonly patterns: ReadonlyArray<Buffer>
}

/**
 * How a text looks in base64 behind 0, 1 and 2 bytes of something else: the characters that it decides alone. Text of
 * letters, digits and hyphens looks the same in base64url.
 */
export const inBase64 = (text: string, encoding: "base64" | "base64url" = "base64"): ReadonlyArray<string> =>
  [0, 1, 2].map((before) => {
    const encoded = Buffer.from("x".repeat(before) + text).toString(encoding)
    return encoded.slice(Math.ceil((before * 8) / 6), Math.floor(((before + text.length) * 8) / 6))
  })

const patternsOf = (text: string): ReadonlyArray<Buffer> => [text, ...inBase64(text)].map((it) => Buffer.from(it))

/** Looked for first, because most bytes contain no placeholder at all. */
const beginnings = patternsOf(beginning)

/** Makes a placeholder for each secret. `below`: paths of those that are only for reading. */
export const bind = (secrets: Secrets, below: Readonly<Record<string, string>> = {}): ReadonlyArray<Bound> =>
  Object.entries(secrets).map(([name, { header, hosts, value }]) => {
    const placeholder = beginning + randomBytes(20).toString("hex")
    return {
      name,
      value: Redacted.value(value),
      placeholder,
      header: header === "*" ? undefined : (header?.toLowerCase() ?? "authorization"),
      hosts: hosts.map(parseSecretHost).filter((rule) => typeof rule !== "string"),
      below: below[name],
      patterns: patternsOf(placeholder)
    }
  })

/** Whether a secret is for a target. */
export const isFor = (target: Target, { hosts }: Bound): boolean => granting(hosts, target) !== undefined

/** The segments of a request target's path as a server may read them; `undefined` for one that cannot be decoded. */
const segmentsOf = (target: string): ReadonlyArray<string> | undefined => {
  try {
    return decodeURIComponent(target.replace(/[?#].*$/s, "")).split(/[/\\]/)
  } catch {
    return undefined
  }
}

/** Whether a secret may be put into this request. */
export const isForRequest = (method: string, target: string, { below }: Bound): boolean => {
  if (below === undefined) return true
  const segments = segmentsOf(target)
  return (
    (method === "GET" || method === "HEAD") &&
    target.startsWith(below) &&
    segments !== undefined &&
    !segments.includes("..") &&
    !segments.includes(".")
  )
}

/** The name of a secret whose placeholder is in the bytes. */
export const find = (bytes: Buffer, secrets: ReadonlyArray<Bound>): string | undefined => {
  if (!beginnings.some((it) => bytes.includes(it))) return undefined
  return secrets.find(({ patterns }) => patterns.some((it) => bytes.includes(it)))?.name
}

/** Looks for placeholders in a stream of bytes, also across its pieces. */
export const scanner = (secrets: ReadonlyArray<Bound>): ((piece: Uint8Array) => string | undefined) => {
  const longest = Math.max(0, ...secrets.flatMap(({ patterns }) => patterns.map(({ length }) => length)))
  let before = Buffer.alloc(0)
  return (piece) => {
    if (longest === 0) return undefined
    const bytes = Buffer.concat([before, piece])
    before = bytes.subarray(-(longest - 1))
    return find(bytes, secrets)
  }
}

/** Whether a text contains something like a placeholder, of this session or another. */
export const looksLikeOne = (text: string): boolean => anyPlaceholder.test(text)

const basic = /^(Basic +)([A-Za-z0-9+/]+={0,2})$/i

/** A header's value with the secrets put in, and their names. */
export const fill = (
  name: string,
  given: string,
  secrets: ReadonlyArray<Bound>
): { readonly value: string; readonly used: ReadonlyArray<string> } => {
  const used: Array<string> = []
  const put = (text: string): string => {
    let filled = text
    for (const { header, name: secret, placeholder, value } of secrets) {
      if ((header !== undefined && header !== name) || !filled.includes(placeholder)) continue
      used.push(secret)
      filled = filled.replaceAll(placeholder, () => value)
    }
    return filled
  }
  const [, scheme = "", encoded = ""] = (name === "authorization" ? basic.exec(given) : null) ?? []
  if (encoded === "") return { value: put(given), used }
  const inside = Buffer.from(encoded, "base64").toString("latin1")
  const filled = put(inside)
  return { value: used.length === 0 ? given : scheme + Buffer.from(filled, "latin1").toString("base64"), used }
}
