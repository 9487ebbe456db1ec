import { assert, describe, it } from "@effect/vitest"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { copySparse } from "../../src/vm/copySparse.ts"

describe("copySparse", () => {
  it("copies every byte, replaces what was there, and leaves holes for zeros", async () => {
    const directory = fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-sparse-"))
    try {
      const [from, to] = [path.join(directory, "from"), path.join(directory, "to")]
      const size = 20 * 1024 * 1024 + 7
      fs.writeFileSync(from, "")
      fs.truncateSync(from, size)
      const file = fs.openSync(from, "r+")
      for (const at of [0, 65_535, 1024 * 1024, 7 * 1024 * 1024 + 3, size - 1]) fs.writeSync(file, "x", at)
      fs.closeSync(file)
      fs.writeFileSync(to, Buffer.alloc(size + 1000, "y"))
      await copySparse(from, to)
      assert.isTrue(fs.readFileSync(from).equals(fs.readFileSync(to)))
      assert.isBelow(fs.statSync(to).blocks * 512, 1024 * 1024)
    } finally {
      fs.rmSync(directory, { recursive: true })
    }
  })
})
