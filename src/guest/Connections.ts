/**
 * The connections that a guest asks for: streams with even ids that it opens with `{ "method": "connect", … }`.
 *
 * Plain callbacks: the acceptor of a connection is given a `Connection` to send on, and returns a `Receiver`. Every byte needs
 * credit in both directions, so a guest or a target that never reads costs a bounded amount of memory.
 */
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type { Duplex } from "node:stream"
import { encode, encodeJson, endFlag, type Frame, initialCredit, Kind, Sub } from "./Frame.ts"
import { connect, type Note, type Request } from "./Methods.ts"

/** The callbacks of a connection's acceptor. */
export interface Receiver {
  /** Bytes from the guest. Call `consumed` when they have left, to grant credit for more. */
  readonly data: (bytes: Uint8Array) => void
  /** The guest sends no more. */
  readonly end: () => void
  /** More can be sent, after `send` took less than it was given. */
  readonly writable: () => void
  /** The connection has ended: the guest ended it, or the guest is gone. */
  readonly gone: () => void
}

/** The acceptor's side of a connection. After `close`, `reset` or the receiver's `gone` its functions do nothing. */
export interface Connection {
  /** What the guest asks for; untrusted. */
  readonly request: Request<typeof connect>
  readonly note: (event: Note<typeof connect>) => void
  /** Sends what credit and channel allow, and returns how many bytes that was. */
  readonly send: (bytes: Uint8Array) => number
  /** Ends this side: nothing more is sent. */
  readonly end: () => void
  /** Grants the guest credit for bytes that were received. */
  readonly consumed: (bytes: number) => void
  /** Ends the connection with END. */
  readonly close: () => void
  /** Aborts the connection with RESET. */
  readonly reset: (code: string, message: string) => void
}

export type Acceptor = (connection: Connection) => Receiver

export interface Connections {
  /** Sets the acceptor. */
  readonly accept: (acceptor: Acceptor) => void
  /** Handles a frame; returns false if it belongs to no connection. `request` is the payload of an OPEN. */
  readonly frame: (frame: Frame, request: unknown) => boolean
  /** How many connections are open. */
  readonly open: () => number
  /** Ends all connections: the guest is gone, or a new epoch began. */
  readonly clear: () => void
}

/** Bytes consumed by the receiver before credit for them is granted. */
const creditBatch = 64 * 1024
/** Bytes of one DATA frame that we send. */
const sendChunk = 64 * 1024
/** Connections that may be open at one time. */
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
  /** Connections with bytes to send that wait for the channel to drain. */
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
    if (id <= last) return violation("a stream number that is not higher than the one before")
    last = id
    const request = Option.getOrUndefined(decodeOpen(message))
    if (request === undefined) return refuse(id, "invalid", "a malformed request")
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
      // The acceptor may send at once, so it is called last, when the stream is registered.
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
          else if (state.ended || (frame.payload.length === 0 && !end))
            violation("DATA after the end, or an empty DATA frame")
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
          if (frame.payload.length !== 4) violation("a malformed CREDIT")
          else {
            state.sendCredit += frame.payload.readUInt32LE(0)
            if (state.sendCredit > 0x7fffffff) violation("more credit than the maximum")
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
