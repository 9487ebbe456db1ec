/**
 * Reads and writes the pages of a paused machine's memory that are its own and not its template's.
 *
 * A clone maps its template's memory privately, so a page becomes its own when it is first written. Linux reports which
 * pages those are (`/proc/PID/pagemap`) and lets the process that started QEMU read them (`/proc/PID/mem`). They are few, and
 * are read while the guest is paused. The alternative, QEMU's migration of a running guest, takes several times as long, and
 * under emulation (QEMU 7.2, busy host) a guest copied that way once had a broken list in its kernel.
 */
import * as fs from "node:fs"
import { promisify } from "node:util"

/** A piece of the memory; `at` is its offset in the memory file. */
export interface Piece {
  readonly at: number
  readonly bytes: Buffer
}

/** The own pages of one machine. */
export interface OwnPages {
  /**
   * Returns the pages and how many bytes they are. Pages that do not fit into the buffer allocated before are passed to
   * `write` at once instead; `bytes` includes them. Must have ended before `close`.
   */
  readonly read: (
    write: (piece: Piece) => void
  ) => Promise<{ readonly bytes: number; readonly pieces: ReadonlyArray<Piece> }>
  readonly close: () => void
}

const pageSize = 4096
/** Bytes per read, and reads at the same time: the host's cores are free while the machine is paused. */
const atMost = 1024 * 1024
const atOnce = 4
/** Up to this many pages between two own ones are read with them, because a second system call costs more. */
const gap = 4
const entrySize = 8
/** The buffer's size in bytes: the own pages before the pause, a quarter more, and this; at most `maxRoom`. */
const slack = 8 * 1024 * 1024
const maxRoom = 256 * 1024 * 1024

/** A part of the memory file, by offset and size in bytes, and its address in QEMU's memory. */
interface Mapping {
  readonly address: number
  readonly offset: number
  readonly size: number
}

/** Where a process maps a file. The file is found by its name, which `/proc` shows alike in both places, even if removed. */
const mappingsOf = (pid: number, file: number): ReadonlyArray<Mapping> => {
  const name = fs.readlinkSync(`/proc/self/fd/${file}`)
  const found: Array<Mapping> = []
  for (const line of fs.readFileSync(`/proc/${pid}/maps`, "utf8").split("\n")) {
    const fields = /^([0-9a-f]+)-([0-9a-f]+) ...p ([0-9a-f]+) \S+ \d+ +(.*)$/.exec(line)
    if (fields === null || fields[4] !== name) continue
    const [, from = "", to = "", offset = ""] = fields
    const address = Number.parseInt(from, 16)
    found.push({ address, offset: Number.parseInt(offset, 16), size: Number.parseInt(to, 16) - address })
  }
  return found
}

const readAll = (fd: number, into: Buffer, position: number): void => {
  for (let got = 0; got < into.length;) {
    const size = fs.readSync(fd, into, got, into.length - got, position + got)
    if (size === 0) throw new Error("QEMU's memory cannot be read completely")
    got += size
  }
}

const readSome = promisify(fs.read)

/** A run of pages to read: its address in QEMU's memory and its offset in the memory file. */
interface Run {
  readonly address: number
  readonly at: number
  readonly size: number
}

const bytesOf = (list: ReadonlyArray<Run>): number => list.reduce((sum, it) => sum + it.size, 0)

/** All private mappings of a file of that size in a process; throws unless they cover the whole file. */
const wholeOf = (pid: number, file: number, size: number): ReadonlyArray<Mapping> => {
  if (process.platform !== "linux") throw new Error("only Linux reports which pages of a process are its own")
  const mappings = mappingsOf(pid, file)
  const mapped = mappings.reduce((sum, it) => sum + it.size, 0)
  if (mapped !== size) throw new Error(`QEMU maps ${mapped} of its memory's ${size} bytes`)
  return mappings
}

/**
 * Writes pages to the memory of a paused process, in place of the file's; `file` and `size` as in `openOwnPages`. `next`
 * returns one piece after the other, and `undefined` after the last.
 */
