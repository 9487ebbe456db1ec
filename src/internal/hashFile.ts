import { createHash } from "node:crypto"
import { createReadStream } from "node:fs"
import { open } from "node:fs/promises"

/**
 * A hash of a sparse file, over its blocks of 256 KiB that are not all zero and their positions. It is as unique as a hash of
 * all bytes and takes a fraction of the time.
 */
export const hashSparse = async (path: string): Promise<{ readonly size: number; readonly sha256: string }> => {
  const hash = createHash("sha256")
  const block = Buffer.alloc(256 * 1024)
  const empty = Buffer.alloc(block.length)
  const file = await open(path, "r")
  try {
    let size = 0
    for (;;) {
      const { bytesRead } = await file.read(block, 0, block.length, size)
      if (bytesRead === 0) return { size, sha256: hash.update(`${size}`).digest("hex") }
      if (block.compare(empty, 0, bytesRead, 0, bytesRead) !== 0) {
        hash.update(`${size}:`).update(block.subarray(0, bytesRead))
      }
      size += bytesRead
    }
  } finally {
    await file.close()
  }
}

/** A file's SHA-256 (hex) and size (bytes), read in pieces. */
export const hashFile = async (path: string): Promise<{ readonly size: number; readonly sha256: string }> => {
  const hash = createHash("sha256")
  let size = 0
  for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 })) {
    if (!Buffer.isBuffer(chunk)) continue
    size += chunk.length
    hash.update(chunk)
  }
  return { size, sha256: hash.digest("hex") }
}
