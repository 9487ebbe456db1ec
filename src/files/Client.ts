/** The files of a session over its VM: requests to the agent, and what its answers mean. */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Files from "../Files.ts"
import * as Wire from "../guest/FileProtocol.ts"
import { Sub } from "../guest/Frame.ts"
import { fail, InvalidInput, type SandboxError } from "../SandboxError.ts"
import type { VmLost, VmStream } from "../Vm.ts"
import { decodeInput } from "../internal/decodeInput.ts"
import * as FileName from "../internal/FileName.ts"
import { ofGuest } from "./Reason.ts"
import * as Lines from "../internal/Lines.ts"

type Operation = Files.FileError["operation"]

/** What the session gives: streams while it is open, and what a lost VM means for it. */
export interface Guest {
  readonly open: (message: object) => Effect.Effect<VmStream, SandboxError, Scope.Scope>
  readonly lost: (error: VmLost) => Effect.Effect<never, SandboxError>
  /** The guest broke the protocol: ends the VM. */
  readonly violated: (problem: string) => Effect.Effect<never, SandboxError>
}

/** One request to the agent. */
export interface Call {
  readonly operation: Operation
  readonly path: string
  readonly method: string
  readonly fields: object
}

/** Requests to the agent about files. */
export interface Client {
  /** Opens a request. */
  readonly open: (call: Call) => Effect.Effect<Answering, Files.FileFailure, Scope.Scope>
  /** Makes a request and gives its END; what is sent before goes to `onData`. */
  readonly call: <S extends Schema.Top & { readonly DecodingServices: never }>(
    call: Call,
    end: S,
    onData?: (bytes: Uint8Array) => Effect.Effect<void, Files.FileFailure>
  ) => Effect.Effect<S["Type"], Files.FileFailure>
}

/** A request under way. */
export interface Answering {
  /** The next bytes, and END once it has come. */
  readonly next: Effect.Effect<
    { readonly data: Array<Uint8Array>; readonly end: Option.Option<unknown> },
    Files.FileFailure
  >
  /** Sends a content, then its end. */
  readonly send: <E, R>(content: Stream.Stream<Uint8Array, E, R>) => Effect.Effect<void, E | Files.FileFailure, R>
  /** Decodes END. */
  readonly result: <S extends Schema.Top & { readonly DecodingServices: never }>(
    end: S,
    value: unknown
  ) => Effect.Effect<S["Type"], Files.FileFailure>
}

/** A path: not empty, without NUL, and one that bytes can have. Longer ones than Linux allows are the guest's to refuse. */
const Path = Schema.NonEmptyString.check(
  Schema.isMaxLength(16 * 1024),
  Schema.makeFilter((path: string) => !path.includes("\0"), { expected: "a path without NUL characters" }),
  Schema.makeFilter((path: string) => FileName.toBytes(path) !== undefined, {
    expected: "a path without lone surrogates other than U+DC80…U+DCFF"
  })
)
export const decodePath = decodeInput(Path, "path")

const decodeError = Schema.decodeUnknownOption(Wire.ErrorEnd)

/** Requests over a session's guest. */
export const makeClient = (guest: Guest): Client => {
  const open = Effect.fnUntraced(function* (call: Call): Effect.fn.Return<Answering, Files.FileFailure, Scope.Scope> {
    yield* decodePath(call.path)
    const stream = yield* guest.open({ method: call.method, path: Wire.encodeName(call.path), ...call.fields })
    const user = "user" in call.fields && call.fields.user === "root" ? "root" : "user"
    const refused = (code: string, message: string) =>
      code === "invalid" || code === "unsupported"
        ? fail(new InvalidInput({ field: "request", problem: message, expected: "what the guest accepts" }))
        : ofGuest(call.operation, call.path, user, { error: { code: "EIO" } })
    const next = Effect.gen(function* () {
      const events = yield* Effect.catchIf(stream.takeAll, Cause.isDone, () => Effect.succeed([])).pipe(
        Effect.catch(guest.lost)
      )
      const data: Array<Uint8Array> = []
      for (const event of events) {
        if (event._tag === "Data") data.push(event.bytes)
        else if (event._tag === "Reset") return yield* refused(event.code, event.message)
        else if (event._tag === "End") {
          const error = decodeError(event.value)
          if (Option.isSome(error)) return yield* ofGuest(call.operation, call.path, user, error.value)
          return { data, end: Option.some(event.value) }
        }
      }
      if (events.length === 0) return yield* guest.violated("an answer without an end")
      return { data, end: Option.none<unknown>() }
    })
    return {
      next,
      send: (content) =>
        content.pipe(
          // A stream that has ended takes nothing more; its last event says why.
          Stream.runForEachWhile((bytes) =>
            bytes.length === 0 ? Effect.succeed(true) : stream.write(Sub.file, bytes, false)
          ),
          Effect.andThen(stream.write(Sub.file, new Uint8Array(), true)),
          Effect.asVoid
        ),
      result: (end, value) =>
        Schema.decodeUnknownEffect(end)(value).pipe(
          Effect.catchTag("SchemaError", () => guest.violated(`an answer to ${call.method} that is not understood`))
        )
    }
  })
  return {
    open,
    call: Effect.fnUntraced(function* (call, end, onData) {
      const answer = yield* open(call)
      for (;;) {
        const got = yield* answer.next
        if (onData !== undefined) for (const bytes of got.data) yield* onData(bytes)
        if (Option.isSome(got.end)) return yield* answer.result(end, got.end.value)
      }
    }, Effect.scoped)
  }
}

