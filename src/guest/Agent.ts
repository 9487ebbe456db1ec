/**
 * The client of the agent: typed requests over the channel, and the only place that reads a stream until its END or RESET.
 * `E` is the caller's error for a lost connection. A stream that does not end with its method's END fails with `Refused` (a
 * RESET, or no END at all) or `ChannelViolation` (the guest broke the protocol).
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as EffectStream from "effect/Stream"
import {
  type Channel,
  type ChannelFailure,
  type ChannelStream,
  ChannelViolation,
  type Event,
  type Input
} from "./Channel.ts"
import type { End, Method, Note, Order, Request } from "./Methods.ts"

/** The agent refused or aborted a request by RESET. `code` is `null` if the stream ended with neither END nor RESET. */
export class Refused extends Schema.TaggedError<Refused>()("Refused", {
  code: Schema.NullOr(Schema.String),
  problem: Schema.String
}) {
  override get message(): string {
    return this.problem
  }
}

/** Why a stream has no END. */
export type NoEnd = Refused | ChannelViolation

/** A request in progress. */
export interface Stream<M extends Method, E> extends Pick<ChannelStream, "id" | "consumed" | "write"> {
  readonly method: M
  /** See `ChannelStream`. */
  readonly take: Effect.Effect<ReadonlyArray<Event>, E | Cause.Done>
  readonly takeAll: Effect.Effect<ReadonlyArray<Event>, E | Cause.Done>
  /** Sends an order to the callee; nothing happens when the stream has ended. */
  readonly order: (order: Order<M>) => Effect.Effect<void>
}

/** Opens a request. Closing the scope before the stream's end cancels the request. */
export interface Open<E> {
  <M extends Method>(
    method: M,
    request: Request<M>,
    inputs?: ReadonlyArray<Input>
  ): Effect.Effect<Stream<M, E>, E, Scope.Scope>
}

/** Bytes of a sub-channel, or a note. */
export type Incoming<M extends Method> =
  | { readonly _tag: "Data"; readonly sub: number; readonly bytes: Uint8Array; readonly end: boolean }
  | { readonly _tag: "Note"; readonly note: Note<M> }

/** The next items of a stream; `end` is its result if it has ended. */
export interface Batch<M extends Method> {
  readonly incoming: ReadonlyArray<Incoming<M>>
  readonly end: Effect.Effect<End<M>, NoEnd> | undefined
}

const violation = (problem: string): Effect.Effect<never, ChannelViolation> =>
  Effect.fail(new ChannelViolation({ problem }))

/** Decoders are made once per schema. */
const decoders = new WeakMap<object, (value: unknown) => Option.Option<unknown>>()
const decode = (schema: Method["end"], value: unknown): Option.Option<unknown> => {
  const known = decoders.get(schema)
  if (known !== undefined) return known(value)
  const made = Schema.decodeUnknownOption(schema)
  decoders.set(schema, made)
  return made(value)
}

const batchOf = <M extends Method>(method: M, events: ReadonlyArray<Event>): Batch<M> => {
  const incoming: Array<Incoming<M>> = []
  for (const event of events) {
    switch (event._tag) {
      case "Data": {
        if (!method.receives.includes(event.sub))
          return { incoming, end: violation(`bytes of ${method.name} on sub-channel ${event.sub}`) }
        incoming.push(event)
        break
      }
      case "Note": {
        const note = decode(method.notes, event.value)
        if (Option.isSome(note)) incoming.push({ _tag: "Note", note: note.value as Note<M> })
        break
      }
      case "Reset":
        return { incoming, end: Effect.fail(new Refused({ code: event.code, problem: event.message })) }
      case "End": {
        const end = decode(method.end, event.value)
        return {
          incoming,
          end: Option.isSome(end) ? Effect.succeed(end.value as End<M>) : violation(`a malformed END of ${method.name}`)
        }
      }
    }
  }
  return { incoming, end: undefined }
}

const noEnd = Effect.fail(new Refused({ code: null, problem: "the stream ended without a result" }))

/**
 * Waits for at least one item of a stream, or its end. Grants the guest credit for the bytes, unless `credit` is `"later"`: then
 * the reader passes the bytes on and calls `consumed` when they have left.
 */
export const next = <M extends Method, E>(
  stream: Stream<M, E>,
  credit: "now" | "later" = "now"
): Effect.Effect<Batch<M>, E> =>
  Effect.map(
    Effect.catchIf(credit === "now" ? stream.takeAll : stream.take, Cause.isDone, () => Effect.succeed([])),
    (events) => (events.length === 0 ? { incoming: [], end: noEnd } : batchOf(stream.method, events))
  )

/** Reads a stream and returns its END. Passes the items before it to `onIncoming`, in order. */
export const follow = Effect.fnUntraced(function* <M extends Method, E, E2 = never>(
  stream: Stream<M, E>,
  onIncoming?: (incoming: Incoming<M>) => Effect.Effect<void, E2>,
  credit: "now" | "later" = "now"
): Effect.fn.Return<End<M>, E | E2 | NoEnd> {
  for (;;) {
    const { end, incoming } = yield* next(stream, credit)
    if (onIncoming !== undefined) for (const it of incoming) yield* onIncoming(it)
    if (end !== undefined) return yield* end
  }
})

/** Makes a request and returns its END. */
export const call = <M extends Method, E>(
  open: Open<E>,
  method: M,
  request: Request<M>
): Effect.Effect<End<M>, E | NoEnd> => Effect.scoped(Effect.flatMap(open(method, request), (stream) => follow(stream)))

/** The bytes before END, as a stream; END is passed to `onEnd`. */
export const bytes = <M extends Method, E, E2 = never>(
  stream: Stream<M, E>,
  onEnd: (end: End<M>) => Effect.Effect<void, E2>
): EffectStream.Stream<Uint8Array, E | E2 | NoEnd> =>
  EffectStream.paginate(undefined, () =>
    Effect.gen(function* () {
      const { end, incoming } = yield* next(stream)
      const data = incoming.flatMap((it) => (it._tag === "Data" ? [it.bytes] : []))
      if (end === undefined) return [data, Option.some(undefined)] as const
      yield* onEnd(yield* end)
      return [data, Option.none()] as const
    })
  )

/** Opens typed streams over a channel; `explain` turns the channel's failures into the caller's. */
export const over =
  <E>(channel: Pick<Channel, "open">, explain: (failure: ChannelFailure) => Effect.Effect<never, E>): Open<E> =>
  <M extends Method>(method: M, request: Request<M>, inputs: ReadonlyArray<Input> = []) =>
    channel.open({ method: method.name, ...(request as object) }, inputs).pipe(
      Effect.catch(explain),
      Effect.map(({ consumed, id, note, take, takeAll, write }): Stream<M, E> => ({
        method,
        id,
        consumed,
        write,
        take: Effect.catchTag(take, ["ChannelLost", "ChannelViolation"], explain),
        takeAll: Effect.catchTag(takeAll, ["ChannelLost", "ChannelViolation"], explain),
        order: (order) => note(order as object)
      }))
    )
