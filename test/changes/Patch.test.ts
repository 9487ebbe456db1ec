import { assert, describe, it } from "@effect/vitest"
import { execFileSync, spawnSync } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import * as FileName from "../../src/internal/FileName.ts"
import * as Patch from "../../src/changes/Patch.ts"

/** A small random number generator with a seed. */
const random = (seed: number) => (below: number) => {
  seed = (Math.imul(seed, 1_103_515_245) + 12_345) & 0x7fffffff
  return (seed >> 8) % below
}

const textOf = (next: (below: number) => number): string => {
  const lines = Array.from(
    { length: next(30) },
    () => ["a", "b", "", "Zeile ä", "x\r", "@@ -1 +1 @@", "--- c"][next(7)]
  )
  return lines.join("\n") + (next(2) === 0 ? "" : "\n")
}

/** Applies a patch to a file with `patch`. */
const applied = (before: string | null, patch: string, name = "f", options: ReadonlyArray<string> = []) => {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "patch-"))
  try {
    const bytes = FileName.toBytes(`${directory}/${name}`) ?? Buffer.alloc(0)
    if (before !== null) fs.writeFileSync(bytes, before)
    execFileSync("patch", ["-p1", "--quiet", "--fuzz=0", ...options], { cwd: directory, input: patch })
    const left = fs.readdirSync(directory, { encoding: "buffer" }).map((it) => FileName.fromBytes(it))
    return { text: fs.existsSync(bytes) ? fs.readFileSync(bytes, "utf8") : null, left }
  } finally {
    fs.rmSync(directory, { recursive: true })
  }
}

const file = (text: string, changes: { readonly path?: string; readonly mode?: number } = {}): Patch.Side => ({
  path: "/f",
  mode: 0o644,
  text,
  ...changes
})

const lines = (of: (n: number) => string) => Array.from({ length: 60_000 }, (_, n) => `${of(n)}\n`).join("")

/** Whether this host has `patch`. Without it, the tests with real VMs still apply patches: the guest has it. */
const available = spawnSync("patch", ["--version"]).status === 0

describe("Patch", () => {
  it("makes the same patch as git", () => {
    assert.strictEqual(
      Patch.make(file("1\n2\n3\n4\n5\n6\n"), file("1\n2\n3\n4\nfive\n6\n", { mode: 0o755 }), true),
      "diff --git a/f b/f\nold mode 100644\nnew mode 100755\n--- a/f\n+++ b/f\n" +
        "@@ -2,5 +2,5 @@\n 2\n 3\n 4\n-5\n+five\n 6\n"
    )
    assert.strictEqual(
      Patch.make(null, file("new"), true),
      "diff --git a/f b/f\nnew file mode 100644\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+new\n\\ No newline at end of file\n"
    )
    assert.strictEqual(Patch.make(file(""), null, true), "diff --git a/f b/f\ndeleted file mode 100644\n")
    assert.strictEqual(
      Patch.make(file("x\n"), file("x\n", { path: "/a b" }), true),
      "diff --git a/f b/a b\nrename from f\nrename to a b\n"
    )
    assert.strictEqual(Patch.make(file("x\n", { mode: 0o600 }), file("x\n"), true), "")
    assert.include(
      Patch.make(null, file("x\n", { path: '/ü\n"\\\udcff' }), true),
      '+++ "b/\\303\\274\\012\\"\\\\\\377"\n'
    )
  })

  it.skipIf(!available)("turns one text into the other, both ways, whatever they are", () => {
    for (let seed = 1; seed <= 20; seed++) {
      const next = random(seed)
      const before = textOf(next)
      const after = textOf(next)
      for (const close of [true, false]) {
        const patch = Patch.make(file(before), file(after), close)
        if (patch === "") {
          assert.strictEqual(before, after)
          continue
        }
        assert.strictEqual(applied(before, patch).text, after, `seed ${seed}: ${JSON.stringify([before, after])}`)
        if (close) assert.strictEqual(applied(after, patch, "f", ["-R"]).text, before)
      }
    }
  })

  it.skipIf(!available)("makes, removes and renames files, with names of any kind", () => {
    for (const name of ["f", "a b", "tab\there", "ä", "new\nline", "\udcff", '"q"', "back\\slash", "-p"]) {
      const to = { path: `/${name}` }
      assert.strictEqual(applied(null, Patch.make(null, file("1\n2", to), true), name).text, "1\n2", name)
      assert.strictEqual(applied("1\n2", Patch.make(file("1\n2", to), null, true), name).text, null, name)
      const renamed = applied(
        "1\n2\n",
        Patch.make(file("1\n2\n", { path: "/g" }), file("1\n3\n", to), true).replace(/$/, ""),
        "g"
      )
      assert.deepStrictEqual(renamed.left, [name])
    }
    assert.deepStrictEqual(applied(null, Patch.make(null, file(""), true)), { text: "", left: ["f"] })
  })

  it.skipIf(!available)("bounds the time and the size for texts made to be hard to compare", () => {
    const before = lines((n) => `${n % 97}`)
    const after = lines((n) => `${(n * 7) % 89}`)
    const started = performance.now()
    const patch = Patch.make(file(before), file(after), true)
    assert.isBelow(performance.now() - started, 3000)
    assert.isAtMost(patch.length, 2 * (before.length + after.length))
    assert.strictEqual(applied(before, patch).text, after)
  })
})
