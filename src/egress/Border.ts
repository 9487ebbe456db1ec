/**
 * The border: a connection of the guest to a host that has a secret. This process ends the guest's TLS with a certificate of
 * the session's authority and opens its own TLS to the server; `Exchange` passes requests and responses between the two.
 *
 * Each connection of the guest has its own to the server, so both end together. Only Node's streams buffer, and the guest
 * gets credit as they take its bytes.
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
  /** Checks the first bytes; see `Splice`. */
  readonly check: (hello: ClientHello.Hello) => string | undefined
  /** Records that the connection is refused, and returns the reason. */
  readonly refuse: (unfit: Unfit) => string
  /** Called once. */
  readonly over: (problem: string | undefined) => void
}

/** How long the server's handshake may take, ms. */
const patience = 10_000

let trusted: { readonly extra: string; readonly context: tls.SecureContext } | undefined

/** The authorities that the host trusts: Node's, and the additional ones of the host's programs. */
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
  /** The first bytes, until they are checked. */
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
  /** For callbacks of streams, which must not throw. */
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

  // Streams can fail after their last use, too.
  guest.on("error", (error) => finish(`the guest: ${Exchange.messageOf(error)}`))
  socket.on("error", lost)
  /** Called when a side has ended; does something when both have. */
  const ended = (): void => {
    if (guestEnded && guest.writableFinished)
      finish(exchange?.busy() === true ? "the guest closed the connection" : undefined)
  }
  guest.on("finish", ended)

  /** Refuses a guest that does not offer HTTP/1.1. */
  const otherHttp = (hello: ClientHello.Hello): string | undefined => {
    const offered = (hello._tag === "Hello" ? hello.protocols : null) ?? ["http/1.1"]
    if (offered.includes("http/1.1")) return undefined
    const shown = offered.slice(0, 4).map((it) => JSON.stringify(it.slice(0, 40)))
    return crossing.refuse(otherVersion(`TLS for ${shown.join(", ")} only`))
  }

  /** Opens TLS to the server, and after that answers the guest's. */
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
    const terminator = https.createServer({
      cert,
      key: key.export({ type: "pkcs8", format: "pem" }),
      ALPNProtocols: ["http/1.1"],
      insecureHTTPParser: false,
      // Requests without a Host header are refused and recorded by `RequestHead`.
      requireHostHeader: false,
      maxHeaderSize: maxHead,
      keepAliveTimeout: 0,
      requestTimeout: 0,
      headersTimeout: 0
    })
    // No limit but the head's size: beyond a thousand headers, some versions of Node drop the rest, framing included.
    terminator.maxHeadersCount = 0
    const made = Exchange.make(terminator, server, {
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
    terminator.on(
      "secureConnection",
      guarded((secure: tls.TLSSocket) => {
        ends.unshift(() => secure.destroy())
        // A server that closes an idle connection ends it in order.
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
    terminator.emit("connection", guest)
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
        return finish(crossing.check({ _tag: "Not", problem: "a truncated ClientHello" }))
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
