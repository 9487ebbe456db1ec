/**
 * Checks the heads of a hostile guest's HTTP requests, after Node's strict parser, and makes the heads that are sent to the
 * server. Framing is never copied but written again, so that both sides agree on it.
 */
import type { IncomingMessage } from "node:http"
import { fill, find, type Bound, isForRequest, looksLikeOne } from "./Placeholders.ts"
import { framing, hops } from "../network/Headers.ts"
import { hostText, parseHost, parsePort, splitPort, type Target, targetText } from "../network/Target.ts"

/** The most bytes of a head, before and after secrets are put in. */
export const maxHead = 64 * 1024
const maxFilled = 256 * 1024

/** Why a request is refused: the rule, what is wrong, and in `grant` what would be right. */
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

export const wellFormed = "send an unambiguous HTTP/1.1 request"

const syntax = (reason: string): Unfit => new Unfit("http-syntax", reason, wellFormed)

/** Refuses another version of HTTP. */
export const otherVersion = (reason: string): Unfit => new Unfit("http-version", reason, "speak HTTP/1.1")

/** Name, value, name, value … as pairs; the names in lower case. */
const pairs = function* (raw: ReadonlyArray<string>) {
  for (let at = 0; at + 1 < raw.length; at += 2) {
    const [written = "", value = ""] = raw.slice(at, at + 2)
    yield { written, name: written.toLowerCase(), value }
  }
}

/** The end-to-end headers of a message, in their order and spelling. */
export const own = (raw: ReadonlyArray<string>): Array<string> => {
  const passed: Array<string> = []
  for (const { name, value, written } of pairs(raw)) if (!hops.has(name)) passed.push(written, value)
  return passed
}

const problemOf = (request: IncomingMessage, target: Target): Unfit | undefined => {
  const { httpVersion, method, rawHeaders, url = "" } = request
  if (httpVersion !== "1.1" && httpVersion !== "1.0") return otherVersion(`HTTP ${httpVersion}`)
  if (method === "TRACE") return new Unfit("secret", "TRACE, whose response repeats the request", "use another method")
  if (!url.startsWith("/") && !(url === "*" && method === "OPTIONS")) {
    return syntax("a request target that is not a path on this host")
  }
  const all = [...pairs(rawHeaders)]
  const values = (name: string) => all.filter((it) => it.name === name).map(({ value }) => value)
  const codings = values("transfer-encoding")
  if (codings.length > 0 && (codings.length > 1 || codings[0]?.toLowerCase() !== "chunked")) {
    return syntax("a transfer encoding other than chunked")
  }
  if (codings.length > 0 && httpVersion === "1.0") return syntax("a transfer encoding in HTTP/1.0")
  // Node's parser refuses two of them, and one in addition to a transfer encoding.
  if (values("content-length").some((length) => !/^\d{1,15}$/.test(length))) return syntax("an invalid content-length")
  const hosts = values("host")
  if (hosts.length !== 1) return syntax(hosts.length === 0 ? "no host header" : "two host headers")
  const [written = ""] = hosts
  const { host, port } = splitPort(written)
  const said = parseHost(host)
  const right = said?.kind === target.host.kind && hostText(said) === hostText(target.host)
  if (right && (port === undefined || parsePort(port) === target.port)) return undefined
  const grant = `name the host that is connected to, ${hostText(target.host)}`
  return new Unfit("http-host", `HTTP for ${JSON.stringify(written.slice(0, 253))}`, grant)
}

/** The headers for the server, and the names of the secrets in them. */
export interface Passed {
  readonly headers: ReadonlyArray<string>
  readonly used: ReadonlyArray<string>
}

/**
 * Checks a request to `target`. `mine` are the secrets for it, `others` the session's other secrets, `upgrade` is the protocol
 * of an upgrade.
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
  const { method = "", url = "" } = request
  const barred = mine.filter((it) => !isForRequest(method, url, it))
  const misused = find(head, barred)
  if (misused !== undefined) {
    const path = barred.find(({ name }) => name === misused)?.below ?? "/"
    const grant = `send ${misused} only with GET or HEAD, below ${path}`
    return new Unfit("secret", `the placeholder of ${misused} in ${method} ${url.slice(0, 253)}`, grant)
  }
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
    if (size > maxFilled) return syntax("a request head that is too long")
    headers.push(written, filled.value)
  }
  const { headers: has } = request
  if (has["transfer-encoding"] !== undefined) headers.push("Transfer-Encoding", "chunked")
  // These methods usually have a body, so its absence is stated.
  else if (has["content-length"] === undefined && /^(?:POST|PUT|PATCH)$/.test(method))
    headers.push("Content-Length", "0")
  if (upgrade !== undefined) headers.push("Connection", "Upgrade", "Upgrade", upgrade)
  return { headers, used: [...used] }
}

/** Refuses a placeholder that is sent to a host that its secret is not for. */
export const elsewhere = (secret: string, target: Target): Unfit =>
  new Unfit(
    "secret",
    `the placeholder of ${secret}`,
    `send ${secret} over TLS to one of its hosts, or add ${JSON.stringify(targetText(target))} to them`
  )

/** Cuts off a server that sends a secret to the guest. */
export const reflected = (secret: string, target: Target): Unfit =>
  new Unfit(
    "secret",
    `${targetText(target)} sent the value of ${secret} back`,
    "none: the guest must not see a secret; use a host that does not repeat it"
  )

/** Cuts off a response in which a secret cannot be looked for. */
export const unchecked = (reason: string): Unfit =>
  new Unfit("secret", reason, "ask for a response that is not compressed, with Accept-Encoding: identity")
