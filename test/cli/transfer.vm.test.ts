import { assert, describe, it } from "@effect/vitest"
import { mkdtempSync, readdirSync, readFileSync, rmSync, mkdirSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterAll } from "vitest"
import { runCli } from "../support/runCli.ts"

const scratch = mkdtempSync(join(tmpdir(), "sbx-cli-files-"))
afterAll(() => rmSync(scratch, { recursive: true, force: true }))
const at = (...parts: ReadonlyArray<string>) => join(scratch, ...parts)

describe("exec-sandbox run with files", { timeout: 240_000 }, () => {
  it("uploads before, downloads after", async () => {
    mkdirSync(at("in/sub"), { recursive: true })
    writeFileSync(at("in/sub/f"), "from the host\n")
    writeFileSync(at("single"), "one")
    const up = ["--upload", `${at("in")}:work/in`, "--upload", `${at("single")}:/tmp/s`]
    const down = ["--download", `out:${at("out")}`, "--download", `/tmp/s2:${scratch}/`]
    const code = "cat work/in/sub/f; cp -r work/in out; cp /tmp/s /tmp/s2; ln -s f out/sub/l"
    const done = await runCli(["run", "-q", "-l", "bash", ...up, ...down, code])
    assert.deepStrictEqual([done.code, done.stdout, done.stderr], [0, "from the host\n", ""])
    assert.strictEqual(readFileSync(at("out/sub/l"), "utf8"), "from the host\n")
    assert.strictEqual(readFileSync(at("s2"), "utf8"), "one")
  })

  it("downloads also when the code failed, and keeps its exit code", async () => {
    const flags = ["--download", `log:${at("log")}`, "--download", `missing:${at("missing")}`]
    const done = await runCli(["run", "-q", "-l", "bash", ...flags, "echo why > log; exit 7"])
    assert.strictEqual(done.code, 7)
    assert.strictEqual(readFileSync(at("log"), "utf8"), "why\n")
    assert.strictEqual(done.stderr, 'exec-sandbox: copyOut "missing": there is no such file or directory\n')
  })

  it("says what could not be copied", async () => {
    const before = readdirSync(scratch)
    const missing = await runCli(["run", "-q", "--upload", `${at("nothing")}:x`, "print(1)"])
    assert.deepStrictEqual([missing.code, missing.stdout], [2, ""])
    assert.match(missing.stderr, /^exec-sandbox: copyIn ".*nothing" on the host: there is no such file or directory\n$/)
    const link = await runCli([
      "run",
      "-q",
      "--json",
      "--download",
      `d:${at("d")}`,
      "import os\nos.mkdir('d')\nos.symlink('/etc/passwd', 'd/l')"
    ])
    assert.strictEqual(link.code, 125)
    assert.strictEqual(JSON.parse(link.stdout).outcome, "Success")
    assert.match(link.stderr, /^exec-sandbox: copyOut "d": "l" is a link that leads outside\n$/)
    assert.deepStrictEqual(readdirSync(scratch), before)
  })
})
