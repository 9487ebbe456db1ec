/**
 * Passes the guest's requests to the server and its responses back. Node's own server and client parse and write all of HTTP,
 * strictly: neither side ever gets the other's bytes, only what was parsed from them.
 */
import * as http from "node:http"
import type * as https from "node:https"
import { Duplex, PassThrough, pipeline } from "node:stream"
import { type Bound, scanner } from "./Placeholders.ts"
import * as Reflection from "./Reflection.ts"
import * as RequestHead from "./RequestHead.ts"
import { hostText, type Target } from "../network/Target.ts"

/** The connection that an exchange is on. */
export interface Connection {
  readonly target: Target
  /** The secrets that are for the target, and those that are not. */
  readonly mine: ReadonlyArray<Bound>
  readonly others: ReadonlyArray<Bound>
  /** Called with the names of the secrets that are put into a request. */
  readonly used: (names: ReadonlyArray<string>) => void
  readonly finish: (problem: string | undefined) => void
  readonly refuse: (unfit: RequestHead.Unfit) => void
  /** For callbacks of streams, which must not throw. */
  readonly guarded: <A extends ReadonlyArray<unknown>>(act: (...given: A) => void) => (...given: A) => void
}

export interface Exchange {
  /** Whether a request waits for its response. */
  readonly busy: () => boolean
  /** Calls `then` when none waits any more. */
  readonly onIdle: (then: () => void) => void
  readonly destroy: () => void
}

/** Requests in progress or waiting on one connection. Clients rarely have more than one. */
const maxRequests = 16

/** Sends all requests over one connection, one after the other. */
class OneConnection extends http.Agent {
  #socket: Duplex | undefined
  constructor(socket: Duplex) {
    super({ keepAlive: true, maxSockets: 1, maxFreeSockets: 1 })
    this.#socket = socket
  }
  override createConnection(
    _: http.ClientRequestArgs,
    done: (error: Error | null, socket: Duplex) => void
  ): Duplex | undefined {
    const socket = this.#socket
    this.#socket = undefined
    if (socket === undefined) done(new Error("it has closed the connection"), new Duplex())
    return socket
  }
}

/** Writing it first sends the head at once and byte for byte; `flushHeaders` would send it as UTF-8. */
const nothing = Buffer.alloc(0)

export const messageOf = (error: unknown): string =>
  error instanceof Error ? ("code" in error && typeof error.code === "string" ? error.code : error.message) : "a defect"

/** The text of a response's head. */
const headOf = ({ rawHeaders, statusMessage = "" }: http.IncomingMessage): string =>
  [statusMessage, ...rawHeaders].join("\n")

/** The head of a response that switches protocols, as the server sent it. */
const switching = ({ rawHeaders, statusMessage = "" }: http.IncomingMessage): string => {
  const lines = [`HTTP/1.1 101 ${statusMessage}`]
  for (let at = 0; at < rawHeaders.length; at += 2) lines.push(`${rawHeaders[at]}: ${rawHeaders[at + 1]}`)
  return `${lines.join("\r\n")}\r\n\r\n`
}

