/**
 * Connects through an HTTP proxy by CONNECT, whatever protocol follows. The policy still decides by name; the proxy resolves
 * the name.
 */
import * as Effect from "effect/Effect"
import type * as net from "node:net"
import { unquoted } from "./Credentials.ts"
import { type Dial, DialFailed } from "./Dial.ts"
import { defaultPorts, hostName, parseRule } from "../network/Rules.ts"
import { contains, type Target, targetText } from "../network/Target.ts"

/** Environment variables that configure proxies, in upper or lower case. */
export type Environment = { readonly [name: string]: string | undefined }

/** A proxy with an `http://` URL. */
interface Via {
  readonly host: string
  readonly port: number
  readonly authorization: string | undefined
}

/** The proxy for a target; `undefined` to connect directly. `via` is undefined where its URL is not an `http://` one. */
export type Route = (target: Target) => { readonly via: Via | undefined } | undefined

const read = (text: string): Via | undefined => {
  try {
    const url = new URL(/^[a-z][a-z0-9+.-]*:\/\//i.test(text) ? text : `http://${text}`)
    if (url.protocol !== "http:" || url.hostname === "") return undefined
    const user = `${unquoted(url.username)}:${unquoted(url.password)}`
    return {
      host: url.hostname.replace(/^\[(.*)\]$/, "$1"),
      port: url.port === "" ? 80 : Number(url.port),
      authorization: user === ":" ? undefined : `Basic ${Buffer.from(user).toString("base64")}`
    }
  } catch {
    return undefined
  }
}

/** Reads an entry of NO_PROXY: a domain and all below it, an address or a range; with a port, or for all of them. */
const exception = (text: string): ((target: Target) => boolean) => {
  if (text === "*") return () => true
  const rule = parseRule(text.replace(/^\*?\./, "").replace(/^([\da-f]*:[\da-f:]*)\/(\d+)$/i, "[$1]/$2"))
  if (typeof rule === "string" || rule.kind === "host") return () => false
  return ({ host, port }) => {
    if (rule.ports !== defaultPorts && !rule.ports.includes(port)) return false
    if (host.kind === "address") return rule.kind === "range" && contains(rule.range, host.address)
    return rule.kind === "name" && (host.name === rule.name || host.name.endsWith(`.${rule.name}`))
  }
}

/**
 * Reads HTTPS_PROXY, HTTP_PROXY (for port 80), ALL_PROXY and NO_PROXY as other programs do. The host itself and its loopback are
 * connected to directly.
 */
export const routes = (env: Environment | undefined): Route => {
  const of = (name: string): string => (env?.[name] || env?.[name.toLowerCase()] || "").trim()
  const direct = of("NO_PROXY")
    .split(/[\s,]+/)
    .filter((it) => it !== "")
    .map(exception)
  const common = of("ALL_PROXY")
  const texts = { http: of("HTTP_PROXY") || common, https: of("HTTPS_PROXY") || common }
  return (target) => {
    const { host, port } = target
    const text = port === 80 ? texts.http : texts.https
    const near =
      host.kind === "name" ? host.name === hostName : host.address === "::1" || host.address.startsWith("127.")
    if (text === "" || near || direct.some((matches) => matches(target))) return undefined
    return { via: read(text) }
  }
}

const maxHead = 16 * 1024
const patience = "10 seconds"

/** Connects to a target through a proxy, by name. The socket is paused and half-open, as `dial` returns it. */
export const dialThrough = (
  dial: Dial,
  via: Via | undefined,
  target: Target
): Effect.Effect<net.Socket, DialFailed> => {
  if (via === undefined) return Effect.fail(new DialFailed({ code: "the proxy must be http://HOST:PORT" }))
  const place = targetText(target)
  const credentials = via.authorization === undefined ? "" : `Proxy-Authorization: ${via.authorization}\r\n`
  return Effect.flatMap(dial(via.host, via.port), (socket) =>
    Effect.callback<net.Socket, DialFailed>((resume) => {
      let head = Buffer.alloc(0)
      const settle = (result: Effect.Effect<net.Socket, DialFailed>): void => {
        socket.off("data", onData).off("end", onEnd).off("error", onError).pause()
        resume(result)
      }
      const fail = (code: string): void => {
        settle(Effect.fail(new DialFailed({ code })))
        socket.on("error", () => {}).destroy()
      }
      const onEnd = (): void => fail("the proxy has closed the connection")
      const onError = (error: NodeJS.ErrnoException): void => fail(`the proxy: ${error.code ?? "EIO"}`)
      const onData = (bytes: Buffer): void => {
        head = Buffer.concat([head, bytes])
        const end = head.indexOf("\r\n\r\n")
        if (end < 0 && head.length > maxHead) return fail("the proxy does not answer with HTTP")
        if (end < 0) return
        const [, status] = /^HTTP\/1\.[01] (\d{3})(?= |\r)/.exec(head.toString("latin1", 0, 64)) ?? []
        if (status?.startsWith("2") !== true) return fail(`the proxy answers ${status ?? "no HTTP"}`)
        settle(Effect.succeed(socket))
        const rest = head.subarray(end + 4)
        if (rest.length > 0) socket.unshift(rest)
      }
      socket.on("data", onData).on("end", onEnd).on("error", onError)
      socket.write(`CONNECT ${place} HTTP/1.1\r\nHost: ${place}\r\n${credentials}\r\n`)
      socket.resume()
      return Effect.sync(() => socket.destroy())
    }).pipe(
      Effect.timeoutOrElse({
        duration: patience,
        orElse: () => Effect.fail(new DialFailed({ code: "the proxy: ETIMEDOUT" }))
      })
    )
  )
}
