/** `Session.files` without copies: requests to the agent about files, and results or errors from its answers. */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Files from "../Files.ts"
import * as Agent from "../guest/Agent.ts"
import { Sub } from "../guest/Frame.ts"
import * as Methods from "../guest/Methods.ts"
import { encodeName } from "../guest/Names.ts"
import { decodeInput } from "../internal/decodeInput.ts"
import * as FileName from "../internal/FileName.ts"
import * as Lines from "../internal/Lines.ts"
import { fail, InvalidInput } from "../SandboxError.ts"
import type { Guest } from "../session/Guest.ts"
import { ofGuest } from "./Reason.ts"

type Operation = Files.FileError["operation"]

type Codec = Methods.Method["end"]

/** A method whose END is an answer or the reason of a failure. */
type FileMethod<Request extends Codec = Codec, Answer extends Codec = Codec> = Methods.Method<
  Request,
  Schema.Union<readonly [typeof Methods.FileFailed, Answer]>
>
type Answer<M extends FileMethod> = Exclude<Methods.End<M>, Methods.FileFailed>

/** One request to the agent. */
export interface Call<M extends FileMethod> {
  readonly operation: Operation
  readonly path: string
  readonly method: M
  readonly fields: Omit<Methods.Request<M> & object, "path"> & { readonly user?: "user" | "root" | undefined }
}

/** Requests to the agent about files. */
export interface Client {
  /** Opens a request. */
  readonly open: <M extends FileMethod>(call: Call<M>) => Effect.Effect<Answering<M>, Files.FileFailure, Scope.Scope>
  /** Makes a request and returns its END; the bytes before it go to `onData`. */
  readonly call: <M extends FileMethod>(
    call: Call<M>,
    onData?: (bytes: Uint8Array) => Effect.Effect<void, Files.FileFailure>
  ) => Effect.Effect<Answer<M>, Files.FileFailure>
}

/** A request under way. */
export interface Answering<M extends FileMethod> {
  /** Waits for END and returns it; the bytes before it go to `onData`. */
  readonly follow: (
    onData?: (bytes: Uint8Array) => Effect.Effect<void, Files.FileFailure>
  ) => Effect.Effect<Answer<M>, Files.FileFailure>
  /** The bytes before END, as a stream; END goes to `onEnd`. */
  readonly bytes: (onEnd: (end: Answer<M>) => void) => Stream.Stream<Uint8Array, Files.FileFailure>
  /** Sends the content of a file, then marks its end. */
  readonly send: <E, R>(content: Stream.Stream<Uint8Array, E, R>) => Effect.Effect<void, E | Files.FileFailure, R>
}

/** A path: not empty, without NUL, and with an encoding as bytes. The guest refuses paths that are too long for Linux. */
const Path = Schema.NonEmptyString.check(
  Schema.isMaxLength(16 * 1024),
  Schema.makeFilter((path: string) => !path.includes("\0"), { expected: "a path without NUL characters" }),
  Schema.makeFilter((path: string) => FileName.toBytes(path) !== undefined, {
    expected: "a path without lone surrogates other than U+DC80…U+DCFF"
  })
)
export const decodePath = decodeInput(Path, "path")

const isFailed = (end: object): end is Methods.FileFailed => "error" in end

/** Makes the client of a session's guest. */
export const makeClient = (guest: Guest): Client => {
  const open = Effect.fnUntraced(function* <M extends FileMethod>({
    fields,
    method,
    operation,
    path
  }: Call<M>): Effect.fn.Return<Answering<M>, Files.FileFailure, Scope.Scope> {
    yield* decodePath(path)
    const stream = yield* guest.open(method, { ...fields, path: encodeName(path) } as Methods.Request<M>)
    const { user = "user" } = fields
    const refused = (error: Agent.NoEnd): Effect.Effect<never, Files.FileFailure> => {
      if (error._tag === "ChannelViolation" || error.code === null) return guest.violated(error.problem)
      return Effect.fail(
        error.code === "invalid" || error.code === "unsupported"
          ? fail(new InvalidInput({ field: "request", problem: error.problem, expected: "what the guest accepts" }))
          : ofGuest(operation, path, user, { error: { code: "EIO" } })
      )
    }
    const answered = (end: Methods.End<M>): Effect.Effect<Answer<M>, Files.FileFailure> =>
      isFailed(end as object)
        ? Effect.fail(ofGuest(operation, path, user, end as Methods.FileFailed))
        : Effect.succeed(end as Answer<M>)
    return {
      follow: (onData) =>
        Agent.follow(stream, (it) =>
          it._tag === "Data" && onData !== undefined ? onData(it.bytes) : Effect.void
        ).pipe(Effect.catchTag(["Refused", "ChannelViolation"], refused), Effect.flatMap(answered)),
      bytes: (onEnd) =>
        Agent.bytes(stream, (end) => Effect.map(answered(end), onEnd)).pipe(
          Stream.catchTag(["Refused", "ChannelViolation"], (error) => Stream.fromEffect(refused(error)))
        ),
      send: (content) =>
        content.pipe(
          // `write` returns false once the stream has ended; its END says why.
          Stream.runForEachWhile((bytes) =>
            bytes.length === 0 ? Effect.succeed(true) : stream.write(Sub.file, bytes, false)
          ),
          Effect.andThen(stream.write(Sub.file, new Uint8Array(), true)),
          Effect.asVoid
        )
    }
  })
  return {
    open,
    call: (call, onData) => Effect.scoped(Effect.flatMap(open(call), (answer) => answer.follow(onData)))
  }
}

