/**
 * Buffers late output until it is taken: what background processes, timers and threads write after their execution has ended.
 * The bytes stay in order, each with the stream of its execution.
 *
 * Two limits bound the memory: the guest's credit limits the bytes, and `maxPieces` the number of pieces, which may be small.
 * Host and guest drop what exceeds a limit, and count it.
 */
import * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { Sub } from "./Frame.ts"
import { output } from "./Methods.ts"

/** Late bytes of an execution's stdout or stderr; `stream` is the number of the execution's stream on the channel. */
export interface Late {
  readonly _tag: "Stdout" | "Stderr"
  readonly stream: number
  readonly bytes: Uint8Array
}

/** The number of bytes that were dropped at this point because earlier output was not taken in time. */
export interface Dropped {
  readonly _tag: "Dropped"
  readonly bytes: number
}

export interface LateOutput {
  /** The guest's stream starts again; buffered output stays. */
  readonly begin: () => void
  readonly data: (sub: number, bytes: Uint8Array) => void
  /** A note of the guest; a malformed one is ignored. */
  readonly note: (value: unknown) => void
  /** Nothing more will come. */
  readonly close: () => void
  /** Waits for at least one piece and takes all; this grants credit. Fails with `Cause.Done` after the last one. */
  readonly takeAll: Effect.Effect<Arr.NonEmptyReadonlyArray<Late | Dropped>, Cause.Done>
}

/** Pieces that may wait; consecutive bytes of the same stream are one piece. */
const maxPieces = 1024

const decodeOrder = Schema.decodeUnknownOption(output.orders)

interface Waiting {
  readonly _tag: "Stdout" | "Stderr"
  readonly stream: number
  readonly parts: Array<Uint8Array>
  size: number
}

/** Calls `consumed` with the number of bytes that were taken or dropped, so that the guest is granted as many. */
export const make = (consumed: (bytes: number) => void): LateOutput => {
  const filled = Latch.makeUnsafe(false)
  let waiting: Array<Waiting | Dropped> = []
  let origin = 0
  let closed = false

  const drop = (bytes: number): void => {
    const last = waiting.at(-1)
    if (last?._tag === "Dropped") waiting[waiting.length - 1] = { _tag: "Dropped", bytes: last.bytes + bytes }
    else waiting.push({ _tag: "Dropped", bytes })
    filled.openUnsafe()
  }

  /** Joins small parts, so that a thousand frames of one byte do not cost a thousand objects. */
  const append = (piece: Waiting, bytes: Uint8Array): void => {
    const last = piece.parts.at(-1)
    if (last !== undefined && last.length + bytes.length <= 4096) {
      piece.parts[piece.parts.length - 1] = Buffer.concat([last, bytes])
    } else piece.parts.push(Buffer.from(bytes))
    piece.size += bytes.length
  }

  const data = (sub: number, bytes: Uint8Array): void => {
    if (closed || bytes.length === 0) return
    const tag = sub === Sub.stderr ? "Stderr" : "Stdout"
    let piece = waiting.at(-1)
    if (piece === undefined || piece._tag !== tag || piece.stream !== origin) {
      if (origin === 0 || waiting.length >= maxPieces) {
        consumed(bytes.length)
        return drop(bytes.length)
      }
      piece = { _tag: tag, stream: origin, parts: [], size: 0 }
      waiting.push(piece)
    }
    append(piece, bytes)
    filled.openUnsafe()
  }

  const take = (): ReadonlyArray<Late | Dropped> => {
    const taken = waiting
    waiting = []
    if (!closed) filled.closeUnsafe()
    let bytes = 0
    const pieces = taken.map((piece): Late | Dropped => {
      if (piece._tag === "Dropped") return piece
      bytes += piece.size
      return { _tag: piece._tag, stream: piece.stream, bytes: Buffer.concat(piece.parts, piece.size) }
    })
    consumed(bytes)
    return pieces
  }

  return {
    begin: () => {
      origin = 0
    },
    data,
    note: (value) => {
      const note = Option.getOrUndefined(decodeOrder(value))
      if (note?.dropped !== undefined) drop(note.dropped)
      if (note?.execution !== undefined) origin = note.execution
    },
    close: () => {
      closed = true
      filled.openUnsafe()
    },
    takeAll: Effect.gen(function* () {
      for (;;) {
        yield* filled.await
        // Another reader may have taken them.
        const pieces = take()
        if (Arr.isReadonlyArrayNonEmpty(pieces)) return pieces
        if (closed) return yield* Cause.done()
      }
    })
  }
}
