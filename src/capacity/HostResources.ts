/** What the kernel reports as available for VMs: memory, cores and memory pressure, within this process's cgroups. */
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"

/**
 * Memory in MiB. `totalMemoryMiB` is the most there can be, `freeMemoryMiB` what is available now without swapping, `cores` may
 * be a fraction (a cgroup's quota), `memoryPressure` is the percentage of the last ten seconds in which every task waited for
 * memory, `null` where the kernel does not report it.
 */
export interface HostResources {
  readonly totalMemoryMiB: number
  readonly freeMemoryMiB: number
  readonly cores: number
  readonly memoryPressure: number | null
}

const mebibyte = 1024 * 1024

const readText = (file: string): string | undefined => {
  try {
    return fs.readFileSync(file, "latin1")
  } catch {
    return undefined
  }
}

/** The number in a file; `undefined` if the file is missing or contains `max`. */
const readNumber = (file: string): number | undefined => {
  const value = Number(readText(file)?.trim() || "NaN")
  return Number.isFinite(value) ? value : undefined
}

const field = (text: string | undefined, pattern: RegExp): number | undefined => {
  const found = text === undefined ? undefined : pattern.exec(text)?.[1]
  return found === undefined ? undefined : Number(found)
}

/** A directory and its parents up to `top`, because a cgroup's limit applies to everything below. */
const upwards = (top: string, below: string): ReadonlyArray<string> => {
  const found = [top]
  let directory = top
  for (const part of below.split("/").filter((it) => it !== "" && it !== "..")) {
    directory = path.join(directory, part)
    // Inside a container the path may be the host's, and only its end is mounted here.
    if (fs.existsSync(directory)) found.push(directory)
  }
  return found
}

interface Group {
  readonly limit: number
  readonly free: number
}

/** The bytes that a cgroup may still use. Its page cache counts as free, as in MemAvailable. */
const memoryOf = (directory: string, version: 1 | 2): Group | undefined => {
  const [max, current] = version === 2 ? ["max", "current"] : ["limit_in_bytes", "usage_in_bytes"]
  const limit = readNumber(path.join(directory, `memory.${max}`))
  const used = readNumber(path.join(directory, `memory.${current}`))
  if (limit === undefined || used === undefined || limit >= 2 ** 60) return undefined
  const stat = readText(path.join(directory, "memory.stat"))
  const prefix = version === 2 ? "" : "total_"
  const cache =
    (field(stat, new RegExp(`^${prefix}inactive_file (\\d+)$`, "m")) ?? 0) +
    (field(stat, new RegExp(`^${prefix}active_file (\\d+)$`, "m")) ?? 0)
  return { limit, free: Math.max(0, limit - used + Math.min(cache, used)) }
}

const coresOf = (directory: string, version: 1 | 2): number | undefined => {
  if (version === 2) {
    const found = /^(\d+) (\d+)/.exec(readText(path.join(directory, "cpu.max")) ?? "")
    return found === null ? undefined : Number(found[1]) / Number(found[2])
  }
  const quota = readNumber(path.join(directory, "cpu.cfs_quota_us"))
  const period = readNumber(path.join(directory, "cpu.cfs_period_us"))
  return quota === undefined || period === undefined || quota <= 0 ? undefined : quota / period
}

/** Where this process's cgroups with this controller are mounted; version 2 is the unified hierarchy. */
const directoriesOf = (
  root: string,
  controller: string
): ReadonlyArray<readonly [directory: string, version: 1 | 2]> => {
  const lines = (readText(path.join(root, "proc/self/cgroup")) ?? "").split("\n")
  const found: Array<readonly [string, 1 | 2]> = []
  for (const line of lines) {
    const [, controllers, below = "/"] = /^\d+:([^:]*):(.*)$/.exec(line) ?? []
    if (controllers === undefined) continue
    const mount = path.join(root, "sys/fs/cgroup")
    if (controllers === "") {
      for (const it of upwards(mount, below)) found.push([it, 2])
    } else if (controllers.split(",").includes(controller)) {
      for (const it of upwards(path.join(mount, controllers), below)) found.push([it, 1])
      if (controllers !== controller) for (const it of upwards(path.join(mount, controller), below)) found.push([it, 1])
    }
  }
  return found
}

/**
 * Linux reports how much memory is available without swapping. Elsewhere only unused pages are counted (macOS keeps few of
 * them), so a quarter of the memory is assumed to become free by dropping caches and compressing.
 */
const memoryOfHost = (root: string): Group => {
  const meminfo = readText(path.join(root, "proc/meminfo"))
  const available = field(meminfo, /^MemAvailable:\s*(\d+) kB$/m)
  const total = field(meminfo, /^MemTotal:\s*(\d+) kB$/m)
  if (available !== undefined && total !== undefined) return { limit: total * 1024, free: available * 1024 }
  return { limit: os.totalmem(), free: Math.max(os.freemem(), os.totalmem() / 4) }
}

/** Reads all of it; `root` is where the host's file system begins. */
export const readHostResources = (root = "/"): HostResources => {
  const groups = directoriesOf(root, "memory").flatMap(([directory, version]) => memoryOf(directory, version) ?? [])
  const memory = [memoryOfHost(root), ...groups]
  const quotas = directoriesOf(root, "cpu").flatMap(([directory, version]) => coresOf(directory, version) ?? [])
  const pressure = readText(path.join(root, "proc/pressure/memory"))
  return {
    totalMemoryMiB: Math.floor(Math.min(...memory.map((it) => it.limit)) / mebibyte),
    freeMemoryMiB: Math.floor(Math.min(...memory.map((it) => it.free)) / mebibyte),
    cores: Math.min(os.availableParallelism(), ...quotas),
    memoryPressure: field(pressure, /^full avg10=(\d+(?:\.\d+)?)/m) ?? null
  }
}

/** The memory that a process has touched, in MiB; 0 if unknown, which reserves too much rather than too little. */
export const privateMemoryMiB = (pid: number): number =>
  Math.floor((field(readText(`/proc/${pid}/status`), /^RssAnon:\s*(\d+) kB$/m) ?? 0) / 1024)

/** How many times a process's main thread has slept; `undefined` if unknown. */
export const wakeUps = (pid: number): number | undefined =>
  field(readText(`/proc/${pid}/status`), /^voluntary_ctxt_switches:\s*(\d+)$/m)
