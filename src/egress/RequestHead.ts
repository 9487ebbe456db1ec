/**
 * Heads of HTTP requests that a hostile guest has written, after Node's strict parser has read them: whether one may be
 * passed on, and what is passed on instead of it. Framing is never copied but made again, so both sides agree on it.
 */
import type { IncomingMessage } from "node:http"
import { fill, find, type Bound, looksLikeOne } from "./Placeholders.ts"
import { framing, hops } from "../network/Headers.ts"
import { hostText, parseHost, parsePort, splitPort, type Target, targetText } from "../network/Target.ts"

/** Bytes of a head, before and after secrets were put into it. */
export const maxHead = 64 * 1024
const maxFilled = 256 * 1024

/** Why a request is refused: the rule, and what is wrong. `grant` is what would be right. */
export class Unfit {
  readonly rule: "http-syntax" | "http-version" | "http-host" | "secret"
  readonly reason: string
  readonly grant: string
  constructor(rule: Unfit["rule"], reason: string, grant: string) {
    this.rule = rule
    this.reason = reason
    this.grant = grant
  }
}

export const wellFormed = "write the request as HTTP/1.1 in one way only"

const syntax = (reason: string): Unfit => new Unfit("http-syntax", reason, wellFormed)

/** A request in a version of HTTP that is not read here. */
export const otherVersion = (reason: string): Unfit => new Unfit("http-version", reason, "speak HTTP/1.1")

/** Name, value, name, value … as pairs; the names in lower case. */
const pairs = function* (raw: ReadonlyArray<string>) {
  for (let at = 0; at + 1 < raw.length; at += 2) {
    const [written = "", value = ""] = raw.slice(at, at + 2)
    yield { written, name: written.toLowerCase(), value }
  }
}

/** The headers of a message that are its own, in their order, as they were written. */
export const own = (raw: ReadonlyArray<string>): Array<string> => {
  const passed: Array<string> = []
  for (const { name, value, written } of pairs(raw)) if (!hops.has(name)) passed.push(written, value)
  return passed
}

const problemOf = (request: IncomingMessage, target: Target): Unfit | undefined => {
  const { httpVersion, method, rawHeaders, url = "" } = request
  if (httpVersion !== "1.1" && httpVersion !== "1.0") return otherVersion(`HTTP ${httpVersion}`)
  if (!url.startsWith("/") && !(url === "*" && method === "OPTIONS")) {
    return syntax("a request for something else than a path of this host")
  }
  const all = [...pairs(rawHeaders)]
  const values = (name: string) => all.filter((it) => it.name === name).map(({ value }) => value)
  const codings = values("transfer-encoding")
  if (codings.length > 0 && (codings.length > 1 || codings[0]?.toLowerCase() !== "chunked")) {
    return syntax("a transfer encoding other than chunked")
  }
  if (codings.length > 0 && httpVersion === "1.0") return syntax("a transfer encoding in HTTP/1.0")
  // Twice, or beside a transfer encoding, Node's parser refuses it.
  if (values("content-length").some((length) => !/^\d{1,15}$/.test(length))) return syntax("a length that is none")
  const hosts = values("host")
  if (hosts.length !== 1) return syntax(hosts.length === 0 ? "no host" : "two hosts")
  const [written = ""] = hosts
  const { host, port } = splitPort(written)
  const said = parseHost(host)
  const right = said?.kind === target.host.kind && hostText(said) === hostText(target.host)
  if (right && (port === undefined || parsePort(port) === target.port)) return undefined
  const grant = `name the host that is connected to, ${hostText(target.host)}`
  return new Unfit("http-host", `HTTP for ${JSON.stringify(written.slice(0, 253))}`, grant)
}

/** What goes to the server instead of a request, and which secrets are in it. */
export interface Passed {
  readonly headers: ReadonlyArray<string>
  readonly used: ReadonlyArray<string>
}

/**
 * Reads a request to `target`, for which `mine` are the secrets and `others` are not. `upgrade` is the protocol that is
 * changed to, if it is.
 */
export const read = (
  request: IncomingMessage,
  target: Target,
  mine: ReadonlyArray<Bound>,
  others: ReadonlyArray<Bound>,
  upgrade?: string
): Passed | Unfit => {
  const problem = problemOf(request, target)
  if (problem !== undefined) return problem
  const head = Buffer.from([request.url, ...request.rawHeaders].join("\n"), "latin1")
  const stray = find(head, others)
  if (stray !== undefined) return elsewhere(stray, target)
  const used = new Set<string>()
  const headers: Array<string> = []
  let size = 0
  for (const { name, value: given, written } of pairs(request.rawHeaders)) {
    if (hops.has(name)) continue
    const filled = framing.has(name) ? { value: given, used: [] } : fill(name, given, mine)
    for (const it of filled.used) used.add(it)
    if (filled.used.length === 0 && looksLikeOne(given) && find(Buffer.from(given, "latin1"), mine) === undefined) {
      return new Unfit(
        "secret",
        `a placeholder of another session in ${JSON.stringify(written)}`,
        "use the placeholder in this session's environment"
      )
    }
    size += written.length + filled.value.length
    if (size > maxFilled) return syntax("a head that is too long")
    headers.push(written, filled.value)
  }
  const { headers: has, method = "" } = request
  if (has["transfer-encoding"] !== undefined) headers.push("Transfer-Encoding", "chunked")
  // Where a body is usual, its absence is said.
  else if (has["content-length"] === undefined && /^(?:POST|PUT|PATCH)$/.test(method))
    headers.push("Content-Length", "0")
  if (upgrade !== undefined) headers.push("Connection", "Upgrade", "Upgrade", upgrade)
  return { headers, used: [...used] }
}

/** A placeholder on its way to who it is not for. */
export const elsewhere = (secret: string, target: Target): Unfit =>
  new Unfit(
    "secret",
    `the placeholder of ${secret}`,
    `send ${secret} over TLS to one of its hosts, or add ${JSON.stringify(targetText(target))} to them`
  )
