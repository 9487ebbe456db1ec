/**
 * Names of files that exist only while something is made. Each says which process made it, so that what a killed process
 * left behind can be told from what is in use, and swept.
 */
import { randomBytes } from "node:crypto"

/** What temporary files are for. */
type Purpose = "building" | "removed" | "clone" | "seal"

/** A new name, hidden from listings of what is whole. */
export const temporaryName = (purpose: Purpose): string =>
  `.${purpose}-${process.pid}-${randomBytes(6).toString("hex")}`

const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return error instanceof Error && "code" in error && error.code === "EPERM"
  }
}

/** Whether a name is that of something temporary whose maker is gone. */
export const isStale = (name: string): boolean => {
  const owner = /^\.(?:building|removed|clone|seal)-(\d+)-/.exec(name)?.[1]
  return owner !== undefined && !isAlive(Number(owner))
}
