/**
 * Receipts: where the receipt of every execution is published, in addition to the caller's result or error.
 *
 * A session publishes every receipt that it writes: for successes, task failures, failures of the sandbox after which code may
 * have run, and cancelled executions, whose receipt is available nowhere else. By default receipts are not published. Provide
 * `layerMemory` or `layerFile` to the sandbox's layer:
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
 * Receives every receipt. `publish` must not fail; an execution waits until it is done.
 *
 * @since 0.1.0
 * @category models
 */
export interface Publisher {
  readonly publish: (receipt: Receipt) => Effect.Effect<void>
}

/**
 * The publisher in use. It is a reference: without a layer, receipts are dropped.
 *
 * @since 0.1.0
 * @category services
 */
export const Receipts: Context.Reference<Publisher> = Context.Reference<Publisher>("exec-sandbox/Receipts", {
  defaultValue: () => ({ publish: () => Effect.void })
})

/**
 * Drops receipts; the default.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerNone: Layer.Layer<never> = Layer.succeed(Receipts, { publish: () => Effect.void })

/**
 * The receipts in `layerMemory`.
 *
 * @since 0.1.0
 * @category services
 */
export class Memory extends Context.Service<
  Memory,
  {
    /** The last receipts, at most `capacity`, oldest first. */
    readonly all: Effect.Effect<ReadonlyArray<Receipt>>
    /** How many receipts were published, dropped ones included. */
    readonly count: Effect.Effect<number>
  }
>()("exec-sandbox/Receipts/Memory") {}

/**
 * Keeps the last `capacity` receipts (a count of at least 1, default 1,000) in memory; read them through `Memory`.
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
 * The journal at `path` cannot be opened, read or written. `code` is the name of the errno (`EACCES`, `EISDIR`, …), or `EINVAL`
 * when `path` is not a regular file; `problem` is the error as text.
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

/** How many bytes that other writers added meanwhile are searched for our line. */
const maxRegion = 4 * 1024 * 1024

/** One system call, so that lines of several writers do not mix. A line that was cut short is not continued for the same reason. */
const write = (fd: number, bytes: Buffer): void => {
  if (fs.writeSync(fd, bytes) < bytes.length) throw new Error("only a part of the line could be written")
}

/**
 * Appends a line that is whole, whatever other writers do and even if one of them died while writing: a torn last line is ended
 * first. A writer may tear its line after we looked; then our line is written again.
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

/** Opens without waiting, as it would for the reader of a FIFO. */
const openJournal = (path: string): number => {
  const fd = fs.openSync(path, O_RDWR | O_APPEND | O_CREAT | O_NONBLOCK, 0o600)
  if (fs.fstatSync(fd).isFile()) return fd
  fs.closeSync(fd)
  throw irregular()
}

/**
 * Appends each receipt to a file as one line of JSON (JSONL); a new file gets mode 0600. Every line is valid by itself. Several
 * processes may append to one file, and a process that is killed while writing damages no other line. The layer fails when the
 * path cannot be appended to; a line that cannot be written later (a full disk) is logged as an error and does not fail the
 * execution.
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

/**
 * A line of a journal that is not a receipt: `line` is its number, counted from 1, and `bytes` its length without the newline.
 *
 * @since 0.1.0
 * @category models
 */
export interface Damaged {
  readonly line: number
  readonly bytes: number
}

/** The longest line that is read, in bytes. */
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
 * Reads a journal from its beginning to its present end. Lines that are not receipts (torn by a crash, written by another
 * program, longer than 1 MiB) are skipped; `onDamaged` is called for each.
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
