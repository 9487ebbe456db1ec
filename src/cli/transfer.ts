/** `--upload` and `--download`: copies files before and after a run. */
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { statSync } from "node:fs"
import { basename, join } from "node:path"
import type { FileFailure } from "../Files.ts"
import type { Session } from "../Session.ts"
import { Leave, lineOf } from "./ending.ts"
import { write } from "./output.ts"

/** A path on the host and a path in the guest. */
export interface Pair {
  readonly host: string
  readonly guest: string
}

/** Splits `HOST:GUEST` at the first colon; both parts are required. */
export const parseUpload = (text: string): Option.Option<Pair> => {
  const at = text.indexOf(":")
  return at < 1 || at === text.length - 1
    ? Option.none()
    : Option.some({ host: text.slice(0, at), guest: text.slice(at + 1) })
}

/** Splits `GUEST[:HOST]`; HOST defaults to the same name in the current directory. */
export const parseDownload = (text: string): Option.Option<Pair> => {
  const at = text.indexOf(":")
  const guest = at === -1 ? text : text.slice(0, at)
  const name = basename(guest)
  const host = at === -1 ? name : text.slice(at + 1)
  if (guest === "" || host === "" || ((at === -1 || host.endsWith("/")) && ["", ".", ".."].includes(name))) {
    return Option.none()
  }
  return Option.some({ guest, host })
}

/** `--upload`, which may be repeated. */
export const upload = Flag.String("upload").pipe(
  Flag.withMetavar("HOST:GUEST"),
  Flag.withDescription("Copy a file or directory into the VM before the run; may be repeated"),
  Flag.filterMap(parseUpload, () => "HOST:GUEST"),
  Flag.atLeast(0)
)

/** `--download`, which may be repeated. */
export const download = Flag.String("download").pipe(
  Flag.withMetavar("GUEST[:HOST]"),
  Flag.withDescription("Copy a file or directory out of the VM after the run, also when it failed; may be repeated"),
  Flag.filterMap(parseDownload, () => "GUEST[:HOST]"),
  Flag.atLeast(0)
)

const failed = (error: FileFailure): Leave =>
  new Leave({
    code: error._tag === "FileError" && error.side === "host" && error.operation === "copyIn" ? 2 : 125,
    why: error.message
  })

/** The target, or a path inside it if it is a directory, as with `cp`. */
const inside = ({ guest, host }: Pair): string => {
  const directory = statSync(host, { throwIfNoEntry: false })?.isDirectory() === true
  return host.endsWith("/") || directory ? join(host, basename(guest)) : host
}

/** Copies every download; a missing one does not stop the others. */
const fetchAll = (session: Session, downloads: ReadonlyArray<Pair>): Effect.Effect<ReadonlyArray<Leave>> =>
  Effect.gen(function* () {
    const problems: Array<Leave> = []
    for (const pair of downloads) {
      yield* Effect.catch(session.files.copyOut(pair.guest, inside(pair)), (error) =>
        Effect.sync(() => void problems.push(failed(error)))
      )
    }
    return problems
  })

const report = (problems: ReadonlyArray<Leave>): Effect.Effect<void> =>
  Effect.forEach(problems, ({ why = "" }) => Effect.ignore(write(process.stderr, lineOf(why))), { discard: true })

/**
 * Runs an effect in a session between the uploads and the downloads. A failed run decides the exit code; failed downloads are
 * then only reported on stderr.
 */
export const between = <A, E, R>(
  session: Session,
  uploads: ReadonlyArray<Pair>,
  downloads: ReadonlyArray<Pair>,
  run: Effect.Effect<A, E, R>
): Effect.Effect<A, E | Leave, R> =>
  Effect.gen(function* () {
    for (const { guest, host } of uploads) yield* Effect.mapError(session.files.copyIn(host, guest), failed)
    const fetched = fetchAll(session, downloads)
    const result = yield* Effect.tapError(run, () => Effect.flatMap(fetched, report))
    const [problem, ...more] = yield* fetched
    if (problem === undefined) return result
    yield* report(more)
    return yield* problem
  })
