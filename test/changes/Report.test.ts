import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as ChangeReport from "../../src/changes/Report.ts"

const counts = { created: 1, modified: 1, deleted: 0, renamed: 0, unexamined: 0, unlisted: 0 }
const state = { type: "file", size: 2, mode: 0o644, uid: 1000, gid: 1000 }
const created = { kind: "created", path: "/a", after: state, content: true, text: "text", old: "", new: "1\n" }
const report = (asked = { patches: true, maxFiles: 10 }) => ChangeReport.make(asked)
const lines = (...all: ReadonlyArray<unknown>) => Buffer.from(all.map((it) => `${JSON.stringify(it)}\n`).join(""))

describe("ChangeReport", () => {
  it.effect("collects lines, however they are cut, and makes patches for texts", () =>
    Effect.gen(function* () {
      const asked = report()
      const modified = { kind: "modified", path: { hex: "2fff" }, before: state, after: { ...state, mode: 0o755 } }
      const bytes = lines(created, { ...modified, content: true, text: "binary" })
      for (const byte of bytes) assert.isTrue(asked.push(Uint8Array.of(byte)))
      const changes = yield* asked.finish(counts)
      assert.deepStrictEqual(
        changes.files.map(({ omitted, path, patch }) => [path, patch, omitted]),
        [
          ["/a", "diff --git a/a b/a\nnew file mode 100644\n--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+1\n", null],
          ["/\udcff", null, "binary"]
        ]
      )
      assert.strictEqual(changes.patch, changes.files[0]?.patch)
      assert.deepStrictEqual(changes.counts, { created: 1, modified: 1, deleted: 0, renamed: 0, unexamined: 0 })
    })
  )

  it.effect("makes no patch unless requested, whatever the guest sends", () =>
    Effect.gen(function* () {
      const asked = report({ patches: false, maxFiles: 10 })
      assert.isTrue(asked.push(lines(created)))
      const [file] = (yield* asked.finish(counts)).files
      assert.deepStrictEqual([file?.patch, file?.omitted], [null, "unasked"])
    })
  )

  it("refuses what the agent would never send", () => {
    const refused: ReadonlyArray<readonly [string, Buffer]> = [
      ["no JSON", Buffer.from("nonsense\n")],
      ["another kind", lines({ ...created, kind: "eaten" })],
      ["a negative size", lines({ ...created, after: { ...state, size: -1 } })],
      ["an empty path", lines({ ...created, path: "" })],
      ["a NUL in a path", lines({ ...created, path: { hex: "00" } })],
      ["more files than requested", lines(...Array.from({ length: 11 }, () => created))],
      ["a text too long", lines({ ...created, new: "x".repeat(256 * 1024 + 1) })],
      [
        "too many texts",
        lines(...Array.from({ length: 10 }, () => ({ ...created, old: "x".repeat(250_000), new: "y".repeat(250_000) })))
      ],
      ["a line without end", Buffer.alloc(5 * 1024 * 1024, 0x20)]
    ]
    for (const [what, bytes] of refused) assert.isFalse(report().push(bytes), what)
  })
})
