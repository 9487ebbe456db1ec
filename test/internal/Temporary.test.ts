import { assert, describe, it } from "@effect/vitest"
import { spawnSync } from "node:child_process"
import { isStale, temporaryName } from "../../src/internal/Temporary.ts"

describe("Temporary", () => {
  it("is in use while its maker lives, stale when it is gone, and nothing else is ever stale", () => {
    const gone = spawnSync("true").pid
    for (const purpose of ["building", "removed", "clone", "seal"] as const) {
      const name = temporaryName(purpose)
      assert.isFalse(isStale(name))
      assert.isTrue(isStale(name.replace(`-${process.pid}-`, `-${gone}-`)))
    }
    for (const name of ["ram", `.lock-${gone}-x`, `building-${gone}-x`, ".building-x-y", `.building-${gone}`]) {
      assert.isFalse(isStale(name), name)
    }
  })

  it("never gives one name twice", () => {
    assert.strictEqual(new Set(Array.from({ length: 1000 }, () => temporaryName("clone"))).size, 1000)
  })
})