/** Everything that is sent before END, as a stream; END goes to `onEnd`. */
export const bytesOf = <S extends Schema.Top & { readonly DecodingServices: never }>(
  client: Client,
  call: Call,
  end: S,
  onEnd: (end: S["Type"]) => void = () => {}
): Stream.Stream<Uint8Array, Files.FileFailure> =>
  Stream.unwrap(
    Effect.map(client.open(call), (answer) =>
      Stream.paginate(undefined, () =>
        Effect.gen(function* () {
          const got = yield* answer.next
          if (Option.isNone(got.end)) return [got.data, Option.some(undefined)] as const
          onEnd(yield* answer.result(end, got.end.value))
          return [got.data, Option.none()] as const
        })
      )
    )
  )

const options = {
  plain: decodeInput(Files.Options, "options"),
  read: decodeInput(Files.ReadOptions, "options"),
  stream: decodeInput(Files.StreamOptions, "options"),
  write: decodeInput(Files.WriteOptions, "options"),
  list: decodeInput(Files.ListOptions, "options"),
  stat: decodeInput(Files.StatOptions, "options"),
  watch: decodeInput(Files.WatchOptions, "options"),
  remove: decodeInput(Files.RemoveOptions, "options")
}
const decodeContent = decodeInput(Schema.Union([Schema.String, Schema.Uint8Array]), "content")

const defaultMaxBytes = 64 * 1024 * 1024
const defaultMaxEntries = 100_000
/** The longest line of JSON about one file: two names of 4096 bytes, each in hex. */
const maxLine = 64 * 1024

const byName = (a: Files.Entry, b: Files.Entry): number => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0)

const tooLarge = (
  operation: Operation,
  path: string,
  allowed: number,
  observed: number | null,
  unit: "bytes" | "entries"
) =>
  new Files.FileError({
    operation,
    path,
    side: "guest",
    reason: { _tag: "TooLarge", allowed, observed, unit }
  })

