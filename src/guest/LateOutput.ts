/**
 * What the guest writes after the execution it belongs to has ended, until somebody takes it: bytes of background processes,
 * timers and threads, in order, each with the stream of its execution.
 *
 * Memory is bounded twice: the guest sends no more bytes than it was granted, and of pieces that are smaller than they are
 * many, only so many wait. What finds no room is counted and let go, on either side.
 */
import * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { Sub } from "./Frame.ts"
import { output } from "./Methods.ts"

/** Bytes that one execution's standard stream got late; `stream` is the channel's number for the execution. */
export interface Late {
  readonly _tag: "Stdout" | "Stderr"
  readonly stream: number
  readonly bytes: Uint8Array
}

/** So many bytes, at this point, were let go because nobody took what came before. */
export interface Dropped {
  readonly _tag: "Dropped"
  readonly bytes: number
}

export interface LateOutput {
  /** The guest's stream begins anew; what waits stays. */
  readonly begin: () => void
  readonly data: (sub: number, bytes: Uint8Array) => void
  /** A note of the guest's; what is not understood is passed over. */
  readonly note: (value: unknown) => void
  /** Nothing more will come. */
  readonly close: () => void
  /** Waits for at least one piece and takes all there are; taking grants credit. `Cause.Done` after the last. */
  readonly takeAll: Effect.Effect<Arr.NonEmptyReadonlyArray<Late | Dropped>, Cause.Done>
}

/** Pieces that may wait; one after the other of the same stream becomes one. */
const maxPieces = 1024

const decodeOrder = Schema.decodeUnknownOption(output.orders)

interface Waiting {
  readonly _tag: "Stdout" | "Stderr"
  readonly stream: number
  readonly parts: Array<Uint8Array>
  size: number
}

/** `consumed` is told how many bytes have left, so that the guest may be granted as many. */
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

  /** Small parts are joined as they come: a thousand frames of a byte must not cost a thousand objects. */
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
        // Another reader may have been faster.
        const pieces = take()
        if (Arr.isReadonlyArrayNonEmpty(pieces)) return pieces
        if (closed) return yield* Cause.done()
      }
    })
  }
}
