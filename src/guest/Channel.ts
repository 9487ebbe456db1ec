/**
 * The channel: many streams over the one connection to a guest's agent. Each stream has its own credit, so a slow stream never
 * stalls another, and the host's memory stays bounded whatever the guest sends.
 *
 * The implementation is plain callbacks on a socket. It is one long file because the callbacks share the state of every stream
 * and are the hottest code of the library; effects begin at the interface. If the guest breaks the protocol or the connection
 * ends, every pending call fails with one of two errors, and the VM's owner then destroys the VM.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Semaphore from "effect/Semaphore"
import type * as Scope from "effect/Scope"
import * as Cause from "effect/Cause"
import type { Duplex } from "node:stream"
import * as Connections from "./Connections.ts"
import { encode, encodeJson, endFlag, epochSize, type Frame, initialCredit, Kind, magic, makeDecoder } from "./Frame.ts"
import * as LateOutput from "./LateOutput.ts"
import * as Observer from "./Observer.ts"
import * as StreamSlots from "./StreamSlots.ts"
import { GuestHello, type Hello } from "./Hello.ts"
import { connect, output as lateMethod, Reset } from "./Methods.ts"

/** The connection ended, or the guest stopped answering. */
export class ChannelLost extends Schema.TaggedError<ChannelLost>()("ChannelLost", { problem: Schema.String }) {
  override get message(): string {
    return this.problem
  }
}

/** The guest broke the protocol. */
export class ChannelViolation extends Schema.TaggedError<ChannelViolation>()("ChannelViolation", {
  problem: Schema.String
}) {
  override get message(): string {
    return this.problem
  }
}

export type ChannelFailure = ChannelLost | ChannelViolation

/** An event of a stream. `End` or `Reset` is the last one. */
export type Event =
  | { readonly _tag: "Data"; readonly sub: number; readonly bytes: Uint8Array; readonly end: boolean }
  | { readonly _tag: "Note"; readonly value: unknown }
  | { readonly _tag: "End"; readonly value: unknown }
  | ({ readonly _tag: "Reset" } & Reset)

/** Bytes to send on a sub-channel after OPEN; the sub-channel ends after them unless `end` is false. */
export interface Input {
  readonly sub: number
  readonly bytes: Uint8Array
  readonly end?: boolean
}

export interface ChannelStream {
  /** The stream's number; late output refers to its execution by this number. */
  readonly id: number
  /** Waits for at least one event and takes all, in order; grants the guest credit for their bytes. */
  readonly takeAll: Effect.Effect<ReadonlyArray<Event>, ChannelFailure | Cause.Done>
  /** The same without granting credit: for a reader that passes the bytes on and calls `consumed` when they have left. */
  readonly take: Effect.Effect<ReadonlyArray<Event>, ChannelFailure | Cause.Done>
  /** Grants the guest credit for bytes that were taken. */
  readonly consumed: (bytes: number) => void
  /**
   * Sends bytes as the guest's credit allows, and with `end` ends the sub-channel after them. Returns false if the stream ended
   * before everything was sent. Writers of one stream take turns.
   */
  readonly write: (sub: number, bytes: Uint8Array, end: boolean) => Effect.Effect<boolean>
  /** Sends a NOTE; does nothing if the stream has ended. */
  readonly note: (event: object) => Effect.Effect<void>
}

export interface Channel {
  /** Waits for the greeting that a guest sends when it has booted. */
  readonly greeting: Effect.Effect<GuestHello, ChannelFailure>
  /** Sends HELLO in a new epoch, which ends all streams of the older one, and waits for the guest's HELLO. */
  readonly handshake: (hello: Hello) => Effect.Effect<GuestHello, ChannelFailure>
  /** Opens a stream. Closing the scope before the stream's end resets it, which cancels the request. */
  readonly open: (
    message: object,
    inputs: ReadonlyArray<Input>
  ) => Effect.Effect<ChannelStream, ChannelFailure, Scope.Scope>
  /** Waits for output of executions that have ended, and takes all of it. Fails with `Cause.Done` when the channel is gone. */
  readonly lateOutput: LateOutput.LateOutput["takeAll"]
  /** Observes, until the scope closes, whether the guest has read everything sent to it. One observer at a time. */
  readonly observe: Observer.Observing<ChannelFailure>["observe"]
  /** Sets the function that accepts the connections that the guest asks for; without one they are refused. */
  readonly accept: Connections.Connections["accept"]
  /** How many of these connections are open. */
  readonly connected: () => number
  /** The number that the next stream will have. */
  readonly nextStream: () => number
  /** Pings the guest. Completes if no frame comes from it within 1.5 s; otherwise never completes. */
  readonly silence: Effect.Effect<void>
  /** Fails when the channel fails; never succeeds. */
  readonly failure: Effect.Effect<never, ChannelFailure>
}

