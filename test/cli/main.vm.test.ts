import { assert, beforeAll, describe, it } from "@effect/vitest"
import { execFileSync } from "node:child_process"
import { createHash } from "node:crypto"
import { chmodSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterAll, vi } from "vitest"
import { type Finished, runCli, startCli } from "../support/runCli.ts"

const timeout = 60_000
const scratch = mkdtempSync(join(tmpdir(), "sbx-cli-"))
// QEMU may run as another user, and has to reach its run directory.
chmodSync(scratch, 0o711)
afterAll(() => rmSync(scratch, { recursive: true, force: true }))

beforeAll(async () => {
  for (const memory of ["128", "512"]) {
    const warmed = await runCli(["template", "warm", "-m", memory])
    assert.strictEqual(warmed.code, 0, warmed.stderr)
  }
}, 600_000)

const python = (code: string, ...flags: ReadonlyArray<string>) => runCli(["run", "-q", ...flags, code])

/** The CLI's own lines on stderr, without those of the code. */
const said = ({ stderr }: Finished): ReadonlyArray<string> =>
  stderr.split("\n").filter((line) => line.startsWith("exec-sandbox: "))

/** The living processes, each with its parent. */
const processes = (): ReadonlyMap<number, number> => {
  const listed = execFileSync("ps", ["-axo", "pid=,ppid=,stat="], { encoding: "utf8" })
  const rows = listed.split("\n").map((line) => line.trim().split(/\s+/))
  return new Map(
    rows.filter(([, , stat]) => stat?.startsWith("Z") === false).map(([pid, parent]) => [Number(pid), Number(parent)])
  )
}

/** All descendants of a process. */
const descendants = (root: number | undefined): ReadonlyArray<number> => {
  const all = processes()
  const found = [root]
  for (const above of found) for (const [pid, parent] of all) if (parent === above) found.push(pid)
  return found.slice(1).map(Number)
}

/** Runs with a run directory of its own, and waits until the machine's processes and files exist. */
const startMachine = async (name: string, ...args: ReadonlyArray<string>) => {
  const directory = join(scratch, name)
  const cli = startCli(["run", "-q", ...args], { env: { EXEC_SANDBOX_RUN_DIR: directory } })
  await cli.until("ready\n")
  const machine = descendants(cli.child.pid)
  assert.isNotEmpty(machine)
  return {
    ...cli,
    running: () => machine.filter((pid) => processes().has(pid)),
    files: () => readdirSync(directory)
  }
}

