/**
 * Receipts: where the receipt of every execution goes, beside the caller's hands.
 *
 * A session publishes each receipt that it writes: of successes, task failures, failures of the sandbox that may have left
 * something behind, and of executions that were cancelled, whose receipt exists nowhere else. By default nobody listens.
 * Give `layerMemory` or `layerFile` to the sandbox's layer:
 *
 * ```ts
 * const sandbox = Sandbox.layer.pipe(Layer.provide(Receipts.layerFile("/var/log/receipts.jsonl")))
 * ```
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as fs from "node:fs"
import { open } from "node:fs/promises"
import { errorCode } from "./internal/Files.ts"
import { Receipt } from "./Receipt.ts"

/**
 * Takes every receipt. `publish` must not fail, and an execution waits for it.
 *
 * @since 0.1.0
 * @category models
 */
export interface Publisher {
  readonly publish: (receipt: Receipt) => Effect.Effect<void>
}

/**
 * Who takes the receipts. A reference: without a layer nobody does, and nothing is needed.
 *
 * @since 0.1.0
 * @category services
 */
export const Receipts: Context.Reference<Publisher> = Context.Reference<Publisher>("exec-sandbox/Receipts", {
  defaultValue: () => ({ publish: () => Effect.void })
})

/**
 * Nobody takes them: the default.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerNone: Layer.Layer<never> = Layer.succeed(Receipts, { publish: () => Effect.void })

/**
 * The receipts that `layerMemory` holds.
 *
 * @since 0.1.0
 * @category services
 */
export class Memory extends Context.Service<
  Memory,
  {
    /** The last ones, oldest first. */
    readonly all: Effect.Effect<ReadonlyArray<Receipt>>
    /** How many there were in all, those let go of included. */
    readonly count: Effect.Effect<number>
  }
>()("exec-sandbox/Receipts/Memory") {}

/**
 * Keeps the last `capacity` receipts (default 1,000) in memory; read them by `Memory`.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerMemory = (options: { readonly capacity?: number } = {}): Layer.Layer<Memory> =>
  Layer.effectContext(
    Effect.sync(() => {
      const capacity = Math.max(1, Math.floor(options.capacity ?? 1000))
      const kept: Array<Receipt> = []
      let count = 0
      const publish = (receipt: Receipt) =>
        Effect.sync(() => {
          kept[count++ % capacity] = receipt
        })
      const oldestFirst = () => {
        const start = count > capacity ? count % capacity : 0
        return [...kept.slice(start), ...kept.slice(0, start)]
      }
      return Context.make(Memory, { all: Effect.sync(oldestFirst), count: Effect.sync(() => count) }).pipe(
        Context.add(Receipts, { publish })
      )
    })
  )

/**
 * A journal cannot be used: `code` is the errno's name (`EACCES`, `EISDIR`, …), or `EINVAL` for what is no regular file.
 *
 * @since 0.1.0
 * @category errors
 */
export class JournalUnusable extends Schema.TaggedError<JournalUnusable>()("JournalUnusable", {
  path: Schema.String,
  code: Schema.String,
  problem: Schema.String
}) {
  override get message(): string {
    return `the journal ${JSON.stringify(this.path)} cannot be used: ${this.problem}`
  }
}

const unusable =
  (path: string) =>
  (error: unknown): JournalUnusable => {
    const problem = error instanceof Error ? error.message : String(error)
    return new JournalUnusable({ path, code: errorCode(error), problem })
  }

const irregular = (): Error => Object.assign(new Error("it is not a regular file"), { code: "EINVAL" })

const newline = 10

const lastByte = (fd: number, size: number): number => {
  const byte = Buffer.alloc(1)
  return fs.readSync(fd, byte, 0, 1, size - 1) === 1 ? (byte[0] ?? newline) : newline
}

/** How much that others wrote meanwhile is searched for our own line. */
const maxRegion = 4 * 1024 * 1024

/** One system call, so that lines of several writers do not mix. What was cut short is not gone on with: it has an end. */
const write = (fd: number, bytes: Buffer): void => {
  if (fs.writeSync(fd, bytes) < bytes.length) throw new Error("only a part of the line could be written")
}

/**
 * Appends a line that is whole whatever other writers do and whatever was left by one that died while writing. A line that
 * somebody left torn is ended first. That somebody may have torn it only after we looked: then ours is written again.
 */