/** Files of a session, without the copying of trees. */
export const make = (guest: Guest, client: Client): Omit<Files.Files, "copyIn" | "copyOut"> => {
  const read: Files.Files["read"] = Effect.fn("Files.read")(function* (path, given = {}) {
    const { maxBytes = defaultMaxBytes, ...fields } = yield* options.read(given)
    let buffer = Buffer.alloc(0)
    let length = 0
    const { bytes: sent, size } = yield* client.call(
      // One byte more than allowed shows that there is more.
      { operation: "read", path, method: "file.read", fields: { ...fields, length: maxBytes + 1 } },
      Wire.ReadEnd,
      (bytes) => {
        const needed = length + bytes.length
        if (needed > maxBytes + 1) return guest.violated("more of a file than was asked for")
        if (needed > buffer.length) {
          const larger = Buffer.alloc(Math.max(needed, Math.min(2 * buffer.length, maxBytes + 1)))
          buffer.copy(larger, 0, 0, length)
          buffer = larger
        }
        buffer.set(bytes, length)
        length = needed
        return Effect.void
      }
    )
    if (sent !== length) return yield* guest.violated("another count of a file's bytes than it sent")
    if (length > maxBytes) return yield* tooLarge("read", path, maxBytes, size > maxBytes ? size : null, "bytes")
    return new Uint8Array(buffer.buffer, buffer.byteOffset, length)
  })

  const stream: Files.Files["stream"] = (path, given = {}) =>
    Stream.unwrap(
      Effect.map(options.stream(given), (fields) =>
        bytesOf(client, { operation: "read", path, method: "file.read", fields }, Wire.ReadEnd)
      )
    )

  const write: Files.Files["write"] = Effect.fn("Files.write")(function* <E, R>(
    path: string,
    content: string | Uint8Array | Stream.Stream<Uint8Array, E, R>,
    given: typeof Files.WriteOptions.Type = {}
  ): Effect.fn.Return<void, Files.FileFailure | E, R | Scope.Scope> {
    const fields = yield* options.write(given)
    const bytes = Stream.isStream(content)
      ? content
      : Stream.make(yield* Effect.map(decodeContent(content), (it) => Buffer.from(it as string)))
    const answer = yield* client.open({ operation: "write", path, method: "file.write", fields })
    yield* deliver(answer, bytes, Wire.WriteEnd)
  }, Effect.scoped)

  const list: Files.Files["list"] = Effect.fn("Files.list")(function* (path, given = {}) {
    const { maxEntries = defaultMaxEntries, ...fields } = yield* options.list(given)
    const entries: Array<Files.Entry> = []
    const lines = Lines.make(maxLine)
    const decode = Schema.decodeUnknownOption(Schema.fromJsonString(Wire.ListLine))
    yield* client.call({ operation: "list", path, method: "file.list", fields }, Schema.Unknown, (bytes) =>
      Effect.gen(function* () {
        const found = lines(bytes)
        if (found === undefined) return yield* guest.violated("an entry of a directory without an end")
        for (const line of found) {
          const entry = decode(line)
          if (Option.isNone(entry)) return yield* guest.violated("an entry of a directory that is not understood")
          if (entries.push(entry.value) > maxEntries) return yield* tooLarge("list", path, maxEntries, null, "entries")
        }
      })
    )
    return entries.sort(byName)
  })

  const stat: Files.Files["stat"] = Effect.fn("Files.stat")(function* (path, given = {}) {
    const { followLinks = true, ...fields } = yield* options.stat(given)
    return yield* client.call(
      { operation: "stat", path, method: "file.stat", fields: { ...fields, noFollow: !followLinks } },
      Wire.Stat
    )
  })

  const simple = (operation: Operation, method: string, path: string, fields: object) =>
    Effect.asVoid(client.call({ operation, path, method, fields }, Wire.PlainEnd))

  return {
    read,
    readText: (path, given) => Effect.map(read(path, given), (bytes) => new TextDecoder().decode(bytes)),
    stream,
    write,
    list,
    stat,
    exists: (path, given = {}) =>
      stat(path, given).pipe(
        Effect.as(true),
        Effect.catchReasons("FileError", {
          NotFound: () => Effect.succeed(false),
          NotADirectory: () => Effect.succeed(false)
        })
      ),
    makeDirectory: Effect.fn("Files.makeDirectory")(function* (path, given = {}) {
      yield* simple("makeDirectory", "file.makeDirectory", path, yield* options.write(given))
    }),
    remove: Effect.fn("Files.remove")(function* (path, given = {}) {
      yield* simple("remove", "file.remove", path, yield* options.remove(given))
    }),
    rename: Effect.fn("Files.rename")(function* (from, to, given = {}) {
      const fields = yield* options.plain(given)
      yield* decodePath(to)
      yield* simple("rename", "file.rename", from, { ...fields, to: Wire.encodeName(to) })
    }),
    watch: (path, given = {}) => {
      const lines = Lines.make(maxLine)
      const decode = Schema.decodeUnknownOption(Schema.fromJsonString(Wire.ChangeLine))
      return Stream.unwrap(
        Effect.map(options.watch(given), (fields) =>
          bytesOf(client, { operation: "watch", path, method: "file.watch", fields }, Wire.PlainEnd)
        )
      ).pipe(
        Stream.mapEffect((bytes) =>
          Effect.gen(function* () {
            const changes: Array<Files.Change> = []
            const found = lines(bytes)
            if (found === undefined) return yield* guest.violated("a change without an end")
            for (const line of found) {
              const change = decode(line)
              if (Option.isNone(change)) return yield* guest.violated("a change that is not understood")
              changes.push(change.value)
            }
            return changes
          })
        ),
        Stream.flattenIterable
      )
    }
  }
}

/** Waits for a request's END; what else comes is let go. */
const waitFor = <S extends Schema.Top & { readonly DecodingServices: never }>(
  answer: Answering,
  end: S
): Effect.Effect<S["Type"], Files.FileFailure> =>
  Effect.gen(function* () {
    for (;;) {
      const got = yield* answer.next
      if (Option.isSome(got.end)) return yield* answer.result(end, got.end.value)
    }
  })

/** Sends a content and waits for END. What the guest cannot take it says at once, whenever the next of the content comes. */
export const deliver = <E, R, S extends Schema.Top & { readonly DecodingServices: never }>(
  answer: Answering,
  content: Stream.Stream<Uint8Array, E, R>,
  end: S
): Effect.Effect<S["Type"], E | Files.FileFailure, R> =>
  Effect.raceFirst(waitFor(answer, end), Effect.andThen(answer.send(content), Effect.never))
