import { assert, describe, it } from "@effect/vitest"
import { spawnSync } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { isStale, sweep, temporaryName } from "../../src/internal/Temporary.ts"

describe("Temporary", () => {
  it("a name is stale when the process that made it has ended, and other names are never stale", () => {
    const gone = spawnSync("true").pid
    for (const purpose of ["building", "removed", "clone", "seal"] as const) {
      const name = temporaryName(purpose)
      assert.isFalse(isStale(name))
      assert.isTrue(isStale(name.replace(`-${process.pid}-`, `-${gone}-`)))
    }
    for (const name of [
      "ram",
      `.lock-${gone}-x`,
      `building-${gone}-x`,
      ".building-x-y",
      `.building-${gone}`,
      `.building-${gone}-1-x`
    ]) {
      assert.isFalse(isStale(name), name)
    }
  })

  it("sweeps stale files and directories, and nothing else", () => {
    const directory = fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-sweep-"))
    try {
      const gone = spawnSync("true").pid
      const stale = temporaryName("building").replace(`-${process.pid}-`, `-${gone}-`)
      const used = temporaryName("clone")
      fs.mkdirSync(path.join(directory, stale, "deep"), { recursive: true })
      for (const name of [path.join(stale, "deep", "ram"), used, "manifest.json"]) {
        fs.writeFileSync(path.join(directory, name), "")
      }
      sweep(directory)
      assert.sameMembers(fs.readdirSync(directory), [used, "manifest.json"])
      sweep(path.join(directory, "not-there"))
    } finally {
      fs.rmSync(directory, { recursive: true })
    }
  })

  it("never returns the same name twice", () => {
    assert.strictEqual(new Set(Array.from({ length: 1000 }, () => temporaryName("clone"))).size, 1000)
  })
})
