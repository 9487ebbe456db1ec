/** Connects from the host to an address that was checked. */
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as net from "node:net"

/** There is no connection. `code` is the system's, such as ECONNREFUSED. */
export class DialFailed extends Data.TaggedError("DialFailed")<{ readonly code: string }> {}

/** The socket is paused and half-open: either side may end first. */
export type Dial = (address: string, port: number) => Effect.Effect<net.Socket, DialFailed>

const patience = "10 seconds"

const connect: Dial = (address, port) =>
  Effect.callback<net.Socket, DialFailed>((resume) => {
    const socket = net.connect({ host: address, port, allowHalfOpen: true, noDelay: true })
    socket.pause()
    const failed = (error: NodeJS.ErrnoException): void =>
      resume(Effect.fail(new DialFailed({ code: error.code ?? "EIO" })))
    socket.once("error", failed)
    socket.once("connect", () => {
      socket.off("error", failed)
      resume(Effect.succeed(socket))
    })
    return Effect.sync(() => socket.destroy())
  }).pipe(
    Effect.timeoutOrElse({ duration: patience, orElse: () => Effect.fail(new DialFailed({ code: "ETIMEDOUT" })) })
  )

/** How the host connects. Tests replace it, so that they need no network. */
export const Dialler = Context.Reference<Dial>("exec-sandbox/egress/Dialler", { defaultValue: () => connect })
