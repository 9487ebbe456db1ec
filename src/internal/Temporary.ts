/**
 * Names of files that exist only while something is made. Each says which process made it, so that what a killed process
 * left behind can be told from what is in use, and swept.
 */
import { randomBytes } from "node:crypto"
import * as fs from "node:fs"
import * as path from "node:path"

/** What temporary files are for. */
type Purpose = "building" | "removed" | "clone" | "seal" | "parked"

let space: string | undefined

/** Where this process's id means something: containers that share a directory count their processes each for itself. */
const processSpace = (): string => {
  if (space !== undefined) return space
  try {
    space = /\d+/.exec(fs.readlinkSync("/proc/self/ns/pid"))?.[0] ?? "0"
  } catch {
    space = "0"
  }
  return space
}

/** A new name, hidden from listings of what is whole. */
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

/** Whether a name is that of something temporary whose maker is gone. Of another container's processes nothing is known. */
export const isStale = (name: string): boolean => {
  const [, owner, where] = /^\.(?:building|removed|clone|seal|parked)-(\d+)-(\d+)-/.exec(name) ?? []
  return owner !== undefined && where === processSpace() && !isAlive(Number(owner))
}

/** Removes what killed processes have left in a directory. What cannot be removed stays for the next who tries. */
export const sweep = (directory: string): void => {
  try {
    for (const name of fs.readdirSync(directory).filter(isStale)) {
      fs.rmSync(path.join(directory, name), { recursive: true, force: true })
    }
  } catch {
    // There is no such directory yet, or somebody else sweeps it in this moment.
  }
}
