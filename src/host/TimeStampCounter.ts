/** The frequency of this host's time stamp counter. */
import * as Effect from "effect/Effect"
import { closeSync, openSync, readSync } from "node:fs"

/** The first 4 KiB of a file, `null` when it cannot be read. /proc/cpuinfo costs time per core, and one core is enough. */
const head = (path: string): string | null => {
  try {
    const descriptor = openSync(path, "r")
    try {
      const bytes = Buffer.alloc(4096)
      return bytes.toString("latin1", 0, readSync(descriptor, bytes))
    } finally {
      closeSync(descriptor)
    }
  } catch {
    return null
  }
}

/**
 * From what the kernel shows, in kHz, or `null`. `baseFrequency` is intel_pstate's (kHz): where clocks scale, "cpu MHz"
 * is the clock of this moment, while the counter runs at the base frequency. Virtual machines have no scaling, and there
 * "cpu MHz" is the counter's own frequency.
 */
export const parseTscKhz = (cpuinfo: string | null, baseFrequency: string | null): number | null => {
  const base = Number(baseFrequency ?? Number.NaN)
  if (Number.isInteger(base) && base > 0) return base
  const megahertz = Number(/^cpu MHz\s*:\s*([0-9.]+)$/m.exec(cpuinfo ?? "")?.[1] ?? Number.NaN)
  return megahertz > 0 ? Math.round(megahertz * 1000) : null
}

/** This host's value. */
export const tscKhz: Effect.Effect<number | null> = Effect.sync(() =>
  process.platform === "linux"
    ? parseTscKhz(head("/proc/cpuinfo"), head("/sys/devices/system/cpu/cpu0/cpufreq/base_frequency"))
    : null
)
