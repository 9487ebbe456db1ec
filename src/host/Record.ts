/**
 * The results of probes on disk: `<cache>/host/<key>.json`, one small file per key.
 *
 * A record holds results, never a path or a command line, so that a forged one cannot choose what is run. One that is
 * damaged, not ours or writable by others counts as absent.
 */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { randomUUID } from "node:crypto"
import { closeSync, constants, fstatSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { makeDirectory } from "../internal/Files.ts"
import type { SandboxError } from "../SandboxError.ts"
import { cacheDirectoryUnusable } from "./CacheDirectory.ts"

const sizeLimit = 64 * 1024

/** Reads the record under `key` and decodes its text. */
export const readRecord = <A>(
  directory: string,
  key: string,
  decode: (text: string) => Option.Option<A>
): Effect.Effect<Option.Option<A>> =>
  Effect.sync(() => {
    const text = readOwnFile(join(directory, "host", `${key}.json`))
    return text === null ? Option.none() : decode(text)
  })

const readOwnFile = (path: string): string | null => {
  let descriptor: number
  try {
    descriptor = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK)
  } catch {
    return null
  }
  try {
    const stat = fstatSync(descriptor)
    const ours = stat.isFile() && stat.uid === process.geteuid?.() && (stat.mode & 0o022) === 0
    return ours && stat.size <= sizeLimit ? readFileSync(descriptor, "utf8") : null
  } catch {
    return null
  } finally {
    closeSync(descriptor)
  }
}

/** Writes the record under `key` atomically. Fails with `HostUnsupported`, requirement `cache directory`. */
export const writeRecord = (directory: string, key: string, record: unknown): Effect.Effect<void, SandboxError> =>
  Effect.try({
    try: () => {
      makeDirectory(join(directory, "host"), 0o700)
      const path = join(directory, "host", `${key}.json`)
      const temporary = `${path}.${randomUUID()}.tmp`
      try {
        writeFileSync(temporary, JSON.stringify(record), { mode: 0o600 })
        renameSync(temporary, path)
      } catch (error) {
        rmSync(temporary, { force: true })
        throw error
      }
    },
    catch: (error) => cacheDirectoryUnusable(directory, error)
  })
