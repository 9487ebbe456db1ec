/** The directory that keeps images, templates and the results of probes between runs. */
import * as Effect from "effect/Effect"
import { accessSync, constants } from "node:fs"
import { homedir } from "node:os"
import { isAbsolute, join, resolve } from "node:path"
import { fail, HostUnsupported, type SandboxError } from "../SandboxError.ts"
import { variable } from "../internal/Environment.ts"
import { errorCode, makeDirectory } from "../internal/Files.ts"

/**
 * `EXEC_SANDBOX_CACHE_DIR`, else `$XDG_CACHE_HOME/exec-sandbox`, else `~/.cache/exec-sandbox` (macOS:
 * `~/Library/Caches/exec-sandbox`). Always absolute. Nothing is created.
 */
export const cacheDirectory: Effect.Effect<string> = Effect.gen(function* () {
  const chosen = yield* variable("EXEC_SANDBOX_CACHE_DIR")
  if (chosen !== undefined) return resolve(chosen)
  const xdg = yield* variable("XDG_CACHE_HOME")
  // The XDG specification: a relative path is invalid and must be ignored.
  if (xdg !== undefined && isAbsolute(xdg)) return join(xdg, "exec-sandbox")
  const home = (yield* variable("HOME")) ?? homedir()
  return process.platform === "darwin"
    ? join(home, "Library", "Caches", "exec-sandbox")
    : join(home, ".cache", "exec-sandbox")
})

/**
 * Creates `directory` (0700, parents too) unless it exists, and makes sure that we may write there.
 * Fails with `HostUnsupported`, requirement `cache directory`.
 */
export const ensureCacheDirectory = (directory: string): Effect.Effect<void, SandboxError> =>
  Effect.try({
    try: () => {
      makeDirectory(directory, 0o700)
      accessSync(directory, constants.R_OK | constants.W_OK | constants.X_OK)
    },
    catch: (error) => cacheDirectoryUnusable(directory, error)
  })

/** The typed error for a cache directory that cannot be used. */
export const cacheDirectoryUnusable = (directory: string, error: unknown): SandboxError =>
  fail(
    new HostUnsupported({
      requirement: "cache directory",
      found: `${directory} (${errorCode(error)})`,
      needed: "a directory this user can read and write",
      fix: "set EXEC_SANDBOX_CACHE_DIR to such a directory"
    })
  )
