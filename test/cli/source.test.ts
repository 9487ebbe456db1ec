/** Where the code of `run` comes from, and its language. */
import { assert, describe, it } from "@effect/vitest"
import { languageOf, looksLikeFile, sourceOf } from "../../src/cli/source.ts"

describe("source", () => {
  it.each([
    ["a.py", "python"],
    ["a.js", "javascript"],
    ["a.mjs", "javascript"],
    ["a.cjs", "javascript"],
    ["a.ts", "typescript"],
    ["a.mts", "typescript"],
    ["a.sh", "bash"],
    ["a.bash", "bash"],
    ["dir.d/A.PY", "python"],
    ["a", undefined],
    ["a.rb", undefined],
    ["py", undefined],
    ["dir.py/a", undefined],
    ["a.constructor", undefined],
    ["/dev/fd/63", undefined]
  ])("%s is %s", (file, language) => assert.strictEqual(languageOf(file), language))

  it.each(["script.py", "./script", "../a/b", "/tmp/x", "dir/file.rb", "ümlaut.ts", "a-b_c.2.sh"])(
    "%s looks like a file",
    (text) => assert.isTrue(looksLikeFile(text))
  )

  it.each([
    "print(1)",
    "true",
    "ls",
    "cat /etc/passwd",
    "/bin/true;",
    "x=a/b",
    "a.py\n",
    "import os",
    "1+1",
    "`x`.ts",
    "[1/2]",
    '"a.py"'
  ])("%s looks like code", (text) => assert.isFalse(looksLikeFile(text)))

  it("takes code as python, or as the language of -l", () => {
    assert.deepStrictEqual(sourceOf("1+1", undefined, undefined), { _tag: "Code", code: "1+1", language: "python" })
    assert.deepStrictEqual(sourceOf("1+1", undefined, "bash"), { _tag: "Code", code: "1+1", language: "bash" })
  })

  it("takes a file's language from -l, else from its extension", () => {
    assert.deepStrictEqual(sourceOf(undefined, "a.ts", undefined), {
      _tag: "File",
      file: "a.ts",
      language: "typescript"
    })
    assert.deepStrictEqual(sourceOf(undefined, "a.ts", "python"), { _tag: "File", file: "a.ts", language: "python" })
    assert.deepStrictEqual(sourceOf(undefined, "a", "bash"), { _tag: "File", file: "a", language: "bash" })
  })

  it("takes - as stdin, with and without -f", () => {
    assert.deepStrictEqual(sourceOf("-", undefined, undefined), { _tag: "Stdin", language: "python" })
    assert.deepStrictEqual(sourceOf(undefined, "-", "bash"), { _tag: "Stdin", language: "bash" })
  })

  it.each([
    ["x", "a.py", /both/],
    ["-", "a.py", /both/],
    [undefined, "a.rb", /"a\.rb".*\.py \.js \.mjs \.cjs \.ts \.mts \.sh \.bash/],
    ["sript.py", undefined, /-f sript\.py/],
    ["bin/x", undefined, /-f bin\/x/],
    ["", undefined, /no code/],
    [undefined, undefined, /no code/]
  ])("refuses code %s with file %s", (code, file, message) => {
    const source = sourceOf(code, file, undefined)
    assert.match(source._tag === "Problem" ? source.message : "", message)
  })
})
