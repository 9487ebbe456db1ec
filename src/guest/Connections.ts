/**
 * The streams that a guest opens to reach something beyond it: `{ "method": "connect", … }` on even ids.
 *
 * Plain callbacks: whoever accepts a connection gives a receiver and gets a sender, and every byte is under credit both ways,
 * so that a guest which never reads, or a target which never does, costs a bounded amount of memory.
 */
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type { Duplex } from "node:stream"
import { encode, encodeJson, endFlag, type Frame, initialCredit, Kind, Sub } from "./Frame.ts"
import { connect, type Note, type Request } from "./Methods.ts"

/** What the acceptor of a connection is told. */
export interface Receiver {
  /** Bytes from the guest; `consumed` grants the guest as many again. */
  readonly data: (bytes: Uint8Array) => void
  /** The guest sends no more. */
  readonly end: () => void
  /** There is room again after `send` took less than it was given. */
  readonly writable: () => void
  /** The connection is over: the guest ended it, or is gone. */
  readonly gone: () => void
}

/** The acceptor's side of a connection. After `close` or `reset`, and after the receiver's `gone`, nothing does anything. */
export interface Connection {
  /** What the guest asks for, not believed in any way. */
  readonly request: Request<typeof connect>
  readonly note: (event: Note<typeof connect>) => void
  /** Sends what credit and channel allow, and says how many bytes that was. */
  readonly send: (bytes: Uint8Array) => number
  /** Sends no more. */
  readonly end: () => void
  readonly consumed: (bytes: number) => void
  /** Ends it in order. */
  readonly close: () => void
  /** Cuts it off. */
  readonly reset: (code: string, message: string) => void
}

export type Acceptor = (connection: Connection) => Receiver

export interface Connections {
  readonly accept: (acceptor: Acceptor) => void
  /** A frame on a stream that the guest has opened; false when it is on none of these. */
  readonly frame: (frame: Frame, request: unknown) => boolean
  /** How many there are. */
  readonly open: () => number
  /** The guest is gone, or a new epoch began. */
  readonly clear: () => void
}

/** Bytes of the receiver's that gather before credit for them is granted. */
const creditBatch = 64 * 1024
/** Bytes of one DATA frame that we send. */
const sendChunk = 64 * 1024
/** Streams at one time, whatever the acceptor thinks of them. */
const maxStreams = 1024

const decodeOpen = Schema.decodeUnknownOption(connect.request)

interface State {
  readonly receiver: Receiver
  receiveCredit: number
  consumed: number
  sendCredit: number
  ended: boolean
}

/** `write` sends bytes on the channel's `socket`; `violation` ends the channel. */
export const make = (
  socket: Duplex,
  write: (bytes: Uint8Array) => boolean,
  violation: (problem: string) => void
): Connections => {
  const streams = new Map<number, State>()
  /** Those that have something to send and wait for the channel to drain. */
  const waiting = new Set<State>()
  let acceptor: Acceptor | undefined
  let last = 0

  const refuse = (id: number, code: string, message: string): void => {
    write(encodeJson(Kind.Reset, id, { code, message }))
  }

  const drained = (): void => {
    const all = [...waiting]
    waiting.clear()
    for (const state of all) state.receiver.writable()
  }

  const finish = (id: number, state: State): void => {
    streams.delete(id)
    waiting.delete(state)
  }

  const open = (id: number, message: unknown): void => {
    if (id <= last) return violation("a stream that was opened before")
    last = id
    const request = Option.getOrUndefined(decodeOpen(message))
    if (request === undefined) return refuse(id, "invalid", "it is not understood")
    if (acceptor === undefined) return refuse(id, "unsupported", "there is no network")
    if (streams.size >= maxStreams) return refuse(id, "failed", "too many connections")
    const live = (): boolean => streams.get(id) === state
    const connection: Connection = {
      request,
      note: (event) => {
        if (live()) write(encodeJson(Kind.Note, id, event))
      },
      send: (bytes) => {
        let sent = 0
        while (sent < bytes.length && live()) {
          if (socket.writableNeedDrain) {
            if (waiting.size === 0) socket.once("drain", drained)
            waiting.add(state)
            break
          }
          const size = Math.min(bytes.length - sent, state.sendCredit, sendChunk)
          if (size === 0) break
          state.sendCredit -= size
          write(encode(Kind.Data, id, Sub.stdin, bytes.subarray(sent, sent + size)))
          sent += size
        }
        return sent
      },
      end: () => {
        if (live()) write(encode(Kind.Data, id, Sub.stdin | endFlag, new Uint8Array()))
      },
      consumed: (bytes) => {
        state.consumed += bytes
        if (state.consumed < creditBatch || !live()) return
        const grant = Buffer.alloc(4)
        grant.writeUInt32LE(state.consumed, 0)
        state.receiveCredit += state.consumed
        state.consumed = 0
        write(encode(Kind.Credit, id, 0, grant))
      },
      close: () => {
        if (!live()) return
        finish(id, state)
        write(encodeJson(Kind.End, id, {}))
      },
      reset: (code, message) => {
        if (!live()) return
        finish(id, state)
        refuse(id, code, message)
      }
    }
    const state: State = {
      // The acceptor may answer at once, when there is no stream yet: hence it is asked last.
      receiver: {
        data: (bytes) => receiver.data(bytes),
        end: () => receiver.end(),
        writable: () => receiver.writable(),
        gone: () => receiver.gone()
      },
      receiveCredit: initialCredit,
      consumed: 0,
      sendCredit: initialCredit,
      ended: false
    }
    streams.set(id, state)
    const receiver = acceptor(connection)
  }

  return {
    accept: (it) => {
      acceptor = it
    },
    frame: (frame, request) => {
      if (frame.kind === Kind.Open) {
        open(frame.stream, request)
        return true
      }
      const state = streams.get(frame.stream)
      if (state === undefined) return false
      switch (frame.kind) {
        case Kind.Data: {
          const end = (frame.flags & endFlag) !== 0
          state.receiveCredit -= frame.payload.length
          if (state.receiveCredit < 0) violation("more data than it had credit for")
          else if (state.ended || (frame.payload.length === 0 && !end)) violation("data after its end, or none")
          else {
            if (frame.payload.length > 0) state.receiver.data(frame.payload)
            if (end && streams.has(frame.stream)) {
              state.ended = true
              state.receiver.end()
            }
          }
          break
        }
        case Kind.Credit: {
          if (frame.payload.length !== 4) violation("a CREDIT that is not understood")
          else {
            state.sendCredit += frame.payload.readUInt32LE(0)
            if (state.sendCredit > 0x7fffffff) violation("more credit than there can be")
            else state.receiver.writable()
          }
          break
        }
        case Kind.End:
        case Kind.Reset:
          finish(frame.stream, state)
          state.receiver.gone()
          break
      }
      return true
    },
    open: () => streams.size,
    clear: () => {
      const all = [...streams.values()]
      streams.clear()
      waiting.clear()
      last = 0
      for (const state of all) state.receiver.gone()
    }
  }
}