export const writeOwnPages = async (
  pid: number,
  file: number,
  size: number,
  next: () => Promise<Piece | undefined>
): Promise<void> => {
  const mappings = wholeOf(pid, file, size)
  const memory = await fs.promises.open(`/proc/${pid}/mem`, "r+")
  try {
    for (let piece = await next(); piece !== undefined; piece = await next()) {
      const { at, bytes } = piece
      for (let put = 0; put < bytes.length;) {
        const offset = at + put
        const mapping = mappings.find((it) => it.offset <= offset && offset < it.offset + it.size)
        if (mapping === undefined) throw new Error("a piece is outside QEMU's memory")
        const inside = offset - mapping.offset
        const size = Math.min(bytes.length - put, mapping.size - inside)
        const { bytesWritten } = await memory.write(bytes, put, size, mapping.address + inside)
        if (bytesWritten === 0) throw new Error("QEMU's memory cannot be written completely")
        put += bytesWritten
      }
    }
  } finally {
    await memory.close()
  }
}

/**
 * Opens the memory of a child process that maps `file` (`size` bytes) privately. Throws on systems other than Linux, and
 * without the right to read the process's memory. Allocates a buffer of at most `most` bytes; with 0, every piece goes to
 * `write` when it is read.
 */
export const openOwnPages = (pid: number, file: number, size: number, most = maxRoom): OwnPages => {
  const mappings = wholeOf(pid, file, size)
  const pagemap = fs.openSync(`/proc/${pid}/pagemap`, "r")
  let memory: number
  try {
    memory = fs.openSync(`/proc/${pid}/mem`, "r")
  } catch (error) {
    fs.closeSync(pagemap)
    throw error
  }
  const entries = Buffer.alloc((Math.max(...mappings.map((it) => it.size)) / pageSize) * entrySize)

  const runsOf = ({ address, offset, size: length }: Mapping): ReadonlyArray<Run> => {
    const pages = length / pageSize
    const table = entries.subarray(0, pages * entrySize)
    readAll(pagemap, table, (address / pageSize) * entrySize)
    const words = new Uint32Array(table.buffer, table.byteOffset, pages * 2)
    // Bit 63: present, 62: swapped out, 61: belongs to a file. A page that was written no longer belongs to the file.
    const isOwn = (page: number): boolean => {
      const flags = (words[2 * page + 1] ?? 0) >>> 29
      return flags === 0b100 || (flags & 0b010) !== 0
    }
    const runs: Array<Run> = []
    for (let page = 0; page < pages;) {
      if (!isOwn(page)) {
        page++
        continue
      }
      let end = page + 1
      for (let next = end; next < pages && next - end <= gap && next - page < atMost / pageSize; next++) {
        if (isOwn(next)) end = next + 1
      }
      runs.push({ address: address + page * pageSize, at: offset + page * pageSize, size: (end - page) * pageSize })
      page = end
    }
    return runs
  }
  const runs = (): ReadonlyArray<Run> => mappings.flatMap(runsOf)

  // Filled, so that the kernel allocates its pages now and not while the machine is paused.
  const room = Buffer.alloc(Math.min(most, Math.ceil(bytesOf(runs()) * 1.25) + slack), 1)

  return {
    read: async (write) => {
      const all = runs()
      const pieces: Array<Piece> = []
      let used = 0
      let next = 0
      const reader = async (): Promise<void> => {
        for (let run = all[next++]; run !== undefined; run = all[next++]) {
          const fits = used + run.size <= room.length
          const bytes = fits ? room.subarray(used, used + run.size) : Buffer.alloc(run.size)
          if (fits) used += run.size
          for (let got = 0; got < run.size;) {
            const { bytesRead } = await readSome(memory, bytes, got, run.size - got, run.address + got)
            if (bytesRead === 0) throw new Error("QEMU's memory cannot be read completely")
            got += bytesRead
          }
          if (fits) pieces.push({ at: run.at, bytes })
          else write({ at: run.at, bytes })
        }
      }
      const ends = await Promise.allSettled(Array.from({ length: atOnce }, reader))
      for (const end of ends) if (end.status === "rejected") throw end.reason
      return { bytes: bytesOf(all), pieces }
    },
    close: () => {
      fs.closeSync(pagemap)
      fs.closeSync(memory)
    }
  }
}
