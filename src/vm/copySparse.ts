import { open } from "node:fs/promises"

const block = 64 * 1024
const read = 16 * block

/** Copies a file into an existing one and leaves holes for zero blocks, such as memory that a machine has never touched. */
export const copySparse = async (from: string, to: string): Promise<void> => {
  const source = await open(from, "r")
  const target = await open(to, "r+")
  const zero = Buffer.alloc(block)
  try {
    const { size } = await source.stat()
    await target.truncate(0)
    await target.truncate(size)
    const bytes = Buffer.alloc(read)
    for (let at = 0; at < size;) {
      const { bytesRead } = await source.read(bytes, 0, read, at)
      if (bytesRead === 0) break
      for (let start = 0; start < bytesRead; start += block) {
        const part = bytes.subarray(start, Math.min(start + block, bytesRead))
        if (!part.equals(part.length === block ? zero : zero.subarray(0, part.length))) {
          await target.write(part, 0, part.length, at + start)
        }
      }
      at += bytesRead
    }
  } finally {
    await source.close()
    await target.close()
  }
}
