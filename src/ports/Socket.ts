/**
 * A connection to a server in the guest, as Node's `Duplex`: half-close both ways, and no faster than the slower side.
 */
import * as Cause from "effect/Cause"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { Duplex } from "node:stream"
import { Sub } from "../guest/Frame.ts"
import { BrokenCode, type DialOpen } from "../guest/PortProtocol.ts"
import type { Reset } from "../guest/Protocol.ts"
import { PortError, type PortFailure } from "../Ports.ts"
import type { VmStream } from "../Vm.ts"
import * as Pieces from "./Pieces.ts"
import type { Use } from "./Ledger.ts"
import type { Guest } from "../files/Client.ts"

/** Runs effects for callbacks, until the session ends. */
export type Run = <A, E>(effect: Effect.Effect<A, E>) => Fiber.Fiber<A, E>

/** How long the guest may take to say that a connection is over whose both sides have ended. */
const overWithin = "10 seconds"

const decodeCode = Schema.decodeUnknownOption(BrokenCode)

const problems: Readonly<Record<BrokenCode, string>> = {
  refused: "nobody listens there",
  reset: "the server broke the connection off",
  timeout: "the server does not answer",
  failed: "the connection failed"
}

const broken = (port: number, reset: Reset | undefined): PortError => {
  const code = Option.getOrElse(decodeCode(reset?.code), () => "failed" as const)
  return new PortError({
    side: "guest",
    port,
    reason: code === "refused" ? { _tag: "NotListening", waitedMs: 0 } : { _tag: "Broken", problem: problems[code] }
  })
}

/** Connects. What goes wrong destroys the `Duplex` with a `PortFailure`; destroying it breaks the connection off. */
export const dial = (guest: Guest, port: number, use: Use, run: Run): Duplex => {
  const opened = Deferred.makeUnsafe<VmStream>()
  const left = Deferred.makeUnsafe<void>()
  const waiting = Pieces.make()
  let stream: VmStream | undefined
  let life: Fiber.Fiber<unknown, unknown> | undefined
  let connected = false
  /** Bytes that are under way to a server that may not be there. */
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
    // A stream that is over takes nothing more, and then nobody misses it.
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
      // What has ended in order may end in order in the guest, too.
      if (error !== null || !this.readableEnded || !this.writableFinished) life?.interruptUnsafe()
      done(error)
    }
  })

  const follow = Effect.gen(function* () {
    stream = yield* guest.open({ method: "dial", port } satisfies DialOpen)
    Deferred.doneUnsafe(opened, Effect.succeed(stream))
    for (;;) {
      const events = yield* Effect.catchIf(stream.take, Cause.isDone, () => Effect.void).pipe(
        Effect.catchTag("VmLost", guest.lost)
      )
      if (events === undefined) return yield* broken(port, undefined)
      for (const event of events) {
        if (event._tag === "Reset") {
          if (event.code === "refused") use.refused++
          return yield* broken(port, event)
        }
        if (event._tag === "Data" && event.sub === Sub.stdout) {
          use.bytesOut += event.bytes.length
          waiting.push(event.bytes)
          ended ||= event.end
        }
        if (event._tag === "Note" && !connected) {
          connected = true
          use.bytesIn += early
        }
        if (event._tag === "End") {
          ended = true
          // The server is gone. Who has not heard of it by the end of what it said would write to nobody for ever.
          const cutOff = (): void => {
            if (!socket.writableEnded) socket.destroy()
          }
          if (socket.readableEnded) cutOff()
          else socket.once("end", cutOff)
        }
      }
      feed()
      if (events.at(-1)?._tag === "End") return
    }
  }).pipe(Effect.scoped)

  const whenLeft = Effect.andThen(Deferred.await(left), Effect.sleep(overWithin))
  life = run(
    Effect.raceFirst(follow, whenLeft).pipe(
      Effect.catch((error: PortFailure) => Effect.sync(() => void socket.destroy(error))),
      Effect.onInterrupt(() => Effect.sync(() => void socket.destroy()))
    )
  )
  return socket
}
