/** The README's programs compile, run and print what the README says. */
import { assert, describe, it } from "@effect/vitest"
import { execFileSync } from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import { fileURLToPath } from "node:url"

const root = fileURLToPath(new URL("..", import.meta.url))
const readme = fs.readFileSync(path.join(root, "README.md"), "utf8")
const blocks = (language: string): ReadonlyArray<string> =>
  [...readme.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, "gms"))].map((match) => match[1] ?? "")
const programs = blocks("ts").map((code) => code.replaceAll('"exec-sandbox"', '"../../src/index.ts"'))

/** Runs `use` with the programs as files beside the tests, so that their imports resolve as the tests' do. */
const withPrograms = (use: (directory: string) => void): void => {
  const directory = fs.mkdtempSync(path.join(root, "test", ".readme-"))
  try {
    programs.forEach((code, index) => fs.writeFileSync(path.join(directory, `program${index}.ts`), code))
    use(directory)
  } finally {
    fs.rmSync(directory, { recursive: true })
  }
}

describe("README", () => {
  it("its programs have correct types", () => {
    withPrograms((directory) => {
      const config = {
        extends: "../../tsconfig.json",
        compilerOptions: { incremental: false, tsBuildInfoFile: null },
        include: [],
        files: programs.map((_, index) => `program${index}.ts`)
      }
      fs.writeFileSync(path.join(directory, "tsconfig.json"), JSON.stringify(config))
      execFileSync(path.join(root, "node_modules", ".bin", "tsc"), ["-p", directory], { encoding: "utf8" })
    })
  })

  it("its first program prints the product and how its VM was obtained", () => {
    withPrograms((directory) => {
      const said = execFileSync(process.execPath, [path.join(directory, "program0.ts")], { encoding: "utf8" })
      assert.match(said, /^42\n .*kind: '(restore|boot)'/s)
    })
  })

  it("its second program gives the value it says", () => {
    withPrograms((directory) => {
      const main = `import { Effect } from "effect"
        import { Sandbox } from "../../src/index.ts"
        import { counted } from "./program1.ts"
        const result = await Effect.runPromise(Effect.provide(counted, Sandbox.layer))
        console.log(JSON.stringify(result.result))`
      fs.writeFileSync(path.join(directory, "main.ts"), main)
      const said = execFileSync(process.execPath, [path.join(directory, "main.ts")], { encoding: "utf8" })
      assert.strictEqual(said, '{"repr":"42","json":42}\n')
    })
  })

  it("its third program copies out what was made, and knows what is not there", () => {
    withPrograms((directory) => {
      const main = `import { Effect } from "effect"
        import { Sandbox } from "../../src/index.ts"
        import { files } from "./program2.ts"
        console.log(await Effect.runPromise(Effect.provide(files, Sandbox.layer)))`
      fs.writeFileSync(path.join(directory, "main.ts"), main)
      const said = execFileSync(process.execPath, [path.join(directory, "main.ts")], {
        cwd: directory,
        encoding: "utf8"
      })
      assert.strictEqual(said, "nothing there\n")
      assert.strictEqual(fs.readFileSync(path.join(directory, "sorted/sorted.txt"), "utf8"), "2\n1\n")
    })
  })
})