describe("exec-sandbox run", { timeout }, () => {
  it("prints what the code prints, and nothing else", async () => {
    const done = await python("print(1 + 1)")
    assert.deepStrictEqual([done.code, done.stdout, done.stderr], [0, "2\n", ""])
  })

  it("--trace prints the tree of spans with times to stderr, and leaves the code's output as it is", async () => {
    const done = await python("print(1 + 1)", "--trace")
    assert.deepStrictEqual([done.code, done.stdout], [0, "2\n"])
    const lines = done.stderr.trimEnd().split("\n")
    assert.match(lines[0] ?? "", /^ *at ms +took ms +span$/)
    const names = lines.slice(1).map((line) => /^ *[\d.]+ +[\d.]+ {2}( *[\w.]+)/.exec(line)?.[1])
    assert.strictEqual(names[0], "Sandbox.stream")
    assert.includeMembers(names, ["        Vm.restore", "      Vm.handover", "  Session.exec"])
    assert.strictEqual(names.at(-1), "  Vm.destroy")
  })

  it.each([
    ["python", "print('python')"],
    ["javascript", "console.log('javascript')"],
    ["typescript", "const it: string = 'typescript'; console.log(it)"],
    ["bash", "echo bash"]
  ])("runs %s", async (language, code) => {
    const done = await runCli(["run", "-q", "-l", language, code])
    assert.deepStrictEqual([done.code, done.stdout], [0, `${language}\n`])
  })

  it.each([
    ["a.py", "print('py')", "py\n"],
    ["a.mjs", "import os from 'node:os'; console.log(os.platform())", "linux\n"],
    ["a.ts", "const n: number = 41; console.log(n + 1)", "42\n"],
    ["a.sh", "printf '%s\\n' sh", "sh\n"],
    ["bom.py", "\ufeffprint('bom')", "bom\n"]
  ])("runs the file %s by its extension", async (name, code, stdout) => {
    const file = join(scratch, name)
    writeFileSync(file, code)
    const done = await runCli(["run", "-q", "-f", file])
    assert.deepStrictEqual([done.code, done.stdout], [0, stdout])
  })

  it.each([[["-"]], [["-f", "-"]]])("takes the code from stdin for %s, and gives it no stdin", async (args) => {
    const done = await runCli(["run", "-q", ...args], { stdin: "import sys; print(repr(sys.stdin.read()))" })
    assert.deepStrictEqual([done.code, done.stdout], [0, "''\n"])
  })

  it("takes the word after a boolean flag as code", async () => {
    const done = await runCli(["run", "-l", "bash", "-q", "true"])
    assert.deepStrictEqual([done.code, done.stderr], [0, ""])
  })

  it("gives its stdin to the code, byte by byte", async () => {
    const bytes = Buffer.from(Array.from({ length: 70_000 }, (_, i) => i % 256))
    const code = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    const done = await runCli(["run", "-q", "-i", code], { stdin: bytes })
    assert.strictEqual(done.code, 0)
    assert.isTrue(done.bytes.equals(bytes))
  })

  it("does not wait for stdin without -i", async () => {
    const done = await runCli(["run", "-q", "print(1)"], { stdin: "open" })
    assert.deepStrictEqual([done.code, done.stdout], [0, "1\n"])
  })

  it("gives the code an empty stdin without -i", async () => {
    const done = await python("input()")
    assert.strictEqual(done.code, 1)
    assert.include(done.stderr, "EOFError")
    assert.deepStrictEqual(said(done), [])
  })

  it("sets variables, and placeholders for secrets", async () => {
    const value = "the-value-of-the-token"
    const file = join(scratch, "token")
    writeFileSync(file, `${value}-2\n`)
    const code = "import os; print([os.environ[n] for n in ('A', 'B', 'T', 'F')])"
    const secrets = ["--secret", "T=CALLERS@a.example", "--secret", `F=${file}@*.b.example:8443,a.example`]
    const allow = ["--allow", "a.example", "--allow", "*.b.example:8443"]
    const args = ["run", "-q", "--json", "-e", "A=1=2", "-e", "B=", ...secrets, ...allow, code]
    const cli = startCli(args, { env: { CALLERS: value } })
    const done = await cli.finished
    assert.match(
      JSON.parse(done.stdout).stdout,
      /^\['1=2', '', 'exec-sandbox-secret-\w{40}', 'exec-sandbox-secret-\w{40}'\]\n$/
    )
    assert.notInclude(done.stdout + done.stderr, value)
  })

  it("streams many bytes exactly", async () => {
    const done = await python("import sys\nfor i in range(80000): sys.stdout.write(f'{i:079d}\\n')")
    const expected = createHash("sha256")
    for (let i = 0; i < 80_000; i++) expected.update(`${String(i).padStart(79, "0")}\n`)
    assert.strictEqual(done.bytes.length, 6_400_000)
    assert.strictEqual(createHash("sha256").update(done.bytes).digest("hex"), expected.digest("hex"))
  })

  it("gives two runs nothing in common", async () => {
    const code = "import uuid, random, socket; print(uuid.uuid4(), random.random(), socket.gethostname(), sep='\\n')"
    const runs = [await python(code), await python(code)].map((done) => done.stdout.trim().split("\n"))
    assert.lengthOf(runs[0] ?? [], 3)
    assert.lengthOf(new Set(runs.flat()), 6)
  })
})

