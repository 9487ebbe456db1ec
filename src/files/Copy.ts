/** Copies files and trees between the host and a session. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Tar from "effect/encoding/Tar"
import { randomBytes } from "node:crypto"
import { constants, promises as fs } from "node:fs"
import { basename, dirname, join as joinPath, resolve } from "node:path"
import * as Files from "../Files.ts"
import * as Methods from "../guest/Methods.ts"
import { decodeInput } from "../internal/decodeInput.ts"
import { type Bounds, Excess, extract, type Unsafe } from "./Extract.ts"
import * as FileName from "../internal/FileName.ts"
import { errorCode } from "../internal/Files.ts"
import { ofHost } from "./Reason.ts"
import { attempt, content, type Count, HostFailed, tree } from "./HostTree.ts"
import { bytesOf, type Client, decodePath, deliver } from "./Client.ts"

const decodeOptions = decodeInput(Files.Options, "options")
const decodeCopyOut = decodeInput(Files.CopyOutOptions, "options")

const defaultBounds = { maxBytes: 4 * 1024 ** 3, maxEntries: 200_000, outsideLinks: "refuse" } as const

const onHost =
  (operation: "copyIn" | "copyOut") =>
  (failed: HostFailed): Files.FileError =>
    ofHost(operation, FileName.fromBytes(failed.path), failed.error)

/** A path next to the target, so on the same file system. What is there when the scope closes is removed. */
const draftOf = (target: string): Effect.Effect<Buffer, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() =>
      Buffer.from(joinPath(dirname(target), `.${basename(target).slice(0, 100)}.${randomBytes(6).toString("hex")}`))
    ),
    (draft) => Effect.promise(() => removeDraft(draft))
  )

const removeDraft = (draft: Buffer): Promise<void> =>
  fs.rm(draft, { recursive: true, force: true }).catch(() => undefined)

/** Fails, before anything is copied, when the copy could not replace the target at the end. */
const checkTarget = async (target: string, tree: boolean): Promise<void> => {
  const stats = await fs.lstat(target).catch((error: unknown) => {
    if (errorCode(error) === "ENOENT") return undefined
    throw error
  })
  const code =
    stats === undefined
      ? undefined
      : !stats.isDirectory()
        ? tree
          ? "EEXIST"
          : undefined
        : !tree
          ? "EISDIR"
          : (await fs.readdir(target)).length > 0
            ? "ENOTEMPTY"
            : undefined
  if (code !== undefined) throw Object.assign(new Error(), { code })
}

/** Unpacks an archive into a new directory. */
const unpack = <E>(archive: Stream.Stream<Uint8Array, E>, draft: Buffer, bounds: Bounds) =>
  Effect.andThen(
    attempt(draft, () => fs.mkdir(draft, 0o700)),
    extract(archive, draft, bounds)
  )

/** Writes a new file. */
const save = Effect.fnUntraced(function* <E>(
  bytes: Stream.Stream<Uint8Array, E>,
  draft: Buffer,
  info: Files.FileInfo,
  maxBytes: number
) {
  if (info.size > maxBytes) return yield* new Excess({ allowed: maxBytes, unit: "bytes" })
  const handle = yield* Effect.acquireRelease(
    attempt(draft, () => fs.open(draft, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, 0o600)),
    (it) => Effect.promise(() => it.close())
  )
  let total = 0
  yield* Stream.runForEach(bytes, (chunk): Effect.Effect<void, HostFailed | Excess> => {
    total += chunk.length
    if (total > maxBytes) return Effect.fail(new Excess({ allowed: maxBytes, unit: "bytes" }))
    return attempt(draft, () => handle.writeFile(chunk))
  })
  const mtime = info.modified / 1000
  yield* attempt(draft, async () => {
    await handle.chmod(info.mode & 0o777)
    await handle.utimes(mtime, mtime)
  })
  return { entries: 1, bytes: total, skipped: 0 }
}, Effect.scoped)