/** Passes the requests that `guest` receives to `server`, over its one connection. */
export const make = (guest: https.Server, server: Duplex, connection: Connection): Exchange => {
  const { finish, guarded, mine, others, refuse, target, used } = connection
  const agent = new OneConnection(server)
  let requests = 0
  let idle: (() => void) | undefined
  const answered = (): void => {
    requests--
    if (requests === 0) idle?.()
  }
  const unfit = (reason: string): void => refuse(new RequestHead.Unfit("http-syntax", reason, RequestHead.wellFormed))
  const lost = (error: Error): void => finish(`the server: ${messageOf(error)}`)

  const watched = Reflection.watch(mine)
  /** Ends the connection if the head of a response holds a secret. */
  const reflects = (answer: http.IncomingMessage): boolean => {
    const secret = watched?.inText(headOf(answer))
    if (secret !== undefined) refuse(RequestHead.reflected(secret, target))
    return secret !== undefined
  }
  /** Ends the connection for what ended a response early. */
  const broken = (error: Error): void => {
    if (error instanceof Reflection.Reflected) return refuse(RequestHead.reflected(error.secret, target))
    if (error instanceof Reflection.Unreadable) return refuse(RequestHead.unchecked(error.message))
    finish(messageOf(error))
  }

  /** Bytes from the server, as long as no secret is in them. */
  const checked = (encoding: string | undefined): Duplex =>
    // The reason must be known before a pipeline ends the connection for it.
    watched === undefined ? new PassThrough() : Reflection.passing(watched.look(), encoding).on("error", broken)
  /** Sends the server's response to the guest. */
  const give = (answer: http.IncomingMessage, to: http.ServerResponse, keep: boolean): void => {
    if (reflects(answer)) return
    to.sendDate = false
    if (!keep) to.shouldKeepAlive = false
    to.writeHead(answer.statusCode ?? 502, answer.statusMessage ?? "", RequestHead.own(answer.rawHeaders))
    to.write(nothing)
    // A truncated response must not look complete.
    pipeline(answer, checked(answer.headers["content-encoding"]), to, (error) => {
      if (error !== undefined && error !== null) broken(error)
    })
  }

  /** Starts a request to the server, unless it is refused. */
  const ask = (request: http.IncomingMessage, upgrade?: string): http.ClientRequest | undefined => {
    const passed = RequestHead.read(request, target, mine, others, upgrade)
    if (passed instanceof RequestHead.Unfit) {
      refuse(passed)
      return undefined
    }
    requests++
    used(passed.used)
    const { method = "", url = "" } = request
    const asked = http.request({
      agent,
      host: hostText(target.host),
      method,
      path: url,
      headers: passed.headers,
      setHost: false,
      insecureHTTPParser: false,
      maxHeaderSize: RequestHead.maxHead
    })
    return asked.on("error", lost)
  }

  const handle = guarded((request: http.IncomingMessage, response: http.ServerResponse) => {
    if (requests >= maxRequests) return unfit("too many requests at once")
    const asked = ask(request)
    if (asked === undefined) return
    response.on("finish", answered)
    const onContinue = guarded(() => response.writeContinue())
    asked.on("continue", onContinue)
    const onResponse = guarded((answer: http.IncomingMessage) => {
      give(answer, response, asked.shouldKeepAlive && request.complete)
    })
    asked.on("response", onResponse)
    asked.on("drain", () => request.resume())
    const stray = scanner(others)
    const onData = guarded((piece: Buffer) => {
      const found = stray(piece)
      if (found !== undefined) return refuse(RequestHead.elsewhere(found, target))
      if (!asked.write(piece)) request.pause()
    })
    request.on("data", onData)
    request.on("end", () => asked.end())
    request.on("error", (error) => finish(`the guest: ${messageOf(error)}`))
    asked.write(nothing)
  })
  guest.on("request", handle)
  guest.on("checkContinue", handle)
  guest.on("connect", () => unfit("a request for a tunnel"))
  // Also for failures of TLS.
  guest.on("clientError", (error: NodeJS.ErrnoException) => {
    if (error.code === "HPE_PAUSED_H2_UPGRADE") refuse(RequestHead.otherVersion("HTTP/2"))
    else if (error.code?.startsWith("HPE_") === true) unfit(`HTTP that cannot be read: ${error.code}`)
    else finish(`the guest: ${messageOf(error)}`)
  })

  const onUpgrade = guarded((request: http.IncomingMessage, stream: Duplex, first: Buffer) => {
    const { upgrade = "" } = request.headers
    if (upgrade.toLowerCase() !== "websocket" || request.method !== "GET" || requests > 0) {
      return unfit("a protocol upgrade other than to WebSocket, or during other requests")
    }
    const asked = ask(request, upgrade)
    if (asked === undefined) return
    stream.on("error", (error) => finish(`the guest: ${messageOf(error)}`))
    // The server may refuse the upgrade.
    const onResponse = guarded((answer: http.IncomingMessage) => {
      const response = new http.ServerResponse(request)
      response.assignSocket(request.socket)
      response.on("finish", () => {
        answered()
        stream.end()
      })
      give(answer, response, false)
    })
    asked.on("response", onResponse)
    const onSwitch = guarded((answer: http.IncomingMessage, other: Duplex, rest: Buffer) => {
      answered()
      if (reflects(answer)) return
      stream.write(switching(answer), "latin1")
      if (first.length > 0) other.write(first)
      stream.pipe(other)
      const safe = checked(undefined)
      if (rest.length > 0) safe.write(rest)
      other.pipe(safe)
      safe.pipe(stream)
    })
    asked.on("upgrade", onSwitch)
    asked.end()
  })
  guest.on("upgrade", onUpgrade)

  return {
    busy: () => requests > 0,
    onIdle: (then) => {
      idle = then
    },
    destroy: () => agent.destroy()
  }
}
