/**
 * Names of temporary files. Each contains the process that made it, so that files of dead processes can be found and removed.
 */
import { randomBytes } from "node:crypto"
import * as fs from "node:fs"
import * as path from "node:path"

/** What temporary files are for. */
type Purpose = "building" | "removed" | "clone" | "seal" | "parked"

let space: string | undefined

/** The namespace of this process's id: containers that share a directory have their own ids. */
const processSpace = (): string => {
  if (space !== undefined) return space
  try {
    space = /\d+/.exec(fs.readlinkSync("/proc/self/ns/pid"))?.[0] ?? "0"
  } catch {
    space = "0"
  }
  return space
}

/** A new name. It begins with a dot, so that listings of complete files skip it. */
export const temporaryName = (purpose: Purpose): string =>
  `.${purpose}-${process.pid}-${processSpace()}-${randomBytes(6).toString("hex")}`

const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return error instanceof Error && "code" in error && error.code === "EPERM"
  }
}

/** Whether a name is that of a temporary file whose process is dead. Those of other containers cannot be checked. */
export const isStale = (name: string): boolean => {
  const [, owner, where] = /^\.(?:building|removed|clone|seal|parked)-(\d+)-(\d+)-/.exec(name) ?? []
  return owner !== undefined && where === processSpace() && !isAlive(Number(owner))
}

/** Removes the temporary files of dead processes from a directory, as far as possible. */
export const sweep = (directory: string): void => {
  try {
    for (const name of fs.readdirSync(directory).filter(isStale)) {
      fs.rmSync(path.join(directory, name), { recursive: true, force: true })
    }
  } catch {
    // There is no such directory yet, or another process sweeps it at the same time.
  }
}