/** Bytes consumed by the reader before credit for them is granted. */
const creditBatch = 64 * 1024
/** Bytes of one DATA frame that we send. */
const sendChunk = 64 * 1024
/** NOTE frames that may wait for the reader of one stream; they cost no credit. */
const maxWaitingNotes = 256
/** Bytes that may wait for a guest that does not read; more is a violation. */
const maxUnsent = 8 * 1024 * 1024
/** Streams that may be open at one time; the guest allows 1,024. Further ones wait until another one ends. */
const maxStreams = 1000
/** How often a guest with open streams is pinged, and after how many unanswered pings it counts as lost. */
const pingEvery = "10 seconds"
const silentTicks = 4
/** How soon a pinged guest must send a frame; its agent has priority over everything else in it. */
const signWithin = "1500 millis"

interface StreamState {
  readonly id: number
  readonly queue: Queue.Queue<Event, ChannelFailure | Cause.Done>
  receiveCredit: number
  consumed: number
  sendCredit: number
  waitingNotes: number
  wake: (() => void) | undefined
  /** Taken by the sender, because only one may wait for credit. */
  readonly sending: Semaphore.Semaphore
}

const parse = (payload: Buffer): unknown => {
  try {
    return JSON.parse(payload.toString("utf8")) as unknown
  } catch {
    return undefined
  }
}

const decodeHello = Schema.decodeUnknownOption(GuestHello)
const decodeReset = Schema.decodeUnknownOption(Reset)

const credit = (stream: number, bytes: number): Buffer => {
  const grant = Buffer.alloc(4)
  grant.writeUInt32LE(bytes, 0)
  return encode(Kind.Credit, stream, 0, grant)
}

/**
 * Makes a channel over a connection. The scope's end closes the connection. `firstStream` continues the numbers of an earlier
 * channel to the same guest.
 */
