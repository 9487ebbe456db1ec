/**
 * The files that a kernel boots with, made from Debian's: an ELF kernel out of a bzImage, modules in load order, an
 * initramfs archive. Pure functions over bytes.
 */
import { zstdDecompressSync, gunzipSync } from "node:zlib"

/** CPU architecture of an image, by Debian's names. */
export type Arch = "amd64" | "arm64"

/** The bytes do not have the expected format. */
export class BootFileError extends Error {
  override readonly name = "BootFileError"
}

/**
 * The kernel in the form that QEMU starts without any work in the guest. amd64: the ELF inside a bzImage, which QEMU boots by PVH
 * (decompressing it under emulation would take seconds). arm64: the raw Image.
 *
 * The bzImage's setup header (Documentation/arch/x86/boot.rst) says where the payload is: `setup_sects` at 0x1f1,
 * `payload_offset` at 0x248 and `payload_length` at 0x24c; the last 4 bytes of a payload are its unpacked size.
 *
 * @throws BootFileError for anything else than a bzImage with zstd or gzip payload, or an arm64 Image (plain or gzip).
 */
export const unpackKernel = (file: Buffer, arch: Arch): Buffer => {
  if (arch === "arm64") {
    const image = file.readUInt16BE(0) === 0x1f8b ? gunzipSync(file) : file
    if (image.toString("latin1", 0x38, 0x3c) !== "ARM\x64") throw new BootFileError("not an arm64 kernel Image")
    return image
  }
  if (file.length < 0x250 || file.toString("latin1", 0x202, 0x206) !== "HdrS")
    throw new BootFileError("not an x86 bzImage")
  const offset = ((file[0x1f1] || 4) + 1) * 512 + file.readUInt32LE(0x248)
  const payload = file.subarray(offset, offset + file.readUInt32LE(0x24c) - 4)
  const magic = payload.toString("hex", 0, 4)
  const kernel =
    magic === "28b52ffd" ? zstdDecompressSync(payload) : magic.startsWith("1f8b") ? gunzipSync(payload) : undefined
  if (kernel === undefined) throw new BootFileError(`unknown kernel compression (payload starts with ${magic})`)
  if (kernel.toString("hex", 0, 4) !== "7f454c46") throw new BootFileError("the unpacked kernel is not an ELF file")
  return kernel
}

/**
 * Removes what no loader reads from a 64-bit little-endian ELF program: symbols, debug information and the section table
 * after the last segment. Like `strip`, but for any machine. Other files are returned unchanged.
 */
export const dropSymbols = (file: Buffer): Buffer => {
  if (file.length < 64 || file.toString("hex", 0, 6) !== "7f454c460201") return file
  const start = Number(file.readBigUInt64LE(32))
  const size = file.readUInt16LE(54)
  const count = file.readUInt16LE(56)
  let end = start + size * count
  for (let i = 0; i < count; i++) {
    const header = start + size * i
    end = Math.max(end, Number(file.readBigUInt64LE(header + 8)) + Number(file.readBigUInt64LE(header + 32)))
  }
  const kept = Buffer.from(file.subarray(0, end))
  kept.writeBigUInt64LE(0n, 40)
  kept.writeUInt16LE(0, 60)
  kept.writeUInt16LE(0, 62)
  return kept
}

/** The modules that a module's `.modinfo` needs first, as file names without `.ko` (hard and `pre:` soft dependencies). */
const moduleNeeds = (module: Buffer): ReadonlyArray<string> => {
  const text = module.toString("latin1")
  const hard = /\0depends=([^\0]*)\0/.exec(text)?.[1]?.split(",") ?? []
  const soft = Array.from(text.matchAll(/\0softdep=pre: ([^\0]*)\0/g), (match) => match[1]?.split(" ") ?? []).flat()
  return [...hard, ...soft].filter((name) => name !== "").map(moduleName)
}

/** Module names are the same with `-` and with `_`. */
export const moduleName = (name: string): string => name.replaceAll("-", "_")

/**
 * The wanted modules and all their dependencies, each after those that it needs. `read` returns a module's bytes, or
 * `undefined` when the kernel has it built in, or has none of that name: a soft dependency may be missing.
 */
export const loadOrder = (
  wanted: ReadonlyArray<string>,
  read: (name: string) => Buffer | undefined
): ReadonlyArray<string> => {
  const order: Array<string> = []
  const seen = new Set<string>()
  const visit = (name: string): void => {
    if (seen.has(name)) return
    seen.add(name)
    const module = read(name)
    if (module === undefined) return
    for (const need of moduleNeeds(module)) visit(need)
    order.push(name)
  }
  for (const name of wanted) visit(moduleName(name))
  return order
}

/** A file of an initramfs; directories are made as needed. `mode` is its permission bits; `device` makes it a character device. */
export interface ArchiveEntry {
  readonly path: string
  readonly mode: number
  readonly content: Buffer
  readonly device?: readonly [major: number, minor: number]
}

/** A cpio archive in the `newc` form the kernel unpacks: root owns everything, all times are `mtime` (seconds). */
export const cpio = (entries: ReadonlyArray<ArchiveEntry>, mtime: number): Buffer => {
  const parts: Array<Buffer> = []
  let inode = 1
  const add = (path: string, mode: number, content: Buffer, device: ArchiveEntry["device"] = [0, 0]): void => {
    const fields = [inode++, mode, 0, 0, 1, mtime, content.length, 0, 0, ...device, path.length + 1, 0]
    const head = `070701${fields.map((field) => field.toString(16).padStart(8, "0")).join("")}${path}\0`
    parts.push(Buffer.from(head.padEnd(Math.ceil(head.length / 4) * 4, "\0"), "latin1"), content)
    parts.push(Buffer.alloc((4 - (content.length % 4)) % 4))
  }
  const directories = new Set<string>()
  for (const { path, mode, content, device } of entries) {
    const names = path.split("/")
    for (let depth = 1; depth < names.length; depth++) {
      const directory = names.slice(0, depth).join("/")
      if (directories.has(directory)) continue
      directories.add(directory)
      add(directory, 0o040755, Buffer.alloc(0))
    }
    add(path, (device === undefined ? 0o100000 : 0o020000) | mode, content, device)
  }
  add("TRAILER!!!", 0, Buffer.alloc(0))
  return Buffer.concat(parts)
}