describe("the exit code", { timeout }, () => {
  it.each([
    ["import sys; sys.exit(3)", 3],
    ["import sys; sys.exit(125)", 125],
    ["raise ValueError('x')", 1],
    ["import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139]
  ])("of %s is %i, without a message of ours", async (code, exit) => {
    const done = await python(code)
    assert.deepStrictEqual([done.code, said(done)], [exit, []])
  })

  it("is 126 when something was refused", async () => {
    const done = await python("open('/etc/shadow')")
    assert.strictEqual(done.code, 126)
    assert.lengthOf(said(done), 1)
    assert.match(said(done)[0] ?? "", /^exec-sandbox: permission denied: file "\/etc\/shadow" \(EACCES\); .+/)
  })

  it("is 127 for a command that does not exist", async () => {
    const done = await runCli(["run", "-q", "-l", "bash", "frobnicate"])
    assert.strictEqual(done.code, 127)
    assert.lengthOf(said(done), 1)
    assert.match(said(done)[0] ?? "", /^exec-sandbox: unsupported command: "frobnicate" .*; .+/)
  })

  it("is 127 for a module that does not exist", async () => {
    const done = await python("import frobnicate")
    assert.strictEqual(done.code, 127)
    assert.match(said(done).join("\n"), /^exec-sandbox: unsupported module: "frobnicate" .*; .+$/)
  })

  it("is 124 at the time limit, with the output until then", async () => {
    const done = await python("print('before', flush=True)\nwhile True: pass", "-t", "1")
    assert.deepStrictEqual([done.code, done.stdout], [124, "before\n"])
    assert.lengthOf(said(done), 1)
    assert.match(said(done)[0] ?? "", /^exec-sandbox: time limit exceeded: 1000 ms allowed.*; -t SECONDS allows more$/)
  })

  it("is 137 at the memory limit", async () => {
    const done = await python(
      "kept = []\nwhile True: kept.append(b'x' * (1 << 20) + bytes([len(kept) % 256]))",
      "-m",
      "128"
    )
    assert.strictEqual(done.code, 137)
    assert.lengthOf(said(done), 1)
    assert.match(said(done)[0] ?? "", /^exec-sandbox: memory limit exceeded.*; -m MIB allows more$/)
  })
})

describe("--json", { timeout }, () => {
  it("prints one value with the receipt, the output and the result", async () => {
    const done = await python("import sys\nprint('out')\nprint('err', file=sys.stderr)\n{'a': 1}", "--json")
    assert.deepStrictEqual([done.code, done.stderr], [0, ""])
    const value = JSON.parse(done.stdout)
    assert.deepStrictEqual(
      [value.version, value.outcome, value.stopReason, value.exitCode, value.sequence, value.language],
      [1, "Success", "completed", 0, 1, "python"]
    )
    assert.deepStrictEqual(
      [value.stdout, value.stderr, value.result],
      ["out\n", "err\n", { repr: "{'a': 1}", json: { a: 1 } }]
    )
    assert.deepStrictEqual(value.output, { stdoutBytes: 4, stderrBytes: 4, truncated: false })
    assert.notProperty(value, "error")
    assert.notProperty(value, "bytes")
  })

  it("has the error of a failure, and the same exit code and line", async () => {
    const done = await runCli(["run", "-q", "--json", "-l", "bash", "echo out; frobnicate"])
    assert.strictEqual(done.code, 127)
    assert.lengthOf(said(done), 1)
    const value = JSON.parse(done.stdout)
    assert.deepStrictEqual(
      [value.outcome, value.stopReason, value.exitCode],
      ["UnsupportedCommand", "unsupported", 127]
    )
    assert.strictEqual(value.stdout, "out\n")
    assert.deepInclude(value.error, { tag: "UnsupportedCommand", kind: "command", name: "frobnicate" })
  })
})

describe("the end of the process", { timeout }, () => {
  const endless = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(3600)"

  it.each([
    ["SIGINT", 130],
    ["SIGTERM", 143],
    ["SIGHUP", 129]
  ] as const)("%s closes everything, after live output", async (signal, code) => {
    const cli = await startMachine(signal, endless)
    cli.child.kill(signal)
    const done = await cli.finished
    assert.deepStrictEqual([done.code, done.stdout, done.stderr], [code, "ready\n", ""])
    assert.deepStrictEqual([cli.running(), cli.files()], [[], []])
  })

  it("a second SIGINT exits at once, and leaves no machine", async () => {
    const cli = await startMachine("twice", endless)
    cli.child.kill("SIGINT")
    cli.child.kill("SIGINT")
    assert.strictEqual((await cli.finished).code, 130)
    await vi.waitFor(() => assert.deepStrictEqual(cli.running(), []), 10_000)
  })

  it("SIGKILL leaves no machine", async () => {
    const cli = await startMachine("killed", endless)
    cli.child.kill("SIGKILL")
    assert.strictEqual((await cli.finished).signal, "SIGKILL")
    await vi.waitFor(() => assert.deepStrictEqual(cli.running(), []), 10_000)
  })

  it("a closed stdout ends it silently", async () => {
    const cli = await startMachine("pipe", "print('ready')\nwhile True: print('y' * 1000)")
    cli.child.stdout?.destroy()
    const done = await cli.finished
    assert.deepStrictEqual([done.code, done.stderr], [141, ""])
    assert.deepStrictEqual([cli.running(), cli.files()], [[], []])
  })

  it("the time limit leaves no process and no file", async () => {
    const cli = await startMachine("limit", endless, "-t", "3")
    assert.strictEqual((await cli.finished).code, 124)
    assert.deepStrictEqual([cli.running(), cli.files()], [[], []])
  })
})

describe("the host's commands", { timeout }, () => {
  it("doctor finds image and templates", async () => {
    const done = await runCli(["doctor", "--json"])
    assert.strictEqual(done.code, 0, done.stdout)
    const report = JSON.parse(done.stdout)
    const status = (name: string) => report.checks.find((check: { name: string }) => check.name === name)?.status
    assert.deepStrictEqual([report.ok, status("image"), status("templates")], [true, "ok", "ok"])
  })

  it("template list shows what was warmed", async () => {
    const done = await runCli(["template", "list", "--json"])
    const entries: ReadonlyArray<{ key: string; memoryMiB: number }> = JSON.parse(done.stdout)
    for (const memoryMiB of [512, 768]) assert.isTrue(entries.some((entry) => entry.memoryMiB === memoryMiB))
    const verified = await runCli(["template", "verify", entries[0]?.key ?? ""])
    assert.deepStrictEqual([verified.code, verified.stderr], [0, ""])
  })

  it("snapshot list lists snapshots; remove and verify of an unknown one fail", async () => {
    const listed = await runCli(["snapshot", "list", "--json"])
    assert.deepStrictEqual([listed.code, Array.isArray(JSON.parse(listed.stdout))], [0, true])
    for (const command of ["remove", "verify"]) {
      const done = await runCli(["snapshot", command, "nobody"])
      assert.deepStrictEqual([done.code, done.stdout], [125, ""])
      assert.strictEqual(done.stderr, "exec-sandbox: snapshot nobody: there is no such snapshot\n")
    }
  })

  it("template verify of an unknown one fails", async () => {
    const done = await runCli(["template", "verify", "0".repeat(32)])
    assert.deepStrictEqual([done.code, done.stdout], [1, ""])
    assert.match(done.stderr, /^exec-sandbox: template 0+: there is no such template\n$/)
  })
})
