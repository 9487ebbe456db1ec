/** The servers of a fake guest, and the connections to them. */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import { createServer, type IncomingMessage, type ServerResponse } from "node:http"
import { Duplex, Readable } from "node:stream"
import { pipeline } from "node:stream/promises"
import type { HttpHandler, Server, TcpHandler } from "./Script.ts"

/** Runs the effects of handlers, as long as their machine lives. */
export type Run = <A, E>(effect: Effect.Effect<A, E>) => Fiber.Fiber<A, E>

/** The interpreter or process that started a server; the server ends with it. */
export type Owner = string

interface Listener {
  readonly server: Server
  readonly owner: Owner
  readonly connections: Set<Duplex>
}

export interface FakePorts {
  /** The same servers for another guest, without their connections. */
  readonly copy: () => FakePorts
  /** Starts a server; false when the port is in use. */
  readonly listen: (port: number, server: Server, owner: Owner) => boolean
  /** Ends a server and breaks its connections. */
  readonly close: (port: number) => void
  /** Ends all servers that this owner started. */
  readonly leave: (owner: Owner) => void
  readonly at: (port: number) => Listener | undefined
  /** Waits until a server listens on the port. */
  readonly awaitListener: (port: number) => Effect.Effect<void>
}

const over = (listeners: Map<number, Listener>): FakePorts => {
  const waiting = new Set<() => void>()
  const close = (port: number): void => {
    const found = listeners.get(port)
    listeners.delete(port)
    for (const connection of found?.connections ?? []) connection.destroy()
  }
  return {
    copy: () => over(new Map([...listeners].map(([port, it]) => [port, { ...it, connections: new Set() }]))),
    listen: (port, server, owner) => {
      if (!Number.isInteger(port) || port < 1 || port > 65_535) throw new RangeError(`there is no port ${port}`)
      if (listeners.has(port)) return false
      listeners.set(port, { server, owner, connections: new Set() })
      for (const wake of waiting) wake()
      return true
    },
    close,
    leave: (owner) => {
      for (const [port, it] of listeners) if (it.owner === owner) close(port)
    },
    at: (port) => listeners.get(port),
    awaitListener: (port) =>
      Effect.callback((resume) => {
        const look = (): void => {
          if (!listeners.has(port)) return
          waiting.delete(look)
          resume(Effect.void)
        }
        waiting.add(look)
        look()
        return Effect.sync(() => waiting.delete(look))
      })
  }
}

export const make = (): FakePorts => over(new Map())

/** The host's end of a connection. */
export interface Far {
  readonly connected: () => void
  /** Sends the server's bytes, as the host grants credit. */
  readonly send: (bytes: Uint8Array) => Effect.Effect<void>
  /** The server has ended its side. */
  readonly end: () => void
  /** Both sides have ended. */
  readonly over: () => void
  /** The guest broke the connection. */
  readonly broken: () => void
  /** Grants the host this many bytes of credit. */
  readonly consumed: (bytes: number) => void
}

/** The guest's end of a connection, as the host drives it. */
export interface Near {
  /** Takes bytes from the host, or `null` at their end. */
  readonly feed: (bytes: Uint8Array | null) => void
  /** Breaks the connection, because the host did. */
  readonly destroy: () => void
}

/** Connects to the server on a port; `undefined` when there is none. */
export const connect = (ports: FakePorts, port: number, far: Far, run: Run): Near | undefined => {
  const listener = ports.at(port)
  if (listener === undefined) return undefined
  const waiting: Array<Uint8Array | null> = []
  let wanted = false
  let [said, heard, settled] = [false, false, false]
  /** Like a guest's kernel, does not wait for the server to read everything. */
  const settle = (end: () => void): void => {
    if (!settled) end()
    settled = true
  }
  const feed = (): void => {
    while (wanted && waiting.length > 0) {
      const bytes = waiting.shift() ?? null
      wanted = socket.push(bytes) && bytes !== null
      if (bytes !== null) far.consumed(bytes.length)
    }
  }
  const socket = new Duplex({
    allowHalfOpen: true,
    read() {
      wanted = true
      feed()
    },
    write: (chunk: Buffer, _encoding, done) => run(far.send(chunk)).addObserver(() => done()),
    final: (done) => {
      said = true
      far.end()
      if (heard) settle(far.over)
      done()
    }
  })
  socket.on("error", () => {})
  socket.on("close", () => {
    listener.connections.delete(socket)
    settle(said ? far.over : far.broken)
  })
  listener.connections.add(socket)
  far.connected()
  listener.server.accept(socket, run)
  return {
    feed: (bytes) => {
      waiting.push(bytes)
      feed()
      heard ||= bytes === null
      if (heard && said) settle(far.over)
    },
    destroy: () => void socket.destroy()
  }
}

/** Serves bytes; the connection is broken when the handler fails, and ended when it is done. */
export const tcp = (handler: TcpHandler): Server => ({
  accept: (connection, run) => {
    const fiber = run(
      Effect.suspend(() => {
        const handled = handler(connection)
        // A handler without an effect goes on by itself.
        return Effect.isEffect(handled) ? handled : Effect.never
      })
    )
    fiber.addObserver((exit) => void (exit._tag === "Success" ? connection.end() : connection.destroy()))
    connection.on("close", () => fiber.interruptUnsafe())
  }
})

const requestOf = (incoming: IncomingMessage): Request => {
  const headers = new Headers()
  for (const [name, values] of Object.entries(incoming.headersDistinct)) {
    for (const value of values ?? []) headers.append(name, value)
  }
  const method = incoming.method ?? "GET"
  const url = new URL(incoming.url ?? "/", `http://${incoming.headers.host ?? "localhost"}`)
  const body = method === "GET" || method === "HEAD" ? null : Readable.toWeb(incoming)
  return new Request(url, { method, headers, body, duplex: "half" })
}

const respond = async (response: Response, outgoing: ServerResponse): Promise<void> => {
  outgoing.writeHead(response.status, [...response.headers].flat())
  if (response.body === null) outgoing.end()
  else await pipeline(response.body, outgoing)
}

/** Serves HTTP. A handler that fails is the test's mistake: the answer is status 500, with the error as text. */
export const http = (handler: HttpHandler): Server => ({
  accept: (connection, run) => {
    const answer = async (incoming: IncomingMessage, outgoing: ServerResponse): Promise<Response> => {
      const handled = await handler(requestOf(incoming))
      if (!Effect.isEffect(handled)) return handled
      const fiber = run(handled)
      outgoing.on("close", () => fiber.interruptUnsafe())
      return await new Promise((resolve, reject) =>
        fiber.addObserver((exit) =>
          exit._tag === "Success" ? resolve(exit.value) : reject(new Error(Cause.pretty(exit.cause)))
        )
      )
    }
    const server = createServer((incoming, outgoing) => {
      answer(incoming, outgoing)
        .catch((error: unknown) => new Response(`the script died: ${String(error)}\n`, { status: 500 }))
        .then((response) => respond(response, outgoing))
        .catch(() => outgoing.destroy())
    })
    server.emit("connection", connection)
  }
})

/** The server that a test gave; a function answers HTTP. */
export const serverOf = (it: Server | HttpHandler): Server => (typeof it === "function" ? http(it) : it)
