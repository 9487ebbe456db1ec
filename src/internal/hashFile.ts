import { createHash } from "node:crypto"
import { createReadStream } from "node:fs"

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