/** Makes a request and returns the bytes before END as a stream; END goes to `onEnd`. */
export const bytesOf = <M extends FileMethod>(
  client: Client,
  call: Call<M>,
  onEnd: (end: Answer<M>) => void = () => {}
): Stream.Stream<Uint8Array, Files.FileFailure> =>
  Stream.unwrap(Effect.map(client.open(call), (answer) => answer.bytes(onEnd)))

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
/** The longest line of JSON about one file, in bytes: two names of 4096 bytes in hex, and more than enough for the rest. */
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

/** All of `Session.files` but the copies. */
export const make = (guest: Guest, client: Client): Omit<Files.Files, "copyIn" | "copyOut"> => {
  const read: Files.Files["read"] = Effect.fn("Files.read")(function* (path, given = {}) {
    const { maxBytes = defaultMaxBytes, ...fields } = yield* options.read(given)
    let buffer = Buffer.alloc(0)
    let length = 0
    const { bytes: sent, size } = yield* client.call(
      // One byte more than allowed, to find out whether there is more.
      { operation: "read", path, method: Methods.fileRead, fields: { ...fields, length: maxBytes + 1 } },
      (bytes) => {
        const needed = length + bytes.length
        if (needed > maxBytes + 1) return guest.violated("more bytes of a file than requested")
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
    if (sent !== length) return yield* guest.violated("a file size that differs from the bytes it sent")
    if (length > maxBytes) return yield* tooLarge("read", path, maxBytes, size > maxBytes ? size : null, "bytes")
    return new Uint8Array(buffer.buffer, buffer.byteOffset, length)
  })

  const stream: Files.Files["stream"] = (path, given = {}) =>
    Stream.unwrap(
      Effect.map(options.stream(given), (fields) =>
        bytesOf(client, { operation: "read", path, method: Methods.fileRead, fields })
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
    const answer = yield* client.open({ operation: "write", path, method: Methods.fileWrite, fields })
    yield* deliver(answer, bytes)
  }, Effect.scoped)

  const list: Files.Files["list"] = Effect.fn("Files.list")(function* (path, given = {}) {
    const { maxEntries = defaultMaxEntries, ...fields } = yield* options.list(given)
    const entries: Array<Files.Entry> = []
    const lines = Lines.make(maxLine)
    const decode = Schema.decodeUnknownOption(Schema.fromJsonString(Methods.ListLine))
    yield* client.call({ operation: "list", path, method: Methods.fileList, fields }, (bytes) =>
      Effect.gen(function* () {
        const found = lines(bytes)
        if (found === undefined) return yield* guest.violated("a directory entry that is too long")
        for (const line of found) {
          const entry = decode(line)
          if (Option.isNone(entry)) return yield* guest.violated("an invalid directory entry")
          if (entries.push(entry.value) > maxEntries) return yield* tooLarge("list", path, maxEntries, null, "entries")
        }
      })
    )
    return entries.sort(byName)
  })

  const stat: Files.Files["stat"] = Effect.fn("Files.stat")(function* (path, given = {}) {
    const { followLinks = true, ...fields } = yield* options.stat(given)
    return yield* client.call({
      operation: "stat",
      path,
      method: Methods.fileStat,
      fields: { ...fields, noFollow: !followLinks }
    })
  })

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
      const fields = yield* options.write(given)
      yield* client.call({ operation: "makeDirectory", path, method: Methods.fileMakeDirectory, fields })
    }),
    remove: Effect.fn("Files.remove")(function* (path, given = {}) {
      const fields = yield* options.remove(given)
      yield* client.call({ operation: "remove", path, method: Methods.fileRemove, fields })
    }),
    rename: Effect.fn("Files.rename")(function* (from, to, given = {}) {
      const fields = yield* options.plain(given)
      yield* decodePath(to)
      yield* client.call({
        operation: "rename",
        path: from,
        method: Methods.fileRename,
        fields: { ...fields, to: encodeName(to) }
      })
    }),
    watch: (path, given = {}) => {
      const lines = Lines.make(maxLine)
      const decode = Schema.decodeUnknownOption(Schema.fromJsonString(Methods.WatchLine))
      return Stream.unwrap(
        Effect.map(options.watch(given), (fields) =>
          bytesOf(client, { operation: "watch", path, method: Methods.fileWatch, fields })
        )
      ).pipe(
        Stream.mapEffect((bytes) =>
          Effect.gen(function* () {
            const changes: Array<Files.Change> = []
            const found = lines(bytes)
            if (found === undefined) return yield* guest.violated("a change of a watched file that is too long")
            for (const line of found) {
              const change = decode(line)
              if (Option.isNone(change)) return yield* guest.violated("an invalid change of a watched file")
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

/** Sends the content of a file and waits for END. A guest that refuses it ends the sending at once, however slow the content. */
export const deliver = <E, R, M extends FileMethod>(
  answer: Answering<M>,
  content: Stream.Stream<Uint8Array, E, R>
): Effect.Effect<Answer<M>, E | Files.FileFailure, R> =>
  Effect.raceFirst(answer.follow(), Effect.andThen(answer.send(content), Effect.never))
