import { assert, beforeAll, describe, it } from "@effect/vitest"
import { execFileSync, spawn } from "node:child_process"
import { readdirSync, readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { afterEach, vi } from "vitest"
import { runCli } from "../support/runCli.ts"
import { qemus } from "../support/processes.ts"

const timeout = 60_000
const children = new Set<ReturnType<typeof spawn>>()
// A failed test leaves its terminal open.
afterEach(() => {
  for (const child of children) child.kill("SIGKILL")
  children.clear()
})
const bin = fileURLToPath(new URL("../../src/cli/bin.ts", import.meta.url))

beforeAll(async () => {
  const warmed = await runCli(["template", "warm"])
  assert.strictEqual(warmed.code, 0, warmed.stderr)
}, 600_000)

/** All modes of a terminal in one word. */
const modes = (tty: string): string => execFileSync("stty", ["-F", tty, "-g"], { encoding: "utf8" }).trim()

/** Whether keys reach the program one by one, without an echo, Ctrl-C included. */
const isRaw = (tty: string): boolean => {
  const all = execFileSync("stty", ["-F", tty, "-a"], { encoding: "utf8" })
  return ["-icanon", "-echo", "-isig", "-ixon", "-opost"].every((word) => all.split(/\s+/).includes(word))
}

/** The process that runs our command line and has a word in its environment. */
const pidOf = (word: string): number => {
  const found = readdirSync("/proc").find((name) => {
    if (!/^\d+$/.test(name)) return false
    try {
      const line = readFileSync(`/proc/${name}/cmdline`, "utf8").split("\0")
      return line[1] === bin && readFileSync(`/proc/${name}/environ`, "utf8").includes(word)
    } catch {
      return false
    }
  })
  return Number(found)
}

/** `exec-sandbox shell` on a terminal of 33 rows and 77 columns, at which the test types. */
const onTerminal = async (...args: ReadonlyArray<string>) => {
  const word = `SHELL_TEST=${Math.random()}`
  const quoted = [process.execPath, bin, "shell", "-q", ...args]
    .map((arg) => `'${arg.replaceAll("'", "'\\''")}'`)
    .join(" ")
  const script = `stty rows 33 cols 77; echo "tty:$(tty)"; read -r go; ${quoted}; echo "code:$?"; read -r go`
  const child = spawn("script", ["-qfec", script, "/dev/null"], {
    env: { ...process.env, TERM: "xterm", SHELL: "/bin/bash", SHELL_TEST: word.slice(11) },
    stdio: ["pipe", "pipe", "inherit"]
  })
  children.add(child)
  let all = ""
  let seen = 0
  child.stdout.on("data", (chunk: Buffer) => (all += chunk.toString("latin1")))
  /** Waits for a text after the last one that was found. */
  const until = (wanted: RegExp): Promise<RegExpExecArray> =>
    vi.waitFor(
      () => {
        const match = wanted.exec(all.slice(seen))
        if (match === null) throw new Error(`no ${wanted} in ${JSON.stringify(all.slice(seen))}`)
        seen += match.index + match[0].length
        return match
      },
      { timeout: 30_000, interval: 20 }
    )
  const type = (text: string): void => void child.stdin.write(text)
  const tty = (await until(/tty:(\S+)/))[1] ?? ""
  const before = modes(tty)
  type("\n")
  return {
    tty,
    until,
    type,
    pid: () => pidOf(word),
    /** Waits for the end, and asserts that the terminal is as before. */
    ended: async () => {
      const code = Number((await until(/code:(\d+)/))[1])
      assert.strictEqual(modes(tty), before)
      type("\n")
      await new Promise((resolve) => child.on("close", resolve))
      return code
    },
    output: () => all
  }
}

describe("exec-sandbox shell on a terminal", { timeout }, () => {
  it("is bash in raw mode, with the terminal's size and name, and restores the terminal", async () => {
    const shell = await onTerminal("-e", "PS1=<$?> ", "bash", "--norc")
    await shell.until(/<0> /)
    assert.isTrue(isRaw(shell.tty))
    shell.type('stty size; echo "$TERM-$(id -un)-$(hostname)"\n')
    await shell.until(/33 77\r\n/)
    await shell.until(/xterm-user-sbx-/)
    await shell.until(/<0> /)
    // Ctrl-C goes to the guest.
    shell.type("bash -c 'echo on; exec sleep 100'\n")
    await shell.until(/on\r\n/)
    shell.type("\x03")
    await shell.until(/<130> /)
    execFileSync("stty", ["-F", shell.tty, "rows", "20", "cols", "60"])
    shell.type("until [ \"$(stty size)\" = '20 60' ]; do sleep 0.05; done; echo re''sized\n")
    await shell.until(/resized\r\n/)
    execFileSync("stty", ["-F", shell.tty, "rows", "33", "cols", "77"])
    shell.type("exit 7\n")
    assert.strictEqual(await shell.ended(), 7)
  })

  it("passes a full-screen program's bytes unchanged", async () => {
    const shell = await onTerminal("bash", "-c", "stty -opost; tput smcup; tput cup 4 2; printf 'here\\n'; tput rmcup")
    await shell.until(new RegExp("E\\[\\?1049h(?:E\\[22;0;0t)?E\\[5;3Hhere\\nE\\[\\?1049l".replaceAll("E", "\u001b")))
    assert.strictEqual(await shell.ended(), 0)
  })

  it("restores the terminal when the program cannot be started", async () => {
    const shell = await onTerminal("no-such-program", "--flag")
    await shell.until(/exec-sandbox: unsupported command: "no-such-program"/)
    assert.strictEqual(await shell.ended(), 127)
  })

  it.each([
    ["SIGTERM", 143],
    ["SIGHUP", 129],
    ["SIGINT", 130]
  ] as const)("restores the terminal after %s", async (signal, code) => {
    const shell = await onTerminal("bash", "-c", "echo on; exec sleep 100")
    await shell.until(/on\r\n/)
    assert.isTrue(isRaw(shell.tty))
    process.kill(shell.pid(), signal)
    assert.strictEqual(await shell.ended(), code)
  })

  it("restores the terminal when the machine dies", async () => {
    const shell = await onTerminal("bash", "-c", "echo on; exec sleep 100")
    await shell.until(/on\r\n/)
    assert.isTrue(isRaw(shell.tty))
    const [machine] = qemus(shell.pid())
    process.kill(machine as number, "SIGKILL")
    await shell.until(/exec-sandbox: outcome unknown/)
    assert.strictEqual(await shell.ended(), 125)
  })

  it("is raw again after SIGCONT", async () => {
    const shell = await onTerminal("bash", "-c", 'echo on; read -r -n 1 key; echo "<$key>"')
    await shell.until(/on\r\n/)
    execFileSync("stty", ["-F", shell.tty, "cooked"])
    process.kill(shell.pid(), "SIGCONT")
    await vi.waitFor(() => assert.isTrue(isRaw(shell.tty)), { timeout: 10_000 })
    shell.type("k")
    await shell.until(/<k>/)
    assert.strictEqual(await shell.ended(), 0)
  })
})

describe("exec-sandbox shell without a terminal", { timeout }, () => {
  it("is bash that reads its commands from a pipe", async () => {
    const done = await runCli(["shell", "-q"], { stdin: "echo out; echo err >&2; tty; exit 3\n" })
    assert.deepStrictEqual([done.code, done.stdout, done.stderr], [3, "out\nnot a tty\n", "err\n"])
  })

  it("is a filter for any bytes, and passes flags after the program to it", async () => {
    const bytes = Buffer.from(Array.from({ length: 700_000 }, (_, i) => (i * 31 + (i >> 8)) % 256))
    const done = await runCli(["shell", "-q", "-e", "A=b", "head", "-c", "600000"], { stdin: bytes })
    assert.strictEqual(done.code, 0)
    assert.isTrue(done.bytes.equals(bytes.subarray(0, 600_000)))
    const word = await runCli([
      "shell",
      "-q",
      "-m",
      "512",
      "-e",
      "A=b=c",
      "sh",
      "-c",
      "echo $A $1; kill -9 $$",
      "-",
      "-q"
    ])
    assert.deepStrictEqual([word.code, word.stdout], [137, "b=c -q\n"])
  })

  it("says why when it fails", async () => {
    const done = await runCli(["shell", "-q", "/etc/passwd"])
    assert.strictEqual(done.code, 126)
    assert.match(done.stderr, /^exec-sandbox: permission denied: execute "\/etc\/passwd" \(EACCES\); .*\n$/)
    assert.strictEqual((await runCli(["shell", "-m", "1"])).code, 2)
  })
})
