/** An egress with servers of this host behind it, and guests that connect through it. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as net from "node:net"
import * as tls from "node:tls"
import { Dialler } from "../../src/egress/Dial.ts"
import * as Egress from "../../src/egress/Egress.ts"
import { Resolver, Unresolved } from "../../src/egress/Resolver.ts"
import type { Receiver } from "../../src/egress/Splice.ts"
import * as NetworkPolicy from "../../src/NetworkPolicy.ts"

/** A guest's connection, made by the test. */
interface Guest {
  readonly receiver: Receiver
  readonly notes: ReadonlyArray<object>
  /** The bytes received from the server. */
  readonly text: () => string
  /** Waits until the condition is true. */
  readonly until: (holds: () => boolean) => Effect.Effect<void>
  readonly ending: () => string | undefined
  /** How many bytes the guest reads; without it, it reads as fast as it can. */
  room: number | undefined
  granted: number
}

export const connect = (egress: Egress.Egress, host: string, port: number): Guest => {
  const parts: Array<Buffer> = []
  const notes: Array<object> = []
  const waiting = new Set<() => void>()
  let ending: string | undefined
  const changed = (): void => {
    for (const look of waiting) look()
  }
  const did = <A>(value: A): A => {
    setImmediate(changed)
    return value
  }
  const guest: Guest = {
    notes,
    room: undefined,
    granted: 0,
    text: () => Buffer.concat(parts).toString("latin1"),
    ending: () => ending,
    until: (holds) =>
      Effect.callback((resume) => {
        const look = (): void => {
          if (!holds()) return
          waiting.delete(look)
          resume(Effect.void)
        }
        waiting.add(look)
        look()
      }),
    receiver: egress.accept({
      request: { host, port },
      note: (event) => void did(notes.push(event)),
      send: (bytes) => {
        const size = Math.min(bytes.length, guest.room ?? bytes.length)
        if (guest.room !== undefined) guest.room -= size
        parts.push(Buffer.from(bytes.subarray(0, size)))
        return did(size)
      },
      end: () => did((ending = "end")),
      consumed: (bytes) => did((guest.granted += bytes)),
      close: () => did((ending = "close")),
      reset: (code, message) => did((ending = `${code}: ${message}`))
    })
  }
  return guest
}

/** A server that echoes in upper case: its address and what it received. */
export const shouting = Effect.acquireRelease(
  Effect.callback<{ readonly port: number; readonly server: net.Server; readonly seen: Array<string> }>((resume) => {
    const seen: Array<string> = []
    const server = net.createServer({ allowHalfOpen: true }, (socket) => {
      socket.on("data", (bytes) => {
        seen.push(bytes.toString("latin1"))
        socket.write(bytes.toString("latin1").toUpperCase())
      })
      socket.on("end", () => socket.end("BYE"))
      socket.on("error", () => {})
    })
    server.listen(0, "127.0.0.1", () => {
      const address = server.address()
      if (typeof address === "object" && address !== null) resume(Effect.succeed({ port: address.port, server, seen }))
    })
  }),
  ({ server }) => Effect.sync(() => server.close())
)

/** An egress that connects to one server only; `names` has the address of each name. */
export const world = (
  policy: NetworkPolicy.NetworkPolicy,
  port: number,
  names: { readonly [name: string]: ReadonlyArray<string> | (() => ReadonlyArray<string>) }
): Effect.Effect<
  Egress.Egress & { readonly dialled: Array<string>; readonly asked: Array<string> },
  never,
  Scope.Scope
> =>
  Effect.gen(function* () {
    const dialled: Array<string> = []
    const asked: Array<string> = []
    const dial = yield* Dialler
    const egress = yield* Egress.make(policy).pipe(
      Effect.provideService(Dialler, (address, to) => {
        dialled.push(`${address}:${to}`)
        return dial("127.0.0.1", port)
      }),
      Effect.provideService(Resolver, (name) => {
        asked.push(name)
        const found = names[name]
        return found === undefined
          ? Effect.fail(new Unresolved({ code: "ENOTFOUND" }))
          : Effect.succeed(typeof found === "function" ? found() : found)
      })
    )
    return { ...egress, dialled, asked }
  })

export const attempts = (egress: Egress.Egress) =>
  egress.ledger.latest().map(({ name, port, decision, rule }) => `${decision} ${name}:${port} ${rule}`)

export const refusedWith = (guest: Guest): unknown =>
  guest.notes.map((note) => ("errno" in note ? note.errno : note))[0]

export const clientHello = (servername: string | undefined): Effect.Effect<Buffer> =>
  Effect.callback((resume) => {
    const server = net.createServer((socket) =>
      socket.once("data", (bytes) => {
        socket.destroy()
        server.close()
        resume(Effect.succeed(bytes))
      })
    )
    server.listen(0, "127.0.0.1", () => {
      const address = server.address()
      if (address === null || typeof address === "string") return
      tls.connect({ port: address.port, ...(servername !== undefined && { servername }) }).on("error", () => {})
    })
  })

/** Reads a paused socket to its end and gives the number of bytes. */
export const received = (socket: net.Socket | undefined) =>
  Effect.callback<number>((resume) => {
    let total = 0
    socket?.on("data", (bytes: Buffer) => {
      total += bytes.length
    })
    socket?.on("error", () => {}).on("close", () => resume(Effect.succeed(total)))
    socket?.resume()
  })
