/** The command line as a whole: its process from the start to the exit code, help, completions and signals. */
import { assert, describe, it } from "@effect/vitest"
import { execFileSync } from "node:child_process"
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterAll } from "vitest"
import { signalCode } from "../../src/cli/ending.ts"
import { runCli, startCli } from "../support/runCli.ts"

const scratch = mkdtempSync(join(tmpdir(), "exec-sandbox-cli-"))
afterAll(() => rmSync(scratch, { recursive: true, force: true }))

const scratchFile = (name: string, content: string | Uint8Array): string => {
  const file = join(scratch, name)
  writeFileSync(file, content)
  return file
}

describe.concurrent("the command line", { timeout: 30_000 }, () => {
  const scripts = new Map<string, ReturnType<typeof runCli>>()
  /** The output of `completions`, run once per shell. */
  const completions = (shell: string) => {
    const done = scripts.get(shell) ?? runCli(["completions", shell], { stdin: "open" })
    scripts.set(shell, done)
    return done
  }

  it("--version prints name and version, and loads nothing of Effect", async () => {
    const coverage = join(scratch, "coverage")
    const done = await runCli(["--version"], { env: { NODE_V8_COVERAGE: coverage } })
    const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8"))
    assert.deepStrictEqual([done.code, done.stdout, done.stderr], [0, `exec-sandbox ${version}\n`, ""])
    const loaded = readdirSync(coverage)
      .map((name) => readFileSync(join(coverage, name), "utf8"))
      .join("")
    assert.include(loaded, "src/cli/bin.ts")
    assert.notInclude(loaded, "node_modules")
    assert.notInclude(loaded, "main.ts")
  })

  it("--help goes to stdout", async () => {
    const done = await runCli(["--help"])
    assert.deepStrictEqual([done.code, done.stderr], [0, ""])
    for (const command of ["run", "doctor", "image", "template", "snapshot", "completions"])
      assert.include(done.stdout, command)
    for (const later of ["--wizard", "--log-level"]) assert.notInclude(done.stdout, later)
  })

  it("a usage error is exit code 2 and reported on stderr", async () => {
    const done = await runCli(["run", "script.py"])
    assert.deepStrictEqual([done.code, done.stdout], [2, ""])
    assert.match(done.stderr, /-f script\.py/)
  })

  it("reports input that the library refuses as a usage error", async () => {
    const done = await runCli(["run", "-e", "A=1", "-f", "-"], { stdin: "a\0b" })
    assert.strictEqual(done.code, 2)
    assert.match(done.stderr, /^exec-sandbox: invalid code: .*NUL.*\n$/)
  })

  it("refuses more stdin than the library accepts", async () => {
    const done = await runCli(["run", "-i", "print(1)"], { stdin: new Uint8Array(16 * 1024 * 1024 + 1) })
    assert.deepStrictEqual([done.code, done.stdout], [2, ""])
    assert.strictEqual(done.stderr, "exec-sandbox: cannot read stdin: it has more than 16777216 bytes\n")
  })

  it.each(["SIGINT", "SIGTERM", "SIGHUP"] as const)("says what it waits for, and exits at %s", async (signal) => {
    const cli = startCli(["run", "-i", "print(1)"], { stdin: "open" })
    await cli.until("stdin")
    cli.child.kill(signal)
    assert.strictEqual((await cli.finished).code, signalCode(signal))
  })

  it.each(["bash", "zsh", "fish"])("completions %s does not wait for an open stdin", async (shell) => {
    const done = await completions(shell)
    assert.deepStrictEqual([done.code, done.stderr], [0, ""])
    for (const word of ["exec-sandbox", "doctor", "memory"]) assert.include(done.stdout, word)
    assert.notInclude(done.stdout, "--completions")
  })

  it("bash completes a command line with its script", async () => {
    const { stdout: script } = await completions("bash")
    writeFileSync(join(scratch, "to-complete.py"), "")
    /** What bash offers for the last word. */
    const offered = (...words: ReadonlyArray<string>): ReadonlyArray<string> => {
      const line = ["exec-sandbox", ...words]
      const program = `${script}
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=\${#COMP_LINE}
pattern='-F ([^ ]+)'
[[ $(complete -p exec-sandbox) =~ $pattern ]] && "\${BASH_REMATCH[1]}" exec-sandbox "\${@: -1}" "\${@: -2:1}"
printf '%s\\n' "\${COMPREPLY[@]}"`
      const options = { cwd: scratch, encoding: "utf8" } as const
      return execFileSync("bash", ["--norc", "-c", program, "bash", ...line], options)
        .trim()
        .split("\n")
    }
    assert.deepStrictEqual(offered("ru"), ["run"])
    assert.deepStrictEqual(offered("run", "--se"), ["--secret"])
    assert.deepStrictEqual(offered("run", "--secret", "A@a.example", "--se"), ["--secret"])
    assert.deepStrictEqual(offered("run", "--secret", ""), [""])
    assert.deepStrictEqual(offered("shell", "--secret", "A@a.example", "--secret", "B@b.example", "--se"), ["--secret"])
    assert.deepStrictEqual(offered("run", "--json", "--js"), [""])
    assert.deepStrictEqual(offered("run", "--network", "p"), ["packages"])
    assert.deepStrictEqual(offered("run", "-f", "to-"), ["to-complete.py"])
    assert.deepStrictEqual(offered("run", "--upload", "to-"), ["to-complete.py"])
    const all = offered("run", "-e", "A=1", "-")
    for (const flag of ["-e", "--env", "--allow", "--secret", "--expose", "--package", "--upload", "--download"]) {
      assert.include(all, flag)
    }
  })

  it.each([
    ["zsh", "'*--secret[", "'(--secret)"],
    ["fish", "-n '__fish_seen_subcommand_from run' -l secret", "contains_opt secret"]
  ] as const)("%s offers a repeatable flag again", async (shell, again, once) => {
    const { stdout } = await completions(shell)
    assert.include(stdout, again)
    assert.notInclude(stdout, once)
  })

  it("exits silently when its reader is gone, as by SIGPIPE", async () => {
    const cli = startCli(["completions", "bash"])
    cli.child.stdout?.destroy()
    const done = await cli.finished
    assert.deepStrictEqual([done.code, done.stderr], [141, ""])
  })

  it.each([[["run", "print(1)"]], [["template", "warm"]]])(
    "%s without a cache directory is a sandbox failure",
    async (args) => {
      const file = scratchFile(`occupied-${args[0]}`, "")
      const done = await runCli(args, { env: { EXEC_SANDBOX_CACHE_DIR: join(file, "cache") } })
      assert.deepStrictEqual([done.code, done.stdout], [125, ""])
      assert.match(done.stderr, /^exec-sandbox: cache directory: found .*; set EXEC_SANDBOX_CACHE_DIR .*\n$/)
    }
  )

  it("--json reports it as JSON too", async () => {
    const file = scratchFile("occupied-json", "")
    const done = await runCli(["run", "--json", "true"], { env: { EXEC_SANDBOX_CACHE_DIR: join(file, "cache") } })
    assert.strictEqual(done.code, 125)
    const { error, outcome } = JSON.parse(done.stdout)
    assert.deepStrictEqual([outcome, error.tag, error.reason.tag], ["SandboxError", "SandboxError", "HostUnsupported"])
  })
})
