/** Tables and sizes as text. */
import { assert, describe, it } from "@effect/vitest"
import { size, table } from "../../src/cli/output.ts"

describe("text", () => {
  it("aligns a table", () =>
    assert.strictEqual(
      table([
        ["a", "b"],
        ["long", ""]
      ]),
      "a     b\nlong\n"
    ))
  it.each([
    [0, "0 B"],
    [1023, "1023 B"],
    [1024, "1.0 KiB"],
    [1.5 * 1024 ** 3, "1.5 GiB"]
  ])("%i is %s", (bytes, text) => assert.strictEqual(size(bytes), text))
})