export const make = Effect.fnUntraced(function* (
  socket: Duplex,
  firstStream = 1
): Effect.fn.Return<Channel, never, Scope.Scope> {
  const failed = yield* Deferred.make<never, ChannelFailure>()
  const greeted = yield* Deferred.make<GuestHello, ChannelFailure>()
  let pendingHello:
    | { readonly epoch: Buffer; readonly reply: Deferred.Deferred<GuestHello, ChannelFailure> }
    | undefined
  let epoch: Buffer | undefined
  let peerEpoch: Buffer | undefined
  let nextId = firstStream
  let failure: ChannelFailure | undefined
  let heard = true
  let frames = 0
  const streams = new Map<number, StreamState>()
  const slots = StreamSlots.make<ChannelFailure>(maxStreams)
  let output: { readonly id: number; credit: number; consumed: number } | undefined
  const late = LateOutput.make((bytes) => {
    if (output === undefined) return
    output.consumed += bytes
    if (output.consumed < creditBatch) return
    output.credit += output.consumed
    write(credit(output.id, output.consumed))
    output.consumed = 0
  })

  const fail = (error: ChannelFailure): void => {
    if (failure !== undefined) return
    failure = error
    Deferred.doneUnsafe(failed, Effect.fail(error))
    Deferred.doneUnsafe(greeted, Effect.fail(error))
    if (pendingHello !== undefined) Deferred.doneUnsafe(pendingHello.reply, Effect.fail(error))
    slots.fail(error)
    const open = [...streams.values()]
    // Cleared first, because a sender that is woken checks whether its stream is still there.
    streams.clear()
    for (const stream of open) {
      Queue.failCauseUnsafe(stream.queue, Cause.fail(error))
      stream.wake?.()
    }
    late.close()
    connections.clear()
    socket.destroy()
  }
  const violation = (problem: string): void => fail(new ChannelViolation({ problem }))
  const lost = (problem: string): void => fail(new ChannelLost({ problem }))

  const observing = Observer.make<ChannelFailure>({
    ping: (mark) => void socket.write(encode(Kind.Ping, 0, 0, mark)),
    isOver: () => failure !== undefined,
    failure: Deferred.await(failed),
    cork: () => socket.cork(),
    uncork: () => socket.uncork()
  })

  const write = (bytes: Uint8Array): boolean => {
    if (failure !== undefined) return true
    const flowing = socket.write(bytes)
    observing.sent()
    if (socket.writableLength > maxUnsent) violation("the guest does not read what is sent to it")
    return flowing
  }

  const ping = (): boolean => write(encode(Kind.Ping, 0, 0, Buffer.alloc(8)))

  const connections = Connections.make(socket, write, violation)

  const onHello = (frame: Frame): void => {
    const hello = decodeHello(parse(frame.payload))
    if (hello._tag === "None") return violation("a malformed HELLO")
    if (pendingHello !== undefined && peerEpoch?.equals(pendingHello.epoch)) {
      epoch = pendingHello.epoch
      const { reply } = pendingHello
      pendingHello = undefined
      Deferred.doneUnsafe(reply, Effect.succeed(hello.value))
    } else if (epoch === undefined) {
      Deferred.doneUnsafe(greeted, Effect.succeed(hello.value))
    }
  }

  /** Handles a frame of a stream that the guest opens: a connection, or its late output. */
  const onGuestStream = (frame: Frame): void => {
    if (frame.kind === Kind.Open) {
      const message = parse(frame.payload)
      const method = typeof message === "object" && message !== null && "method" in message ? message.method : undefined
      if (method === connect.name) {
        connections.frame(frame, message)
        return
      }
      if (method !== lateMethod.name || output !== undefined) {
        write(encodeJson(Kind.Reset, frame.stream, { code: "unsupported", message: "no such method" }))
        return
      }
      output = { id: frame.stream, credit: initialCredit, consumed: 0 }
      late.begin()
    } else if (output === undefined || frame.stream !== output.id) {
      connections.frame(frame, undefined)
    } else if (frame.kind === Kind.Data) {
      output.credit -= frame.payload.length
      if (output.credit < 0) return violation("more data than it had credit for")
      late.data(frame.flags & 0x0f, frame.payload)
    } else if (frame.kind === Kind.Note) {
      late.note(parse(frame.payload))
    } else if (frame.kind === Kind.End || frame.kind === Kind.Reset) {
      output = undefined
    }
  }

  const finish = (stream: StreamState, event: Event): void => {
    streams.delete(stream.id)
    slots.free()
    Queue.offerUnsafe(stream.queue, event)
    Queue.endUnsafe(stream.queue)
    stream.wake?.()
  }

  const onFrame = (frame: Frame): void => {
    heard = true
    frames++
    if (failure !== undefined) return
    if (frame.stream === 0) {
      if (frame.kind === Kind.Hello) onHello(frame)
      else if (frame.kind === Kind.Pong) observing.pong(frame.payload)
      return
    }
    if (epoch === undefined || !peerEpoch?.equals(epoch)) return
    if (frame.stream % 2 === 0) return onGuestStream(frame)
    const stream = streams.get(frame.stream)
    if (stream === undefined) return
    switch (frame.kind) {
      case Kind.Data: {
        const end = (frame.flags & endFlag) !== 0
        if (frame.payload.length === 0 && !end) return violation("an empty DATA frame")
        stream.receiveCredit -= frame.payload.length
        if (stream.receiveCredit < 0) return violation("more data than it had credit for")
        Queue.offerUnsafe(stream.queue, { _tag: "Data", sub: frame.flags & 0x0f, bytes: frame.payload, end })
        return
      }
      case Kind.Credit: {
        if (frame.payload.length !== 4) return violation("a malformed CREDIT")
        stream.sendCredit += frame.payload.readUInt32LE(0)
        if (stream.sendCredit > 0x7fffffff) return violation("more credit than the maximum")
        stream.wake?.()
        return
      }
      case Kind.Note: {
        if (++stream.waitingNotes > maxWaitingNotes) return violation("too many notes")
        Queue.offerUnsafe(stream.queue, { _tag: "Note", value: parse(frame.payload) })
        return
      }
      case Kind.End:
        return finish(stream, { _tag: "End", value: parse(frame.payload) })
      case Kind.Reset: {
        const reset = decodeReset(parse(frame.payload))
        if (reset._tag === "None") return violation("a malformed RESET")
        return finish(stream, { _tag: "Reset", ...reset.value })
      }
      default:
        return violation(`an unexpected frame of kind ${frame.kind}`)
    }
  }

  const decode = makeDecoder({
    onEpoch: (bytes) => {
      peerEpoch = bytes
    },
    onFrame,
    onViolation: violation
  })
  // Every stream that waits for the socket adds a listener, so there is no limit.
  socket.setMaxListeners(0)
  socket.on("data", decode)
  socket.on("error", (error) => lost(`the connection broke: ${error.message}`))
  socket.on("end", () => lost("the connection closed"))
  socket.on("close", () => lost("the connection closed"))

  yield* Effect.addFinalizer(() => Effect.sync(() => lost("the VM was closed")))

  let silent = 0
  yield* Effect.sync(() => {
    if (streams.size === 0 || heard) {
      silent = 0
      heard = false
      if (streams.size > 0) ping()
      else heard = true
    } else if (++silent >= silentTicks) {
      lost("the guest stopped answering")
    } else {
      ping()
    }
  }).pipe(Effect.repeat(Schedule.spaced(pingEvery)), Effect.forkScoped)

  const handshake = Effect.fnUntraced(function* (hello: Hello) {
    if (failure !== undefined) return yield* failure
    const reply = yield* Deferred.make<GuestHello, ChannelFailure>()
    // From here on the older epoch's streams are dead on both sides.
    for (const stream of streams.values())
      finish(stream, { _tag: "Reset", code: "epoch", message: "a new epoch began" })
    output = undefined
    connections.clear()
    const fresh = Buffer.alloc(epochSize)
    globalThis.crypto.getRandomValues(fresh)
    pendingHello = { epoch: fresh, reply }
    write(Buffer.concat([magic, fresh, encodeJson(Kind.Hello, 0, hello)]))
    return yield* Deferred.await(reply)
  })

  /**
   * Sends `first` and as much of `rest` as credit and socket allow, in one write, because each write costs the guest an
   * interrupt. `rest` then holds what is not sent yet.
   */
  const pump = (
    stream: StreamState,
    rest: Array<Input>,
    first?: Buffer
  ): { readonly done: boolean; readonly flowing: boolean } => {
    const frames: Array<Buffer> = first === undefined ? [] : [first]
    if (socket.writableNeedDrain) {
      if (first !== undefined) write(first)
      return { done: rest.length === 0, flowing: false }
    }
    for (let input = rest[0]; input !== undefined; input = rest[0]) {
      const size = Math.min(input.bytes.length, stream.sendCredit, sendChunk)
      if (size === 0 && input.bytes.length > 0) break
      const last = size === input.bytes.length
      const flags = input.sub | (last && input.end !== false ? endFlag : 0)
      frames.push(encode(Kind.Data, stream.id, flags, input.bytes.subarray(0, size)))
      stream.sendCredit -= size
      if (last) rest.shift()
      else rest[0] = { ...input, bytes: input.bytes.subarray(size) }
      if (frames.length >= 16) break
    }
    const flowing = frames.length === 0 || write(frames.length === 1 ? (frames[0] as Buffer) : Buffer.concat(frames))
    return { done: rest.length === 0, flowing }
  }

  /** Waits until the socket has drained or closed. */
  const drained: Effect.Effect<void> = Effect.callback((resume) => {
    const go = (): void => {
      socket.off("drain", go)
      socket.off("close", go)
      resume(Effect.void)
    }
    if (failure !== undefined || !socket.writableNeedDrain) return go()
    socket.once("drain", go)
    socket.once("close", go)
    return Effect.sync(() => {
      socket.off("drain", go)
      socket.off("close", go)
    })
  })

  /** Waits for more credit, or for the socket to drain, or for the stream's end. */
  const waitFor = (stream: StreamState, drain: boolean): Effect.Effect<void> =>
    Effect.callback((resume) => {
      const wake = (): void => {
        stream.wake = undefined
        socket.off("drain", wake)
        resume(Effect.void)
      }
      if (!streams.has(stream.id)) return wake()
      if (drain) {
        if (!socket.writableNeedDrain) return wake()
        socket.once("drain", wake)
      } else if (stream.sendCredit > 0) return wake()
      stream.wake = wake
      return Effect.sync(() => {
        stream.wake = undefined
        socket.off("drain", wake)
      })
    })

  /** Sends everything; returns false if the stream ended before. */
  const flush = Effect.fnUntraced(function* (stream: StreamState, rest: Array<Input>, first = pump(stream, rest)) {
    let state = first
    while (!state.done && streams.has(stream.id)) {
      yield* waitFor(stream, !state.flowing)
      if (streams.has(stream.id)) state = pump(stream, rest)
    }
    return state.done
  })

  const open = Effect.fnUntraced(function* (message: object, inputs: ReadonlyArray<Input>) {
    const queue = yield* Queue.make<Event, ChannelFailure | Cause.Done>()
    const rest = [...inputs]
    const { first, stream } = yield* slots.take(
      Effect.acquireRelease(
        Effect.sync(() => {
          const stream: StreamState = {
            id: nextId,
            queue,
            receiveCredit: initialCredit,
            consumed: 0,
            sendCredit: initialCredit,
            waitingNotes: 0,
            wake: undefined,
            sending: Semaphore.makeUnsafe(1)
          }
          nextId += 2
          streams.set(stream.id, stream)
          return { stream, first: pump(stream, rest, encodeJson(Kind.Open, stream.id, message)) }
        }),
        ({ stream }) =>
          Effect.sync(() => {
            if (!streams.delete(stream.id)) return
            stream.wake?.()
            write(encodeJson(Kind.Reset, stream.id, { code: "cancelled", message: "the caller left" }))
            slots.free()
          })
      )
    )
    if (!first.done) {
      yield* Effect.forkScoped(stream.sending.withPermit(flush(stream, rest, first)), { startImmediately: true })
    }
    const consumed = (bytes: number): void => {
      stream.consumed += bytes
      if (stream.consumed < creditBatch || !streams.has(stream.id)) return
      stream.receiveCredit += stream.consumed
      write(credit(stream.id, stream.consumed))
      stream.consumed = 0
    }
    const take = Effect.map(Queue.takeAll(queue), (events) => {
      for (const event of events) if (event._tag === "Note") stream.waitingNotes--
      return events
    })
    return {
      id: stream.id,
      take,
      consumed,
      takeAll: Effect.map(take, (events) => {
        let bytes = 0
        for (const event of events) if (event._tag === "Data") bytes += event.bytes.length
        consumed(bytes)
        return events
      }),
      write: (sub: number, bytes: Uint8Array, end: boolean) =>
        stream.sending.withPermit(
          Effect.suspend(() => (streams.has(stream.id) ? flush(stream, [{ sub, bytes, end }]) : Effect.succeed(false)))
        ),
      note: (event: object) =>
        Effect.suspend(() => (socket.writableNeedDrain ? drained : Effect.void)).pipe(
          Effect.andThen(
            Effect.sync(() => {
              if (streams.has(stream.id)) write(encodeJson(Kind.Note, stream.id, event))
            })
          )
        )
    }
  })

  const silence = Effect.suspend(() => {
    const before = frames
    ping()
    return Effect.flatMap(Effect.sleep(signWithin), () => (frames === before ? Effect.void : Effect.never))
  })

  return {
    observe: observing.observe,
    silence,
    greeting: Deferred.await(greeted),
    handshake,
    open,
    lateOutput: late.takeAll,
    accept: connections.accept,
    connected: connections.open,
    nextStream: () => nextId,
    failure: Deferred.await(failed)
  }
})
