/** The programs in the Markdown files compile, and those over the test kit give what they say. */
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { execFile } from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import { promisify } from "node:util"
import { fileOf, programs, root, writePrograms } from "./support/markdown.ts"

describe("the programs in the Markdown files", () => {
  let directory = ""
  beforeAll(() => {
    directory = writePrograms()
  })
  afterAll(() => fs.rmSync(directory, { recursive: true }))

  it("have correct types", { timeout: 60_000 }, async () => {
    const config = {
      extends: "../../tsconfig.json",
      compilerOptions: { incremental: false, tsBuildInfoFile: null },
      include: [],
      files: programs.map(({ file }) => file)
    }
    fs.writeFileSync(path.join(directory, "tsconfig.json"), JSON.stringify(config))
    const tsc = path.join(root, "node_modules", ".bin", "tsc")
    const said = await promisify(execFile)(tsc, ["-p", directory]).then(
      () => "",
      (error: { readonly stdout: string }) => error.stdout
    )
    assert.strictEqual(
      programs.reduce((text, { document, file }) => text.replaceAll(file, `${file} (${document})`), said),
      ""
    )
  })

  it("over the test kit give what they say", async () => {
    const kit = (await import(path.join(directory, fileOf("printed")))) as {
      readonly [name: string]: Effect.Effect<string>
    }
    const said = [kit.printed, kit.full, kit.asked].map((it) => it ?? Effect.succeed("missing"))
    assert.deepStrictEqual(await Effect.runPromise(Effect.all(said)), [
      "it printed 42",
      "the host is full; later",
      "at http://localhost:8080/name"
    ])
  })
})