/** Makes `copyIn` and `copyOut` of a session. */
export const make = (client: Client, files: Pick<Files.Files, "stat">): Pick<Files.Files, "copyIn" | "copyOut"> => {
  const copyIn: Files.Files["copyIn"] = Effect.fn("Files.copyIn")(function* (hostPath, guestPath, given = {}) {
    const options = { ...(yield* decodeOptions(given)), createParents: true }
    yield* decodePath(hostPath)
    const source = yield* Effect.mapError(
      attempt(FileName.toBytes(hostPath) ?? Buffer.from(hostPath), () =>
        fs.realpath(FileName.toBytes(hostPath) ?? hostPath, { encoding: "buffer" })
      ),
      onHost("copyIn")
    )
    const stats = yield* Effect.mapError(
      attempt(source, () => fs.stat(source)),
      onHost("copyIn")
    )
    if (!stats.isDirectory() && !stats.isFile()) {
      const type = stats.isFIFO() ? "fifo" : stats.isSocket() ? "socket" : "character-device"
      return yield* new Files.FileError({
        operation: "copyIn",
        path: hostPath,
        side: "host",
        reason: { _tag: "NotAFile", type }
      })
    }
    const call = { operation: "copyIn", path: guestPath } as const
    if (stats.isFile()) {
      const modified = Math.max(0, Math.floor(stats.mtimeMs))
      const fields = { ...options, mode: stats.mode & 0o777, modified }
      const answer = yield* client.open({ ...call, method: Methods.fileWrite, fields })
      yield* deliver(answer, Stream.mapError(content(source, stats.size), onHost("copyIn")))
      return { entries: 1, bytes: stats.size, skipped: 0 }
    }
    const count: Count = { entries: 0, bytes: 0, skipped: 0 }
    const answer = yield* client.open({ ...call, method: Methods.treeWrite, fields: options })
    const archive = tree(source, count).pipe(
      Stream.pipeThroughChannelOrFail(Tar.encode<HostFailed, unknown, Tar.Entry<HostFailed>>()),
      Stream.mapError((error) =>
        error instanceof HostFailed ? onHost("copyIn")(error) : ofHost("copyIn", hostPath, error)
      )
    )
    yield* deliver(answer, archive)
    return count
  }, Effect.scoped)

  const copyOut: Files.Files["copyOut"] = Effect.fn("Files.copyOut")(function* (guestPath, hostPath, given = {}) {
    const { user, ...limits } = yield* decodeCopyOut(given)
    const fields = user === undefined ? {} : { user }
    const bounds = { ...defaultBounds, ...limits }
    yield* decodePath(hostPath)
    const target = resolve(hostPath)
    const failed = (error: HostFailed | Unsafe | Excess): Files.FileError =>
      error._tag === "HostFailed"
        ? // The caller does not know the draft's path.
          ofHost("copyOut", hostPath, error.error)
        : new Files.FileError({
            operation: "copyOut",
            path: guestPath,
            side: "guest",
            reason:
              error._tag === "Unsafe"
                ? { _tag: "Unsafe", entry: error.entry, problem: error.problem }
                : { _tag: "TooLarge", allowed: error.allowed, observed: null, unit: error.unit }
          })
    const call = { operation: "copyOut", path: guestPath, fields } as const
    const info = yield* Effect.mapError(files.stat(guestPath, fields), (error) =>
      error._tag === "FileError" ? new Files.FileError({ ...error, operation: "copyOut" }) : error
    )
    yield* Effect.mapError(
      attempt(Buffer.from(target), () => checkTarget(target, info.type === "directory")),
      failed
    )
    const draft = yield* draftOf(target)
    let skipped = 0
    const copied =
      info.type === "directory"
        ? unpack(
            bytesOf(client, { ...call, method: Methods.treeRead }, (end) => (skipped = end.skipped)),
            draft,
            bounds
          )
        : save(bytesOf(client, { ...call, method: Methods.fileRead }), draft, info, bounds.maxBytes)
    const count = yield* Effect.catchTag(copied, ["HostFailed", "Unsafe", "Excess"], (error) =>
      Effect.fail(failed(error))
    )
    yield* Effect.mapError(
      attempt(draft, () => fs.rename(draft, target)),
      failed
    )
    return { ...count, skipped: count.skipped + skipped }
  }, Effect.scoped)

  return { copyIn, copyOut }
}
