/**
 * Joins a connection of the guest to a socket of the host, each at the other's pace: what one side does not read, the other
 * cannot write. Where a name was granted for TLS, the first bytes must contain it before any byte is passed on.
 */
import type * as net from "node:net"
import * as ClientHello from "./ClientHello.ts"

/** The guest's end; see `guest/Connections`. */
export interface Peer {
  readonly send: (bytes: Uint8Array) => number
  readonly end: () => void
  readonly consumed: (bytes: number) => void
  readonly close: () => void
  readonly reset: (code: string, message: string) => void
}

/** Receives the events of the guest's end. */
export interface Receiver {
  readonly data: (bytes: Uint8Array) => void
  readonly end: () => void
  readonly writable: () => void
  readonly gone: () => void
}

export interface Counts {
  bytesIn: number
  bytesOut: number
}

export interface Splice extends Receiver {
  /** Cuts the connection off. */
  readonly cut: (problem: string) => void
}

/**
 * `check` is for first bytes that must be TLS: `undefined` passes them, a text refuses them. `watch` does the same for all
 * bytes that the guest sends. `over` is called once.
 */
export const make = (
  socket: net.Socket,
  peer: Peer,
  counts: Counts,
  check: ((hello: ClientHello.Hello) => string | undefined) | undefined,
  over: (problem: string | undefined) => void,
  watch?: (bytes: Uint8Array) => string | undefined
): Splice => {
  /** From the socket, not taken by the guest yet. */
  let unsent: Uint8Array | undefined
  let socketEnded = false
  let guestEnded = false
  let done = false
  /** Reads the guest's first bytes; undefined once they were checked. */
  let held = check === undefined ? undefined : ClientHello.reader()

  /** The guest's end is over. If it ended in order, bytes in transit are still delivered, however long that takes. */
  const leave = (problem: string | undefined): void => {
    done = true
    if (problem !== undefined) socket.destroy()
    if (problem !== undefined || socket.closed) over(problem)
    else socket.once("close", () => over(undefined))
  }

  const finish = (problem: string | undefined): void => {
    if (done) return
    if (problem === undefined) peer.close()
    else peer.reset("closed", problem)
    leave(problem)
  }

  const ended = (): void => {
    if (socketEnded && guestEnded && unsent === undefined) finish(undefined)
  }

  const send = (bytes: Uint8Array): void => {
    const sent = peer.send(bytes)
    counts.bytesIn += sent
    unsent = sent < bytes.length ? bytes.subarray(sent) : undefined
    if (unsent !== undefined) socket.pause()
  }

  const forward = (bytes: Uint8Array): void => {
    const refused = watch?.(bytes)
    if (refused !== undefined) return finish(refused)
    counts.bytesOut += bytes.length
    socket.write(bytes, () => peer.consumed(bytes.length))
  }

  const begin = (): void => {
    held = undefined
    socket.resume()
  }

  socket.on("data", (bytes: Buffer) => {
    if (!done) send(bytes)
  })
  socket.on("end", () => {
    socketEnded = true
    if (unsent === undefined) peer.end()
    ended()
  })
  socket.on("error", (error) => finish(error.message))
  socket.on("close", () => {
    if (!(socketEnded && guestEnded)) finish("the connection was closed")
  })
  if (held === undefined) socket.resume()

  return {
    data: (bytes) => {
      if (done) return
      if (held === undefined || check === undefined) return forward(bytes)
      const hello = held.read(bytes)
      if (hello._tag === "More") return
      const refused = check(hello)
      if (refused !== undefined) return finish(refused)
      const first = held.all()
      begin()
      forward(first)
    },
    end: () => {
      if (done) return
      if (held !== undefined && check !== undefined) {
        if (held.all().length > 0) return finish(check({ _tag: "Not", problem: "a truncated ClientHello" }))
        begin()
      }
      guestEnded = true
      socket.end()
      ended()
    },
    writable: () => {
      if (unsent === undefined || done) return
      send(unsent)
      if (unsent !== undefined) return
      if (socketEnded) {
        peer.end()
        ended()
      } else socket.resume()
    },
    gone: () => {
      if (!done) leave(guestEnded && socketEnded ? undefined : "the guest closed the connection")
    },
    cut: (problem) => {
      if (done) socket.destroy()
      else finish(problem)
    }
  }
}
