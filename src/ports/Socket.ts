/** A connection to a server in the guest, as a Node `Duplex`, with half-close and back-pressure in both directions. */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { Duplex } from "node:stream"
import { Sub } from "../guest/Frame.ts"
import * as Agent from "../guest/Agent.ts"
import { dial as dialMethod, DialRefused } from "../guest/Methods.ts"
import { PortError, type PortFailure } from "../Ports.ts"
import type { SandboxError } from "../SandboxError.ts"
import * as Pieces from "./Pieces.ts"
import type { Use } from "./Ledger.ts"
import type { Guest } from "../session/Guest.ts"

/** Runs effects for callbacks, until the session ends. */
export type Run = <A, E>(effect: Effect.Effect<A, E>) => Fiber.Fiber<A, E>

/** How long the guest may take to report the end of a connection that has ended in both directions. */
const endTimeout = "10 seconds"

const decodeCode = Schema.decodeUnknownOption(DialRefused)

const problems: Readonly<Record<DialRefused, string>> = {
  refused: "no program listens there",
  reset: "the server reset the connection",
  timeout: "the server does not answer",
  failed: "the connection failed"
}

/** A connection into the guest. */
type GuestStream = Agent.Stream<typeof dialMethod, SandboxError>

const broken = (port: number, refused: Agent.Refused): PortError => {
  const code = Option.getOrElse(decodeCode(refused.code), () => "failed" as const)
  return new PortError({
    side: "guest",
    port,
    reason: code === "refused" ? { _tag: "NotListening", waitedMs: 0 } : { _tag: "Broken", problem: problems[code] }
  })
}

/** Connects. An error destroys the `Duplex` with a `PortFailure`; destroying the `Duplex` resets the connection. */
export const dial = (guest: Guest, port: number, use: Use, run: Run): Duplex => {
  const opened = Deferred.makeUnsafe<GuestStream>()
  const left = Deferred.makeUnsafe<void>()
  const waiting = Pieces.make()
  let stream: GuestStream | undefined
  let following: Fiber.Fiber<unknown, unknown> | undefined
  let connected = false
  /** Bytes sent before the guest has reported that the server accepted the connection. */
  let early = 0
  let wanted = false
  let ended = false
  use.connections++

  const feed = (): void => {
    while (wanted) {
      const bytes = waiting.take()
      if (bytes === undefined) break
      stream?.consumed(bytes.length)
      wanted = socket.push(bytes)
    }
    if (ended && waiting.empty()) socket.push(null)
  }

  const send = (bytes: Uint8Array, end: boolean, done: () => void): void => {
    const ready = stream === undefined ? Deferred.await(opened) : Effect.succeed(stream)
    // `write` drops the bytes when the stream has ended: the server is gone.
    run(Effect.flatMap(ready, (it) => it.write(Sub.stdin, bytes, end))).addObserver((exit) => {
      if (connected && Exit.isSuccess(exit) && exit.value) use.bytesIn += bytes.length
      else early += bytes.length
      done()
    })
  }

  const socket = new Duplex({
    allowHalfOpen: true,
    read() {
      wanted = true
      feed()
    },
    write: (chunk: Buffer, _encoding, done) => send(chunk, false, done),
    writev: (chunks, done) => send(Buffer.concat(chunks.map(({ chunk }: { chunk: Buffer }) => chunk)), false, done),
    final: (done) => send(new Uint8Array(), true, done),
    destroy(error, done) {
      Deferred.doneUnsafe(left, Effect.void)
      // After an orderly end in both directions, the connection in the guest may end in order too.
      if (error !== null || !this.readableEnded || !this.writableFinished) following?.interruptUnsafe()
      done(error)
    }
  })

  const follow = Effect.gen(function* () {
    const it = yield* guest.open(dialMethod, { port })
    stream = it
    Deferred.doneUnsafe(opened, Effect.succeed(it))
    for (;;) {
      const { end, incoming } = yield* Agent.next(it, "later")
      for (const piece of incoming) {
        if (piece._tag === "Data") {
          use.bytesOut += piece.bytes.length
          waiting.push(piece.bytes)
          ended ||= piece.end
        } else if (!connected) {
          connected = true
          use.bytesIn += early
        }
      }
      if (end !== undefined) {
        yield* Effect.catchTags(end, {
          ChannelViolation: (error) => guest.violated(error.problem),
          Refused: (refused) => {
            if (refused.code === "refused") use.refused++
            return Effect.fail(broken(port, refused))
          }
        })
        ended = true
        // The server is gone. A client that still writes once it has read everything would never notice: destroy its side.
        const cutOff = (): void => {
          if (!socket.writableEnded) socket.destroy()
        }
        if (socket.readableEnded) cutOff()
        else socket.once("end", cutOff)
      }
      feed()
      if (end !== undefined) return
    }
  }).pipe(Effect.scoped)

  const whenLeft = Effect.andThen(Deferred.await(left), Effect.sleep(endTimeout))
  following = run(
    Effect.raceFirst(follow, whenLeft).pipe(
      Effect.catch((error: PortFailure) => Effect.sync(() => void socket.destroy(error))),
      Effect.onInterrupt(() => Effect.sync(() => void socket.destroy()))
    )
  )
  return socket
}
