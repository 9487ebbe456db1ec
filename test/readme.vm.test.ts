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
const programs = blocks("ts").map((code) =>
  code
    .replaceAll('"exec-sandbox"', '"../../src/index.ts"')
    .replaceAll('"exec-sandbox/testing"', '"../../src/Testing.ts"')
)

/** The file of the program that exports that name. */
const fileOf = (name: string): string =>
  `./program${programs.findIndex((code) => code.includes(`export const ${name} `))}.ts`

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

  it("its programs that count and that are parked give the values they say", () => {
    withPrograms((directory) => {
      const main = `import { Effect } from "effect"
        import { Sandbox } from "../../src/index.ts"
        import { counted } from "${fileOf("counted")}"
        import { patient } from "${fileOf("patient")}"
        const [result, woken] = await Effect.runPromise(Effect.provide(Effect.all([counted, patient]), Sandbox.layer))
        console.log(JSON.stringify([result.result, woken]))`
      fs.writeFileSync(path.join(directory, "main.ts"), main)
      const said = execFileSync(process.execPath, [path.join(directory, "main.ts")], { encoding: "utf8" })
      assert.strictEqual(said, '[{"repr":"42","json":42},{"parked":true,"answer":42,"woke":true}]\n')
    })
  })

  it("its third program copies out what was made, and knows what is not there", () => {
    withPrograms((directory) => {
      const main = `import { Effect } from "effect"
        import { Sandbox } from "../../src/index.ts"
        import { files } from "${fileOf("files")}"
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

  it("its program over the test kit passes", () => {
    withPrograms((directory) => {
      const kit = programs.findIndex((code) => code.includes("Testing.ts"))
      const main = `import { Effect } from "effect"
        import { asked, full, told } from "./program${kit}.ts"
        for (const it of [told, full, asked]) console.log(await Effect.runPromise(it))`
      fs.writeFileSync(path.join(directory, "main.ts"), main)
      const said = execFileSync(process.execPath, [path.join(directory, "main.ts")], { encoding: "utf8" })
      assert.strictEqual(said, "it printed 42\nthe host is full; later\nat http://localhost:8080/name\n")
    })
  })

  it("its program about changes tells them since the mark", () => {
    withPrograms((directory) => {
      const main = `import { Effect } from "effect"
        import { Sandbox } from "../../src/index.ts"
        import { changed } from "${fileOf("changed")}"
        const { files, patch } = await Effect.runPromise(Effect.provide(changed, Sandbox.layer))
        console.log(JSON.stringify(files) + patch.slice(patch.indexOf("@@ -1,3")))`
      fs.writeFileSync(path.join(directory, "main.ts"), main)
      const said = execFileSync(process.execPath, [path.join(directory, "main.ts")], { encoding: "utf8" })
      assert.strictEqual(
        said,
        '["deleted /home/user/.profile","modified /home/user/numbers"]@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n\n'
      )
    })
  })

  it("its fourth program treats each of the five channels in its own way", () => {
    withPrograms((directory) => {
      const main = `import { Effect, Exit, Scope } from "effect"
        import { Sandbox } from "../../src/index.ts"
        import { answer } from "${fileOf("answer")}"
        const codes = ["echo 1", "exit 3", "no-such", "sleep 9"]
        const program = Effect.gen(function* () {
          const scope = yield* Scope.make()
          const session = yield* Scope.provide(Sandbox.session({ limits: { timeMs: 5000 } }), scope)
          const bash = (code: string) => answer(session, { language: "bash", code, limits: { timeMs: 2000 } })
          for (const code of codes) console.log((yield* bash(code)).trim())
          console.log(yield* answer(session, { language: "python", code: "open('/etc/shadow')" }))
          yield* Scope.close(scope, Exit.void)
          console.log((yield* Effect.flip(bash("true"))).reason._tag)
        })
        await Effect.runPromise(Effect.provide(program, Sandbox.layer))`
      fs.writeFileSync(path.join(directory, "main.ts"), main)
      const said = execFileSync(process.execPath, [path.join(directory, "main.ts")], { encoding: "utf8" })
      assert.deepStrictEqual(said.trim().split("\n"), [
        "it printed 1",
        "mend it: task failed with exit code 3",
        "do without the command no-such",
        "take less time: 2000 is all there is",
        "leave /etc/shadow alone, or ask: use a path that user may access, or change its mode or owner",
        "SessionClosed"
      ])
    })
  })
})
