/** What a user's program can import, resolved by Node from `exports` in package.json. */
import { assert, describe, it } from "@effect/vitest"
import { execFileSync } from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import { fileURLToPath, pathToFileURL } from "node:url"
import * as index from "../src/index.ts"

const root = fileURLToPath(new URL("..", import.meta.url))
const modules = Object.keys(index)

const sourcesIn = (folder: string): ReadonlyArray<string> =>
  fs
    .readdirSync(path.join(root, "src", folder), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".ts"))
    .map((name) => path.join(folder, name).replace(/\.ts$/, ""))

/** What Node resolves each specifier to, or the code of its error. The package resolves its own name by its `exports`. */
const resolve = (specifiers: ReadonlyArray<string>): ReadonlyArray<string> => {
  const program = `
    const answer = (specifier) => {
      try { return import.meta.resolve(specifier) } catch (error) { return error.code }
    }
    console.log(JSON.stringify(${JSON.stringify(specifiers)}.map(answer)))`
  const options = { cwd: root, encoding: "utf8" } as const
  return JSON.parse(execFileSync(process.execPath, ["--input-type=module", "--eval", program], options))
}

/** The file in src that the build makes this file of dist from. */
const sourceOf = (built: string): string =>
  path.join(root, built.replace(/^(?:\.\/)?dist\//, "src/").replace(/(?:\.d\.ts|\.js)$/, ".ts"))

describe("exports", () => {
  it("the package, its test kit and each of its public modules can be imported", () => {
    const names = ["exec-sandbox", "exec-sandbox/testing", ...modules.map((name) => `exec-sandbox/${name}`)]
    const files = ["index", "Testing", ...modules]
    const expected = files.map((name) => pathToFileURL(path.join(root, "dist", `${name}.js`)).href)
    assert.deepStrictEqual(resolve(names), expected)
  })

  it("nothing else can be imported", () => {
    const inside = sourcesIn("").filter((name) => !modules.includes(name))
    assert.isTrue(["Vm", "internal/Lock", "egress/Egress"].every((name) => inside.includes(name)))
    const paths = inside.flatMap((name) => [name, `${name}.ts`, `dist/${name}.js`, `src/${name}.ts`])
    const names = [...paths, "images/setup.mjs", "bench/main", "package.json"].map((name) => `exec-sandbox/${name}`)
    const resolved = resolve(names)
    assert.deepStrictEqual(
      names.filter((_, at) => resolved[at] !== "ERR_PACKAGE_PATH_NOT_EXPORTED"),
      []
    )
  })

  it("each module is built, code and types, from a source that exists", () => {
    const { exports } = JSON.parse(fs.readFileSync(path.join(root, "package.json"), "utf8"))
    for (const [name, target] of Object.entries<Record<string, string>>(exports)) {
      assert.deepStrictEqual(Object.keys(target), ["types", "default"], name)
      const [types = "", code = ""] = Object.values(target)
      assert.strictEqual(types, code.replace(/\.js$/, ".d.ts"))
      assert.isTrue(fs.existsSync(sourceOf(code)), `${name}: ${code}`)
    }
  })
})
