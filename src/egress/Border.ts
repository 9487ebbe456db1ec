/**
 * The border: a connection of the guest to a host that has a secret. The host ends the guest's TLS with a certificate of the
 * session's authority, and speaks TLS of its own with the server; what goes from one to the other is up to `Exchange`.
 *
 * One connection of the guest is one to the server, so both end together. Nothing is held but what the streams of Node hold, and
 * the guest is given credit as they take its bytes.
 */
import * as https from "node:https"
import type * as net from "node:net"
import * as tls from "node:tls"
import { extras } from "./Authorities.ts"
import * as ClientHello from "./ClientHello.ts"
import * as Exchange from "./Exchange.ts"
import { GuestStream } from "./GuestStream.ts"
import type { Entry } from "./Ledger.ts"
import type { Bound } from "./Placeholders.ts"
import { maxHead, otherVersion, type Unfit } from "./RequestHead.ts"
import type { Identity } from "./SessionAuthority.ts"
import type { Peer, Splice } from "./Splice.ts"
import { hostText, type Target } from "../network/Target.ts"

export interface Crossing {
  readonly target: Target
  /** Connected to the server, paused. */
  readonly socket: net.Socket
  readonly peer: Peer
  readonly entry: Entry
  /** The secrets that are for the target, and those that are not. */
  readonly mine: ReadonlyArray<Bound>
  readonly others: ReadonlyArray<Bound>
  readonly identity: () => Identity
  /** Judges the first bytes; see `Splice`. */
  readonly check: (hello: ClientHello.Hello) => string | undefined
  /** Writes down that the connection is refused, and gives the reason. */
  readonly refuse: (unfit: Unfit) => string
  /** Called once. */
  readonly over: (problem: string | undefined) => void
}

/** How long the server's handshake may take, ms. */
const patience = 10_000

let trusted: { readonly extra: string; readonly context: tls.SecureContext } | undefined

/** Whom the host trusts: what Node does, and what the host's programs are told beside. */
const trust = (): tls.SecureContext => {
  const more = extras()
  const extra = more.join("\n")
  if (trusted?.extra !== extra) {
    trusted = { extra, context: tls.createSecureContext({ ca: [...tls.getCACertificates("default"), ...more] }) }
  }
  return trusted.context
}

export const make = (crossing: Crossing): Splice => {
  const { entry, mine, others, peer, socket, target } = crossing
  const guest = new GuestStream(peer, entry)
  /** The first bytes, until they are judged. */
  let held: ReturnType<typeof ClientHello.reader> | undefined = ClientHello.reader()
  let guestEnded = false
  let done = false
  let exchange: Exchange.Exchange | undefined
  const ends: Array<() => void> = [() => guest.destroy(), () => socket.destroy()]

  const finish = (problem: string | undefined): void => {
    if (done) return
    done = true
    if (problem === undefined) peer.close()
    else peer.reset("closed", problem)
    for (const end of ends) end()
    crossing.over(problem)
  }
  const refuse = (unfit: Unfit): void => {
    if (!done) finish(crossing.refuse(unfit))
  }
  /** Callbacks of streams, out of which nothing may be thrown. */
  const guarded =
    <A extends ReadonlyArray<unknown>>(act: (...given: A) => void) =>
    (...given: A): void => {
      if (done) return
      try {
        act(...given)
      } catch (error) {
        finish(Exchange.messageOf(error))
      }
    }
  const lost = (error: Error): void => finish(`the server: ${Exchange.messageOf(error)}`)

  // Streams that nobody uses any more may still fail.
  guest.on("error", (error) => finish(`the guest: ${Exchange.messageOf(error)}`))
  socket.on("error", lost)
  /** Both sides have said that they end. */
  const ended = (): void => {
    if (guestEnded && guest.writableFinished)
      finish(exchange?.busy() === true ? "the guest closed the connection" : undefined)
  }
  guest.on("finish", ended)

  /** Refuses a guest that speaks no HTTP/1.1. */
  const otherHttp = (hello: ClientHello.Hello): string | undefined => {
    const offered = (hello._tag === "Hello" ? hello.protocols : null) ?? ["http/1.1"]
    if (offered.includes("http/1.1")) return undefined
    const shown = offered.slice(0, 4).map((it) => JSON.stringify(it.slice(0, 40)))
    return crossing.refuse(otherVersion(`TLS for ${shown.join(", ")} only`))
  }

  /** Speaks TLS with the server, and after that with the guest. */
  const begin = (): void => {
    const server = tls.connect({
      socket,
      servername: hostText(target.host),
      ALPNProtocols: ["http/1.1"],
      secureContext: trust(),
      rejectUnauthorized: true
    })
    ends.unshift(() => server.destroy())
    server.setTimeout(patience, () => finish("TLS with the server: ETIMEDOUT"))
    server.on("error", (error) => finish(`TLS with the server: ${Exchange.messageOf(error)}`))
    server.once(
      "secureConnect",
      guarded(() => {
        server.setTimeout(0)
        meet(server)
      })
    )
  }

  const meet = (server: tls.TLSSocket): void => {
    const { cert, key } = crossing.identity()
    const way = https.createServer({
      cert,
      key: key.export({ type: "pkcs8", format: "pem" }),
      ALPNProtocols: ["http/1.1"],
      insecureHTTPParser: false,
      // Also of requests without one: those are refused here, and written down.
      requireHostHeader: false,
      maxHeaderSize: maxHead,
      keepAliveTimeout: 0,
      requestTimeout: 0,
      headersTimeout: 0
    })
    // All headers that a head has room for: of more than a thousand, some versions of Node leave out the rest, framing included.
    way.maxHeadersCount = 0
    const made = Exchange.make(way, server, {
      target,
      mine,
      others,
      used: (names) => {
        entry.secrets = [...new Set([...(entry.secrets ?? []), ...names])]
      },
      finish,
      refuse,
      guarded
    })
    exchange = made
    ends.unshift(made.destroy)
    way.on(
      "secureConnection",
      guarded((secure: tls.TLSSocket) => {
        ends.unshift(() => secure.destroy())
        // What the server ends when nothing is under way has ended in order.
        const over = (): void => {
          if (server.destroyed && !made.busy()) secure.end()
        }
        server.on("close", over)
        made.onIdle(over)
        secure.on("close", () => {
          if (made.busy()) return finish("the guest closed the connection")
          server.destroy()
          guest.end()
          ended()
        })
      })
    )
    way.emit("connection", guest)
  }

  return {
    data: (bytes) => {
      if (done) return
      if (held === undefined) return guest.receive(bytes)
      const hello = held.read(bytes)
      if (hello._tag === "More") return
      const refused = crossing.check(hello) ?? otherHttp(hello)
      if (refused !== undefined) return finish(refused)
      const first = held.all()
      held = undefined
      guarded(begin)()
      guest.receive(first)
    },
    end: () => {
      if (done) return
      if (held !== undefined && held.all().length > 0) {
        return finish(crossing.check({ _tag: "Not", problem: "a ClientHello that is cut short" }))
      }
      guestEnded = true
      guest.push(null)
      if (held !== undefined) finish(undefined)
      else ended()
    },
    writable: () => guest.room(),
    gone: () => {
      if (done) return
      done = true
      for (const end of ends) end()
      crossing.over(guestEnded && guest.writableFinished ? undefined : "the guest closed the connection")
    },
    cut: finish
  }
}
