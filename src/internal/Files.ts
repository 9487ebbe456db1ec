/** Helpers for files. */
import { createHash } from "node:crypto"
import { accessSync, type BigIntStats, constants, mkdirSync, statSync } from "node:fs"
import { dirname, isAbsolute, join } from "node:path"

/** The errno's name of a failed system call (`ENOTDIR`), else the error as text. */
export const errorCode = (error: unknown): string =>
  error instanceof Error && "code" in error && typeof error.code === "string" ? error.code : String(error)

/** The file's status, symbolic links followed; `null` when there is none or it cannot be reached. */
export const statOrNull = (path: string): BigIntStats | null => {
  try {
    return statSync(path, { bigint: true, throwIfNoEntry: false }) ?? null
  } catch {
    return null
  }
}

/**
 * Makes a directory with its parents, unless it exists. Throws the system's error. Node's own recursive `mkdir` never returns
 * on a file system that always answers ENOENT, such as /proc.
 */
export const makeDirectory = (path: string, mode: number): void => {
  if (statOrNull(path)?.isDirectory() === true) return
  const make = (): void => {
    try {
      mkdirSync(path, { mode })
    } catch (error) {
      // Another process may have made it meanwhile.
      if (errorCode(error) !== "EEXIST" || statOrNull(path)?.isDirectory() !== true) throw error
    }
  }
  try {
    make()
  } catch (error) {
    if (errorCode(error) !== "ENOENT" || dirname(path) === path) throw error
    makeDirectory(dirname(path), mode)
    make()
  }
}

/** Whether `path` is a regular file that we may execute. */
export const isExecutable = (path: string): boolean => {
  if (statOrNull(path)?.isFile() !== true) return false
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

/**
 * The first executable called `name` in `directories`, `null` when there is none. Relative and empty entries of a PATH are
 * skipped: the current directory may hold anything.
 */
export const findExecutable = (name: string, directories: ReadonlyArray<string>): string | null => {
  for (const directory of directories) {
    if (!isAbsolute(directory)) continue
    const path = join(directory, name)
    if (isExecutable(path)) return path
  }
  return null
}

/** SHA-256, in hex, over the JSON of `parts`. */
export const fingerprint = (parts: ReadonlyArray<unknown>): string =>
  createHash("sha256").update(JSON.stringify(parts)).digest("hex")