const append = (fd: number, line: Buffer): void => {
  const before = fs.fstatSync(fd).size
  const torn = before > 0 && lastByte(fd, before) !== newline
  const record = torn ? Buffer.concat([Buffer.of(newline), line]) : line
  write(fd, record)
  const grown = fs.fstatSync(fd).size - before
  if (torn || grown === record.length) return
  const region = Buffer.alloc(Math.max(0, Math.min(grown, maxRegion)))
  const at = region.subarray(0, fs.readSync(fd, region, 0, region.length, before)).indexOf(record)
  if (at > 0 && region[at - 1] !== newline) write(fd, Buffer.concat([Buffer.of(newline), line]))
}

const { O_APPEND, O_CREAT, O_NONBLOCK, O_RDONLY, O_RDWR } = fs.constants

/** Never waits: a FIFO without a reader would make it. */
const openJournal = (path: string): number => {
  const fd = fs.openSync(path, O_RDWR | O_APPEND | O_CREAT | O_NONBLOCK, 0o600)
  if (fs.fstatSync(fd).isFile()) return fd
  fs.closeSync(fd)
  throw irregular()
}

/**
 * Appends each receipt to a file as one line of JSON (JSONL), made with mode 0600 unless it exists. Every line is valid by
 * itself. Several processes may append to one file, and one that was killed while writing spoils no other line. The layer
 * fails when the path cannot be appended to; a line that cannot be written later (a full disk) is logged as an error and
 * does not fail the execution.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerFile = (path: string): Layer.Layer<never, JournalUnusable> =>
  Layer.effect(
    Receipts,
    Effect.gen(function* () {
      const fd = yield* Effect.acquireRelease(
        Effect.try({ try: () => openJournal(path), catch: unusable(path) }),
        (it) => Effect.sync(() => fs.closeSync(it))
      )
      return {
        publish: (receipt: Receipt) =>
          Effect.try({
            try: () => append(fd, Buffer.from(`${JSON.stringify(receipt)}\n`)),
            catch: unusable(path)
          }).pipe(Effect.catch((error) => Effect.logError(`a receipt is lost: ${error.message}`, receipt.id)))
      }
    })
  )

/** A line of a journal that is no receipt: its number, counted from 1, and how many bytes it has. */
export interface Damaged {
  readonly line: number
  readonly bytes: number
}

/** The longest line that is read. */
const maxLine = 1024 * 1024

const decode = Schema.decodeUnknownOption(Schema.fromJsonString(Receipt))
const utf8 = new TextDecoder("utf-8", { fatal: true })

const parse = (bytes: Buffer): Receipt | undefined => {
  try {
    return Option.getOrUndefined(decode(utf8.decode(bytes)))
  } catch {
    return undefined
  }
}

async function* entries(path: string): AsyncGenerator<ReadonlyArray<Receipt | Damaged>> {
  const file = await open(path, O_RDONLY | O_NONBLOCK)
  try {
    if (!(await file.stat()).isFile()) throw irregular()
    const chunk = Buffer.alloc(64 * 1024)
    let line = 0
    let bytes = 0
    let parts: Array<Buffer> = []
    const take = (part: Buffer): void => {
      bytes += part.length
      if (bytes > maxLine) parts = []
      else parts.push(Buffer.from(part))
    }
    const end = (): ReadonlyArray<Receipt | Damaged> => {
      line++
      const length = bytes
      const receipt = length > maxLine ? undefined : parse(Buffer.concat(parts))
      parts = []
      bytes = 0
      return length === 0 ? [] : [receipt ?? { line, bytes: length }]
    }
    for (;;) {
      const { bytesRead } = await file.read(chunk, 0, chunk.length, null)
      if (bytesRead === 0) break
      const found: Array<Receipt | Damaged> = []
      let rest = chunk.subarray(0, bytesRead)
      for (let at = rest.indexOf(newline); at >= 0; at = rest.indexOf(newline)) {
        take(rest.subarray(0, at))
        found.push(...end())
        rest = rest.subarray(at + 1)
      }
      take(rest)
      yield found
    }
    yield end()
  } finally {
    await file.close()
  }
}

/**
 * Reads a journal from its beginning to what is its end now. Lines that are no receipts (torn by a crash, written by
 * something else, longer than 1 MiB) are skipped; `onDamaged` is called for each, with its number and its size in bytes.
 *
 * @since 0.1.0
 * @category reading
 */
export const read = (
  path: string,
  options: { readonly onDamaged?: (damaged: Damaged) => Effect.Effect<void> } = {}
): Stream.Stream<Receipt, JournalUnusable> =>
  Stream.fromAsyncIterable(entries(path), unusable(path)).pipe(
    Stream.flattenIterable,
    Stream.mapEffect((entry) =>
      "version" in entry
        ? Effect.succeed([entry])
        : Effect.as(options.onDamaged?.(entry) ?? Effect.void, [] as ReadonlyArray<Receipt>)
    ),
    Stream.flattenIterable
  )
