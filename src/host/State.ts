/** What a probe's result depends on in addition to the probed program. */
import { readFileSync } from "node:fs"
import { release } from "node:os"
import { statOrNull } from "../internal/Files.ts"

/** Raise it when a record's meaning changes: older records are then not found. */
const format = 1

/** Access to /dev/kvm as the kernel sees it now; `null` without the device. */
export const kvmDevice = (): { readonly mode: number; readonly uid: number; readonly gid: number } | null => {
  const stat = statOrNull("/dev/kvm")
  return stat?.isCharacterDevice() === true
    ? { mode: Number(stat.mode & 0o777n), uid: Number(stat.uid), gid: Number(stat.gid) }
    : null
}

/** Another boot may have another kernel, module or firmware setting. */
const bootId = (): string => {
  try {
    return readFileSync("/proc/sys/kernel/random/boot_id", "latin1").trim()
  } catch {
    return ""
  }
}

/** The parts of a record's key that describe the host and the user. */
export const hostState = (): ReadonlyArray<unknown> => [
  format,
  process.platform,
  process.arch,
  release(),
  bootId(),
  process.geteuid?.(),
  process.getegid?.(),
  process.getgroups?.(),
  kvmDevice()
]

/** The parts of a record's key that describe a program. */
export const programState = (path: string): ReadonlyArray<unknown> => {
  const stat = statOrNull(path)
  return [path, String(stat?.size), String(stat?.mtimeNs), String(stat?.ctimeNs)]
}
