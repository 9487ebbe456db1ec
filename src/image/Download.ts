/**
 * Downloads one file of known SHA-256 over HTTP; an interrupted download is continued, not fetched again.
 */
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import { open, rm, stat } from "node:fs/promises"
import { hashFile } from "../internal/hashFile.ts"
import { io, type IoFailed } from "../internal/io.ts"

/** The file could not be fetched. `temporary`: whether another try may help (connection, 5xx) or not (404, wrong hash). */
export class DownloadFailed extends Schema.TaggedError<DownloadFailed>()("DownloadFailed", {
  url: Schema.String,
  problem: Schema.String,
  temporary: Schema.Boolean
}) {
  override get message(): string {
    return `${this.url}: ${this.problem}`
  }
}

/** A server that sends nothing for this long counts as dead. */
const idle = "60 seconds"

/** Five tries in a row without a new byte end the download. They are 0.2, 0.4, 0.8 and 1.6 s apart. */
const backoff = Schedule.exponential("200 millis").pipe(Schedule.upTo({ times: 4 }))

const explain = (error: unknown): string => {
  const cause = error instanceof Error && error.cause instanceof Error ? `: ${error.cause.message}` : ""
  return `${error instanceof Error ? error.message : String(error)}${cause}`
}

/**
 * Fetches `url` to `path`, continuing a file that is there. Fails with `IoFailed` when `path` cannot be written (a full
 * disk), else with `DownloadFailed`; a wrong hash removes the file, any other failure keeps it for the next call.
 *
 * @param sha256 64 hex digits.
 * @param progress is called with the bytes so far, and with the total when the server reports one.
 */
export const download = (
  url: string,
  path: string,
  sha256: string,
  progress: (done: number, total: number | undefined) => Effect.Effect<void>
): Effect.Effect<void, DownloadFailed | IoFailed> =>
  Effect.gen(function* () {
    const before = yield* sizeOf(path)
    yield* fetchRest(url, path, progress)
    if ((yield* matches(path, sha256)) === true) return
    yield* io(() => rm(path, { force: true }))
    // The bytes of an earlier call may be those of another file.
    if (before > 0) {
      yield* fetchRest(url, path, progress)
      if ((yield* matches(path, sha256)) === true) return
      yield* io(() => rm(path, { force: true }))
    }
    return yield* new DownloadFailed({ url, problem: `its SHA-256 is not ${sha256}`, temporary: false })
  })

const sizeOf = (path: string): Effect.Effect<number> =>
  Effect.promise(() =>
    stat(path).then(
      (it) => it.size,
      () => 0
    )
  )

const matches = (path: string, sha256: string) =>
  Effect.map(
    io(() => hashFile(path)),
    (it) => it.sha256 === sha256
  )

/** Tries until the whole file is there; a try that brought new bytes resets the count of tries. */
const fetchRest = (
  url: string,
  path: string,
  progress: (done: number, total: number | undefined) => Effect.Effect<void>
): Effect.Effect<void, DownloadFailed | IoFailed> =>
  Effect.gen(function* () {
    for (;;) {
      const before = yield* sizeOf(path)
      const ended = yield* fetchOnce(url, path, progress).pipe(
        Effect.as(true),
        Effect.catchIf(isTemporary, (error) =>
          Effect.flatMap(sizeOf(path), (after) => (after > before ? Effect.succeed(false) : Effect.fail(error)))
        ),
        Effect.retry({ schedule: backoff, while: isTemporary })
      )
      if (ended) return
    }
  })

const isTemporary = (error: DownloadFailed | IoFailed): boolean => error._tag === "DownloadFailed" && error.temporary

const fetchOnce = (
  url: string,
  path: string,
  progress: (done: number, total: number | undefined) => Effect.Effect<void>
): Effect.Effect<void, DownloadFailed | IoFailed> =>
  Effect.gen(function* () {
    const offset = yield* sizeOf(path)
    const abort = yield* Effect.acquireRelease(
      Effect.sync(() => new AbortController()),
      (it) => Effect.sync(() => it.abort())
    )
    const response = yield* Effect.tryPromise({
      try: () =>
        fetch(url, { signal: abort.signal, ...(offset === 0 ? {} : { headers: { range: `bytes=${offset}-` } }) }),
      catch: (error) => new DownloadFailed({ url, problem: explain(error), temporary: true })
    }).pipe(
      Effect.timeoutOrElse({
        duration: idle,
        orElse: () => Effect.fail(new DownloadFailed({ url, problem: "no answer in time", temporary: true }))
      })
    )

    const resumed =
      response.status === 206 && response.headers.get("content-range")?.startsWith(`bytes ${offset}-`) === true
    if (response.status === 416 || (response.status === 206 && !resumed)) {
      // The server has nothing after these bytes: the file is complete, or it is another one. The hash decides.
      if (response.headers.get("content-range") === `bytes */${offset}`) return
      yield* io(() => rm(path, { force: true }))
      return yield* new DownloadFailed({
        url,
        problem: "the server does not continue the file from where it broke off",
        temporary: true
      })
    }
    if (response.status !== 200 && response.status !== 206) {
      return yield* new DownloadFailed({
        url,
        problem: `the server answered ${response.status}`,
        temporary: response.status >= 500 || response.status === 429
      })
    }
    const body = response.body?.getReader()
    if (body === undefined)
      return yield* new DownloadFailed({ url, problem: "the answer has no content", temporary: true })

    const start = resumed ? offset : 0
    const length = Number(response.headers.get("content-length") ?? Number.NaN)
    const total = Number.isFinite(length) && !response.headers.has("content-encoding") ? start + length : undefined
    const file = yield* Effect.acquireRelease(
      io(() => open(path, resumed ? "a" : "w")),
      (it) => Effect.promise(() => it.close())
    )
    let done = start
    for (;;) {
      const next = yield* Effect.tryPromise({
        try: () => body.read(),
        catch: (error) => new DownloadFailed({ url, problem: explain(error), temporary: true })
      }).pipe(
        Effect.timeoutOrElse({
          duration: idle,
          orElse: () => Effect.fail(new DownloadFailed({ url, problem: "the server stopped sending", temporary: true }))
        })
      )
      if (next.done) break
      const chunk = next.value
      yield* io(() => file.writeFile(chunk))
      done += chunk.length
      yield* progress(done, total)
    }
    if (total !== undefined && done < total)
      return yield* new DownloadFailed({ url, problem: `it ended after ${done} of ${total} bytes`, temporary: true })
  }).pipe(Effect.scoped)
