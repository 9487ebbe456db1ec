/** Servers behind a border: some that have a secret, one that has none, one with an untrusted certificate. */
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import type * as Scope from "effect/Scope"
import * as http from "node:http"
import * as https from "node:https"
import * as net from "node:net"
import * as tls from "node:tls"
import { Dialler } from "../../src/egress/Dial.ts"
import * as Egress from "../../src/egress/Egress.ts"
import { Resolver } from "../../src/egress/Resolver.ts"
import * as NetworkPolicy from "../../src/NetworkPolicy.ts"
import type { Secrets } from "../../src/Secrets.ts"
import { gateway } from "./gateway.ts"
import { certificates, listening } from "./servers.ts"

export const first = "the-first-value"
export const second = "the second: value"
export const secrets: Secrets = {
  FIRST: { value: Redacted.make(first), hosts: ["a.example", "*.wide.example:8443"], header: "*" },
  SECOND: { value: Redacted.make(second), hosts: ["b.example"], header: "X-Key" }
}
export const policy = NetworkPolicy.allow(["a.example", "b.example", "c.example", "a.example:7", "*.wide.example:8443"])

export interface Seen {
  readonly line: string
  readonly headers: ReadonlyArray<string>
  readonly body: string
}

export interface World {
  readonly egress: Egress.Egress
  /** The requests that the servers got, on any connection. */
  readonly seen: Array<Seen>
  /** All bytes received on ports 80 and 7. */
  readonly plain: () => string
  readonly first: string
  readonly second: string
  /** A port of this host that connects, as a guest, to a host. */
  readonly to: (host: string, port?: number) => Effect.Effect<number, never, Scope.Scope>
  readonly ca: ReadonlyArray<string>
  readonly last: () => { readonly rule: string; readonly reason: string | null; readonly decision: string }
}

export const world = (
  answer: http.RequestListener = (_, response) => void response.end("fine"),
  upgrade?: net.Server,
  /** Paths of secrets that are only for reading. */
  below?: Readonly<Record<string, string>>
) =>
  Effect.gen(function* () {
    const seen: Array<Seen> = []
    let plainText = ""
    const certs = yield* certificates(["a.example", "b.example", "c.example", "x.wide.example"])
    const strange = yield* certificates(["untrusted.wide.example"])
    const { NODE_EXTRA_CA_CERTS = "", SSL_CERT_FILE = "" } = process.env
    Object.assign(process.env, { NODE_EXTRA_CA_CERTS: certs.authority, SSL_CERT_FILE: certs.authority })
    yield* Effect.addFinalizer(() =>
      Effect.sync(() => Object.assign(process.env, { NODE_EXTRA_CA_CERTS, SSL_CERT_FILE }))
    )
    const contexts = new Map(
      [...certs.byName, ...strange.byName].map(([name, pair]) => [name, tls.createSecureContext(pair)])
    )
    const server = https.createServer({
      SNICallback: (name, done) => done(null, contexts.get(name) ?? contexts.get("a.example"))
    })
    server.maxHeadersCount = 0
    server.on("request", (request, response) => {
      const parts: Array<Buffer> = []
      const note = () =>
        seen.push({
          line: `${request.method} ${request.url}`,
          headers: request.rawHeaders,
          body: Buffer.concat(parts).toString("latin1")
        })
      if (request.url === "/early") {
        note()
        return answer(request, response)
      }
      request.on("data", (bytes: Buffer) => parts.push(bytes))
      request.on("end", () => {
        note()
        answer(request, response)
      })
    })
    server.on("checkContinue", (request, response) => {
      if (request.url !== "/early") response.writeContinue()
      server.emit("request", request, response)
    })
    server.on("upgrade", (request, socket, head: Buffer) => {
      seen.push({ line: `upgrade ${request.url}`, headers: request.rawHeaders, body: "" })
      if (request.url === "/no") return void socket.end("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
      socket.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhi ")
      socket.write(head)
      socket.pipe(socket)
    })
    const secure = yield* listening(server)
    const plain = yield* listening(
      net.createServer((socket) => {
        socket.on("error", () => {})
        socket.on("data", (bytes) => {
          plainText += bytes.toString("latin1")
        })
      })
    )
    const dial = yield* Dialler
    const egress = yield* Egress.make(policy, yield* Egress.bindSecrets(secrets, below)).pipe(
      Effect.provideService(Dialler, (_, port) =>
        dial("127.0.0.1", upgrade === undefined ? (port === 443 || port === 8443 ? secure : plain) : port)
      ),
      Effect.provideService(Resolver, () => Effect.succeed(["203.0.113.9"]))
    )
    const made: World = {
      egress,
      seen,
      plain: () => plainText,
      first: egress.placeholders["FIRST"] ?? "",
      second: egress.placeholders["SECOND"] ?? "",
      to: (host, port = 443) => gateway(egress, host, port),
      ca: (egress.grant(policy)?.authorities ?? "").split(/(?<=-----END CERTIFICATE-----\n)/),
      last: () => egress.ledger.latest().at(-1) ?? { rule: "", reason: "", decision: "" }
    }
    return made
  })

interface Answer {
  readonly status: number
  readonly headers: http.IncomingHttpHeaders
  readonly body: string
}

/** The answer to one request of the guest, or the error's code. */
export const ask = (
  { ca, to }: World,
  host: string,
  options: https.RequestOptions & { readonly body?: string | ReadonlyArray<string>; readonly to?: number } = {}
) =>
  Effect.flatMap(to(host, options.to), (port) =>
    Effect.callback<Answer | string>((resume) => {
      const { body, ...rest } = options
      const request = https.request(
        { host: "127.0.0.1", port, servername: host, ca: [...ca], agent: false, setHost: false, ...rest },
        (response) => {
          const parts: Array<Buffer> = []
          response.on("data", (bytes: Buffer) => parts.push(bytes))
          response.on("error", (error: NodeJS.ErrnoException) => resume(Effect.succeed(error.code ?? error.message)))
          response.on("end", () =>
            resume(
              Effect.succeed({
                status: response.statusCode ?? 0,
                headers: response.headers,
                body: Buffer.concat(parts).toString()
              })
            )
          )
        }
      )
      request.on("error", (error: NodeJS.ErrnoException) => resume(Effect.succeed(error.code ?? error.message)))
      for (const part of typeof body === "string" ? [body] : (body ?? [])) request.write(part)
      request.end()
    })
  )

/** Sends bytes over TLS as the guest, and gives all bytes that come back. */
export const raw = ({ ca, to }: World, host: string, bytes: string) =>
  Effect.flatMap(to(host), (port) =>
    Effect.callback<string>((resume) => {
      let text = ""
      const socket = tls.connect({ port, servername: host, ca: [...ca], ALPNProtocols: ["http/1.1"] }, () =>
        socket.write(Buffer.from(bytes, "latin1"))
      )
      socket.on("data", (piece) => {
        text += piece.toString("latin1")
      })
      socket.on("error", () => {})
      socket.on("close", () => resume(Effect.succeed(text)))
    })
  )
