/** Which QEMUs and other processes are alive on this host, to find leaks. */
import * as fs from "node:fs"

const read = (file: string): string => {
  try {
    return fs.readFileSync(file, "utf8")
  } catch {
    return ""
  }
}

/** The process ids of the live QEMUs that `parent` started, by default this process. */
export const qemus = (parent: number = process.pid): ReadonlyArray<number> =>
  fs.readdirSync("/proc").flatMap((name) => {
    if (!/^\d+$/.test(name)) return []
    const stat = /\((.*)\) (\S) (\d+)/.exec(read(`/proc/${name}/stat`))
    return stat?.[1]?.startsWith("qemu-system") && stat[2] !== "Z" && Number(stat[3]) === parent ? [Number(name)] : []
  })

/** Whether the process exists. */
export const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
