/** Makes `Session.ports`, which listens on the host, and `Session.http`, which needs no port of the host. */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberSet from "effect/FiberSet"
import * as HttpClient from "effect/http/HttpClient"
import { HttpClientError, InvalidUrlError } from "effect/http/HttpClientError"
import * as Option from "effect/Option"
import * as Scope from "effect/Scope"
import * as net from "node:net"
import type { Duplex } from "node:stream"
import * as Agent from "../guest/Agent.ts"
import { listening as listeningMethod } from "../guest/Methods.ts"
import { ExposeOptions, GuestPort, PortError, type Ports } from "../Ports.ts"
import { fail, InvalidInput } from "../SandboxError.ts"
import { decodeInput } from "../internal/decodeInput.ts"
import { errorCode } from "../internal/Files.ts"
import * as GuestSocket from "./Socket.ts"
import type { PortLedger, Use } from "./Ledger.ts"
import type { Guest } from "../session/Guest.ts"

/** How many connections are forwarded at one time. */
const maxConnections = 128
const longestWaitMs = 86_400_000
/** How long after the bound the guest may take to report that no program listens, in ms. */
const graceMs = 20_000

const host = "127.0.0.1"

const decodePort = decodeInput(GuestPort, "guestPort")
const decodeOptions = decodeInput(ExposeOptions, "expose options")

/** The error when the host's port cannot be opened. */
const refusal = (port: number, error: Error): PortError => {
  const code = errorCode(error)
  switch (code) {
    case "EADDRINUSE":
      return new PortError({ side: "host", port, reason: { _tag: "HostPortTaken" } })
    case "EACCES":
    case "EPERM": {
      const grant = "use a port above 1023, or 0 for any that is free"
      return new PortError({ side: "host", port, reason: { _tag: "HostPortDenied", rule: code, grant } })
    }
    default:
      return new PortError({ side: "host", port, reason: { _tag: "Broken", problem: error.message } })
  }
}

/** Connects a client's socket with the connection into the guest. A reset on one side becomes a reset on the other. */
const splice = (near: net.Socket, far: Duplex): void => {
  near.pipe(far)
  far.pipe(near)
  near.on("error", () => far.destroy())
  // After an orderly end in both directions, what is still on its way to the guest arrives there.
  near.on("close", () => {
    if (!near.readableEnded) far.destroy()
  })
  far.on("error", () => near.resetAndDestroy())
  far.on("close", () => {
    if (far.readableEnded) near.destroySoon()
    else near.resetAndDestroy()
  })
}

/** A listener. When the scope closes, it is closed and the connections that it has accepted are reset. */
const listen = (port: number, accept: (near: net.Socket) => Duplex | undefined) =>
  Effect.acquireRelease(
    Effect.callback<{ readonly server: net.Server; readonly open: Set<net.Socket> }, PortError>((resume) => {
      const open = new Set<net.Socket>()
      const server = net.createServer({ allowHalfOpen: true, noDelay: true }, (near) => {
        const far = accept(near)
        if (far === undefined) return near.resetAndDestroy()
        open.add(near)
        near.on("close", () => open.delete(near))
        splice(near, far)
      })
      server.once("error", (error) => resume(Effect.fail(refusal(port, error))))
      server.listen(port, host, () => resume(Effect.succeed({ server, open })))
      return Effect.sync(() => void server.close())
    }),
    ({ open, server }) =>
      Effect.callback<void>((resume) => {
        server.close(() => resume(Effect.void))
        for (const near of open) near.resetAndDestroy()
      })
  )

/** `lost` ends when the VM is gone. */
export const make = Effect.fnUntraced(function* (
  guest: Guest,
  ledger: PortLedger,
  lost: Effect.Effect<unknown, unknown>
): Effect.fn.Return<{ readonly ports: Ports; readonly http: HttpClient.HttpClient }, never, Scope.Scope> {
  const sessionScope = yield* Effect.scope
  const run: GuestSocket.Run = yield* FiberSet.makeRuntime<never>()
  const exposed = new Set<Scope.Closeable>()
  let connections = 0
  yield* Effect.ignore(lost).pipe(
    Effect.andThen(Effect.suspend(() => Effect.forEach([...exposed], (it) => Scope.close(it, Exit.void)))),
    Effect.forkScoped
  )

  const accept = (guestPort: number, use: Use): Duplex | undefined => {
    if (connections >= maxConnections) {
      use.refused++
      return undefined
    }
    connections++
    return GuestSocket.dial(guest, guestPort, use, run).on("close", () => connections--)
  }

  const expose: Ports["expose"] = Effect.fn("Session.ports.expose")(function* (port, options = {}) {
    const guestPort = yield* decodePort(port)
    const { hostPort = 0 } = yield* decodeOptions(options)
    yield* guest.usable
    const scope = yield* Scope.fork(sessionScope)
    exposed.add(scope)
    yield* Effect.addFinalizer(() =>
      Effect.suspend(() => {
        exposed.delete(scope)
        return Scope.close(scope, Exit.void)
      })
    )
    let use: Use | undefined
    const { server } = yield* listen(hostPort, () => use && accept(guestPort, use)).pipe(Scope.provide(scope))
    const address = server.address()
    const bound = typeof address === "object" && address !== null ? address.port : hostPort
    const counted = ledger.begin(guestPort, host, bound)
    use = counted
    yield* Scope.addFinalizer(
      scope,
      Effect.sync(() => ledger.end(counted))
    )
    return { guestPort, host, port: bound, url: `http://${host}:${bound}` }
  })

  const waitFor: Ports["waitFor"] = Effect.fn("Session.ports.waitFor")(function* (port, bound) {
    const guestPort = yield* decodePort(port)
    const duration = Option.map(Duration.fromInput(bound), Duration.toMillis)
    if (Option.isNone(duration) || !(duration.value >= 0 && duration.value <= longestWaitMs)) {
      const expected = "a time of at most a day"
      return yield* fail(new InvalidInput({ field: "bound", problem: `got ${String(bound)}`, expected }))
    }
    const timeoutMs = Math.ceil(duration.value)
    const { listening } = yield* Agent.call(guest.open, listeningMethod, { port: guestPort, timeoutMs }).pipe(
      Effect.catchTag(["Refused", "ChannelViolation"], (error) => guest.violated(error.problem)),
      Effect.timeoutOrElse({
        duration: timeoutMs + graceMs,
        orElse: () => guest.violated("it does not report whether a program listens")
      })
    )
    if (!listening) {
      return yield* new PortError({
        side: "guest",
        port: guestPort,
        reason: { _tag: "NotListening", waitedMs: timeoutMs }
      })
    }
  })

  /** The ledger's entry for each port of the guest that `http` has connected to. */
  const httpUses = new Map<number, Use>()
  const http = HttpClient.make((request, url) => {
    const local = url.protocol === "http:" && ["localhost", "127.0.0.1", "[::1]"].includes(url.hostname)
    if (!local) {
      const description = "a guest is reached as http://localhost:PORT"
      return Effect.fail(new HttpClientError({ reason: new InvalidUrlError({ request, description }) }))
    }
    return Effect.flatMap(client, (it) => it.execute(request))
  })
  const client = yield* Effect.cached(
    Effect.flatMap(
      Effect.promise(() => import("./Http.ts")),
      ({ makeClient }) =>
        makeClient((port) => {
          const use = httpUses.get(port) ?? ledger.begin(port, null, null)
          httpUses.set(port, use)
          return GuestSocket.dial(guest, port, use, run)
        })
    )
  )

  return { ports: { expose, waitFor }, http }
})
