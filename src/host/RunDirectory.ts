/** The run directory: sockets and device states of machines, there only while such a machine is being saved. */
import * as Effect from "effect/Effect"
import { accessSync, chmodSync, constants, lstatSync, mkdirSync } from "node:fs"
import { tmpdir } from "node:os"
import { dirname, join, resolve } from "node:path"
import { fail, HostUnsupported, type SandboxError } from "../SandboxError.ts"
import { variable } from "../internal/Environment.ts"
import { errorCode, makeDirectory, statOrNull } from "../internal/Files.ts"

const isWritableDirectory = (path: string, owner: number): boolean => {
  const stat = statOrNull(path)
  if (stat === null || !stat.isDirectory() || Number(stat.uid) !== owner) return false
  try {
    accessSync(path, constants.W_OK | constants.X_OK)
    return true
  } catch {
    return false
  }
}

/**
 * `EXEC_SANDBOX_RUN_DIR`, else on Linux `/run/exec-sandbox` for root and `$XDG_RUNTIME_DIR/exec-sandbox` for others, else
 * `exec-sandbox-<uid>` in `TMPDIR` or the system's temporary directory. Always absolute. Nothing is created.
 */
export const runDirectory = (uid: number): Effect.Effect<string> =>
  Effect.gen(function* () {
    const chosen = yield* variable("EXEC_SANDBOX_RUN_DIR")
    if (chosen !== undefined) return resolve(chosen)
    if (process.platform === "linux") {
      const base = uid === 0 ? "/run" : yield* variable("XDG_RUNTIME_DIR")
      if (base !== undefined && isWritableDirectory(base, uid)) return join(base, "exec-sandbox")
    }
    const temporary = (yield* variable("TMPDIR")) ?? tmpdir()
    return join(resolve(temporary), `exec-sandbox-${uid}`)
  })

/**
 * Creates `directory` unless it exists: 0711 for root, whose QEMU runs as another user, else 0700. One that exists must
 * be a real directory that we own and others cannot write to: everyone can create names in `/tmp`, and a directory that
 * was planted there must not be used. Fails with `HostUnsupported`, requirement `run directory`.
 */
export const ensureRunDirectory = (directory: string, uid: number): Effect.Effect<void, SandboxError> => {
  const unusable = (problem: string) =>
    fail(
      new HostUnsupported({
        requirement: "run directory",
        found: `${directory} (${problem})`,
        needed: `a directory that uid ${uid} owns and only it can write to`,
        fix: `remove ${directory}, or set EXEC_SANDBOX_RUN_DIR to such a directory`
      })
    )
  return Effect.try({
    try: (): string | null => {
      const before = lstatSync(directory, { throwIfNoEntry: false })
      if (before === undefined) {
        makeDirectory(dirname(directory), 0o700)
        try {
          mkdirSync(directory, { mode: 0o700 })
          // The umask may have taken bits away.
          chmodSync(directory, uid === 0 ? 0o711 : 0o700)
        } catch (error) {
          // Another process of ours may have made it; it is checked like any other below.
          if (errorCode(error) !== "EEXIST") throw error
        }
      }
      const stat = lstatSync(directory)
      if (stat.isSymbolicLink()) return "a symbolic link"
      if (!stat.isDirectory()) return "not a directory"
      if (stat.uid !== uid) return `owned by uid ${stat.uid}`
      if ((stat.mode & 0o022) !== 0) return `mode ${(stat.mode & 0o777).toString(8)}`
      accessSync(directory, constants.R_OK | constants.W_OK | constants.X_OK)
      return null
    },
    catch: (error) => unusable(errorCode(error))
  }).pipe(Effect.flatMap((problem) => (problem === null ? Effect.void : Effect.fail(unusable(problem)))))
}
