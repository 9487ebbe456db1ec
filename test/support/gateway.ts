/** A guest's connections, made by sockets of this host: it sends to the egress what the guest's agent would send. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as net from "node:net"
import type { Egress } from "../../src/egress/Egress.ts"
import { listening } from "./servers.ts"

/** Bytes that the guest may send before it gets more credit, as on the channel. */
const credit = 256 * 1024

/** A port of this host. A connection to it reaches `host:port` through the egress; resets are passed on. */
export const gateway = (egress: Egress, host: string, port: number): Effect.Effect<number, never, Scope.Scope> =>
  listening(
    net.createServer({ allowHalfOpen: true, pauseOnConnect: true }, (socket) => {
      let left = credit
      let over = false
      const receiver = egress.accept({
        request: { host, port },
        note: (event) => {
          if ("event" in event && event.event === "connected") socket.resume()
        },
        send: (bytes) => {
          if (socket.writableNeedDrain) return 0
          socket.write(Buffer.from(bytes))
          return bytes.length
        },
        end: () => socket.end(),
        consumed: (bytes) => {
          left += bytes
          if (left > 0) socket.resume()
        },
        close: () => {
          over = true
          socket.end()
        },
        reset: () => {
          over = true
          socket.resetAndDestroy()
        }
      })
      socket.on("drain", () => over || receiver.writable())
      socket.on("data", (bytes: Buffer) => {
        left -= bytes.length
        if (left <= 0) socket.pause()
        if (!over) receiver.data(bytes)
      })
      socket.on("end", () => over || receiver.end())
      socket.on("error", () => {})
      socket.on("close", () => over || receiver.gone())
    })
  )
