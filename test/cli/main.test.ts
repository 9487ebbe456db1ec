import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import { execFileSync } from "node:child_process"
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { constants, tmpdir } from "node:os"
import { join } from "node:path"
import { afterAll } from "vitest"
import { endingOf, endingOfDefect, endingOfExit, Leave, lineOf, signalCode } from "../../src/cli/ending.ts"
import { parseBytes, parsePair } from "../../src/cli/flags.ts"
import * as json from "../../src/cli/json.ts"
import { size, table } from "../../src/cli/output.ts"
import * as progress from "../../src/cli/progress.ts"
import { parseSecret } from "../../src/cli/secrets.ts"
import { languageOf, looksLikeFile, sourceOf } from "../../src/cli/source.ts"
import { Result } from "../../src/Execution.ts"
import type { ProgressEvent } from "../../src/internal/Progress.ts"
import {
  BootFailed,
  fail,
  HostUnsupported,
  InvalidInput,
  LimitExceeded,
  NotStarted,
  OutcomeUnknown,
  PermissionDenied,
  type Reason,
  TaskFailed,
  TemplateUnusable,
  UnsupportedCommand
} from "../../src/SandboxError.ts"
import { runCli, startCli } from "../support/runCli.ts"
import { runInside } from "../support/runInside.ts"
import { receipt as receiptWith } from "../support/receipts.ts"

const scratch = mkdtempSync(join(tmpdir(), "exec-sandbox-cli-"))
afterAll(() => rmSync(scratch, { recursive: true, force: true }))

const scratchFile = (name: string, content: string | Uint8Array): string => {
  const file = join(scratch, name)
  writeFileSync(file, content)
  return file
}

const receipt = receiptWith({
  image: "img",
  template: "tpl",
  limits: {
    timeMs: 1000,
    memoryBytes: 134217728,
    outputBytes: 1,
    output: "truncate",
    processes: 16,
    fileSizeBytes: 1,
    diskBytes: 1
  },
  outcome: "TaskFailed",
  stopReason: "failed",
  exitCode: 3,
  output: { stdoutBytes: 2, stderrBytes: 2, truncated: false },
  usage: { cpuMs: null, peakMemoryBytes: null, wallMs: null },
  timing: { queueMs: null, acquireMs: null, handoverMs: null, wakeMs: null, executeMs: null }
})
const bytes = { stdout: Buffer.from("o\n"), stderr: Buffer.from("e\n") }
const ran = { stdout: "o\n", stderr: "e\n", bytes, outputFiles: { stdout: null, stderr: null }, changes: null, receipt }
const noFile = new PermissionDenied({
  operation: "file",
  target: "/etc/shadow",
  rule: "EACCES",
  grant: "use a path that user may access",
  ...ran
})
const noCommand = (available: ReadonlyArray<string>) =>
  new UnsupportedCommand({ kind: "command", name: "fooo", available, ...ran })
const limit = (name: LimitExceeded["limit"], allowed: number | null, observed: number | null) =>
  new LimitExceeded({ limit: name, allowed, observed, ...ran })
const failed = (reason: TaskFailed["reason"]) => new TaskFailed({ reason, ...ran })

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

describe("flags", () => {
  it.each([
    ["A=b", ["A", "b"]],
    ["A=", ["A", ""]],
    ["A=b=c", ["A", "b=c"]],
    ["a.b-c= x ", ["a.b-c", " x "]]
  ])("%s is a pair", (text, pair) => assert.deepStrictEqual(Option.getOrUndefined(parsePair(text)), pair as never))

  it.each([
    ["A@b", { name: "A", from: "A", hosts: ["b"] }],
    ["A=B@c,*.d:8443", { name: "A", from: "B", hosts: ["c", "*.d:8443"] }],
    ["A_1=/x@y=z/f@b", { name: "A_1", from: "/x@y=z/f", hosts: ["b"] }],
    ["A", undefined],
    ["A=@b", undefined],
    ["A@", undefined],
    ["@b", undefined],
    ["1=B@c", undefined]
  ] as const)("%s is parsed as a secret", (text, wanted) =>
    assert.deepEqual(Option.getOrUndefined(parseSecret(text)), wanted as never)
  )

  it.each(["A", "=b", "", "="])("%s is not a pair", (text) => assert.isTrue(Option.isNone(parsePair(text))))

  it.each([
    ["0", 0],
    ["1024", 1024],
    ["2K", 2048],
    ["2KiB", 2048],
    ["2kb", 2048],
    ["3m", 3 * 1024 ** 2],
    ["1G", 1024 ** 3],
    ["1TiB", 1024 ** 4]
  ])("%s is %i bytes", (text, bytes) => assert.deepStrictEqual(Option.getOrUndefined(parseBytes(text)), bytes))

  it.each(["", "-1", "1.5G", "G", "1 G", "1P", "1e3", "999999999999999T"])("%s is not a size", (text) =>
    assert.isTrue(Option.isNone(parseBytes(text)))
  )
})

describe("ending", () => {
  it("passes the program's own exit code through without a message", () => {
    assert.deepStrictEqual(endingOf(failed({ _tag: "ExitCode", exitCode: 125 })), { code: 125 })
    assert.deepStrictEqual(endingOf(failed({ _tag: "Signal", signal: "SIGSEGV" })), {
      code: 128 + constants.signals.SIGSEGV
    })
    assert.deepStrictEqual(endingOf(failed({ _tag: "Exception", type: "ValueError", message: "x", traceback: "" })), {
      code: 3
    })
  })

  it.each([
    [noFile, 126, 'permission denied: file "/etc/shadow" (EACCES); use a path that user may access'],
    [noCommand([]), 127, 'unsupported command: "fooo" does not exist here; use an image that has it'],
    [noCommand(["foo"]), 127, 'unsupported command: "fooo" does not exist here; available: foo'],
    [limit("time", 1000, null), 124, "time limit exceeded: 1000 ms allowed; -t SECONDS allows more"],
    [limit("memory", 1024, 2048), 137, "memory limit exceeded: 1024 bytes allowed, 2048 observed; -m MIB allows more"],
    [limit("disk", null, null), 1, "disk limit exceeded"],
    [limit("processes", 16, null), 1, "processes limit exceeded: 16 processes allowed"],
    [limit("output", 10, 11), 1, "output limit exceeded: 10 bytes allowed, 11 observed"]
  ])("%s", (error, code, why) => assert.deepStrictEqual(endingOf(error), { code, why }))

  const reasons: ReadonlyArray<readonly [Reason, number, string]> = [
    [new InvalidInput({ field: "env", problem: "got 1", expected: "text" }), 2, "invalid env: got 1; expected text"],
    [
      new HostUnsupported({ requirement: "QEMU", found: null, needed: "7.2", fix: "install it" }),
      125,
      "QEMU: found none, needs 7.2; install it"
    ],
    [
      new BootFailed({ stage: "boot", problem: "no answer", console: "panic\nmore" }),
      125,
      "VM failed at boot: no answer; it is safe to try again"
    ],
    [new TemplateUnusable({ key: "k", problem: "full" }), 125, "template k: full; it is safe to try again"],
    [new NotStarted({ problem: "gone" }), 125, "not started: gone; it is safe to try again"],
    [new OutcomeUnknown({ problem: "gone", receipt }), 125, "outcome unknown: gone; the code may have run"]
  ]
  it.each(reasons)("%s", (reason, code, why) => assert.deepStrictEqual(endingOf(fail(reason)), { code, why }))

  it("names a defect in one line", () => {
    const { code, why } = endingOfDefect(new TypeError("x is not a function"))
    assert.strictEqual(code, 125)
    assert.match(
      lineOf(why ?? ""),
      /^exec-sandbox: internal error: TypeError: x is not a function at .*main\.test\.ts.*\n$/
    )
    assert.deepStrictEqual(endingOfDefect("odd"), { code: 125, why: "internal error: odd; please report it" })
  })

  it("is 0, the error's code, or 130 after an interruption", () => {
    assert.deepStrictEqual(endingOfExit(Exit.void), { code: 0 })
    assert.deepStrictEqual(endingOfExit(Exit.fail(noFile)).code, 126)
    assert.deepStrictEqual(endingOfExit(Exit.fail(new Leave({ code: 7 }))).code, 7)
    assert.deepStrictEqual(endingOfExit(Exit.die("odd")).code, 125)
    assert.deepStrictEqual(endingOfExit(Exit.interrupt(1)).code, 130)
  })

  it("counts signals as shells do", () => {
    assert.deepStrictEqual(
      ["SIGHUP", "SIGINT", "SIGKILL", "SIGTERM", "SIGNOPE"].map(signalCode),
      [129, 130, 137, 143, 1]
    )
  })
})

describe("json", () => {
  const { bytes: _, changes: __, outputFiles: ___, receipt: ____, ...texts } = ran

  it("of a result is the receipt, the output and the value", () => {
    const result = new Result({ ...ran, result: { repr: "2", json: 2 } })
    assert.deepStrictEqual(json.ofResult(result), { ...receipt, ...texts, result: { repr: "2", json: 2 } })
  })

  it("of a failure is the receipt, the output and the error's own fields", () => {
    assert.deepStrictEqual(json.ofFailure(noFile), {
      ...receipt,
      ...texts,
      error: {
        tag: "PermissionDenied",
        message: noFile.message,
        operation: "file",
        target: "/etc/shadow",
        rule: "EACCES",
        grant: "use a path that user may access"
      }
    })
    assert.deepStrictEqual(json.ofFailure(failed({ _tag: "ExitCode", exitCode: 3 })), {
      ...receipt,
      ...texts,
      error: {
        tag: "TaskFailed",
        message: "task failed with exit code 3",
        reason: { tag: "ExitCode", exitCode: 3 }
      }
    })
  })

  it("of a sandbox failure has what is known", () => {
    assert.deepStrictEqual(json.ofFailure(fail(new NotStarted({ problem: "gone" }))), {
      outcome: "SandboxError",
      stopReason: "sandbox-failure",
      stdout: null,
      stderr: null,
      error: {
        tag: "SandboxError",
        message: "not started: gone",
        retry: "safe",
        reason: { tag: "NotStarted", problem: "gone" }
      }
    })
    const unknown = json.ofFailure(fail(new OutcomeUnknown({ problem: "gone", receipt })))
    assert.deepStrictEqual(unknown, {
      ...receipt,
      stdout: null,
      stderr: null,
      error: {
        tag: "SandboxError",
        message: "outcome unknown: gone",
        retry: "unsafe",
        reason: { tag: "OutcomeUnknown", problem: "gone" }
      }
    })
  })

  it("keeps a foreign cause as data", () => {
    const error = fail(new TemplateUnusable({ key: "k", problem: "p", cause: new Error("deep") }))
    assert.include(JSON.stringify(json.ofFailure(error)), "deep")
  })
})

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

/** What progress writes, on a terminal or elsewhere. */
const drawn = (terminal: boolean, ...events: ReadonlyArray<ProgressEvent>) => {
  const written: Array<string> = []
  const stream = { isTTY: terminal, columns: 60, write: (text: string | Uint8Array) => written.push(`${text}`) > 0 }
  const drawer = progress.make(stream as never)
  return Effect.as(
    Effect.andThen(
      Effect.forEach(events, (event) => drawer.show(event)),
      drawer.clear
    ),
    written
  )
}

describe("progress", () => {
  const half = { stage: "image", message: "pulling", done: 512, total: 1024 }

  it.effect("is one changing line on a terminal", () =>
    Effect.gen(function* () {
      const written = yield* drawn(true, { stage: "template", message: "booting" }, half, half)
      assert.deepStrictEqual(written, [
        "\r\x1b[Ktemplate: booting",
        "\r\x1b[Kimage: pulling [############            ] 50%",
        "\r\x1b[K"
      ])
    })
  )

  it.effect("is a line per step elsewhere", () =>
    Effect.gen(function* () {
      const written = yield* drawn(false, half, { ...half, done: 1024 }, { stage: "image", message: "unpacking" })
      assert.deepStrictEqual(written, ["image: pulling\n", "image: unpacking\n"])
    })
  )

  it("fits the terminal", () => {
    for (const columns of [0, 1, 20, 31, 32, 79]) {
      assert.isAtMost(progress.draw({ ...half, message: "x".repeat(200) }, columns).length, columns)
    }
    assert.strictEqual(progress.draw({ ...half, done: 9999 }, 79).slice(-4), "100%")
  })
})

describe("a usage error", () => {
  const wrong: ReadonlyArray<readonly [ReadonlyArray<string>, RegExp]> = [
    [[], /USAGE/],
    [["rnu"], /Unknown subcommand "rnu"[^]*run/],
    [["run"], /USAGE[^]*Missing required argument: code/],
    [["run", ""], /USAGE[^]*Missing required argument: code/],
    [["run", "--nope", "print(1)"], /Unrecognized flag: --nope/],
    [["run", "--net", "all", "print(1)"], /Unrecognized flag: --net/],
    [["run", "--network", "some", "print(1)"], /--network/],
    [["run", "print(1)", "print(2)"], /Unexpected positional argument: "print\(2\)"/],
    [["run", "-l", "ruby", "1"], /--language[^]*python/],
    [["run", "-m", "64", "print(1)"], /--memory: "64"[^]*128/],
    [["run", "-m", "1e9", "print(1)"], /--memory/],
    [["run", "-t", "0", "print(1)"], /--time: "0"[^]*seconds/],
    [["run", "-t", "-1", "print(1)"], /--time/],
    [["run", "-t", "x", "print(1)"], /--time/],
    [["run", "-e", "X", "print(1)"], /--env: "X"[^]*NAME=VALUE/],
    [["run", "--secret", "TOKEN", "print(1)"], /--secret: "TOKEN"[^]*NAME@HOST/],
    [["run", "--secret", "TOKEN=NO_SUCH_VARIABLE@a.example", "print(1)"], /--secret TOKEN: its .*variable is not set/],
    [["run", "--secret", "TOKEN=./missing@a.example", "print(1)"], /--secret TOKEN: its file cannot be read/],
    [["run", "--secret", "PATH@10.0.0.1", "print(1)"], /secrets\.PATH\.hosts\.0/],
    [["run", "--secret", "PATH@a.example", "print(1)"], /does not grant "a\.example"[^]*allow "a\.example"/],
    [["run", "--upload", "file", "print(1)"], /--upload: "file"[^]*HOST:GUEST/],
    [["run", "--upload", ":guest", "print(1)"], /HOST:GUEST/],
    [["run", "--upload", "host:", "print(1)"], /HOST:GUEST/],
    [["run", "--download", "", "print(1)"], /GUEST\[:HOST\]/],
    [["run", "--download", "/", "print(1)"], /GUEST\[:HOST\]/],
    [["run", "--download", "a:", "print(1)"], /GUEST\[:HOST\]/],
    [["run", "-f", "a.py", "print(1)"], /not both/],
    [["run", "script.py"], /-f script\.py/],
    [["run", "./script"], /-f \.\/script/],
    [["run", "-f", "a.rb"], /"a\.rb"[^]*\.mts/],
    [["run", "-f", join(scratch, "missing.py")], /cannot read .*missing\.py.*ENOENT/],
    [["run", "-f", scratch, "-l", "bash"], /EISDIR/],
    [["run", "-f", scratchFile("latin1.py", Buffer.from([0xe4])), "-q"], /not UTF-8/],
    [["image"], /USAGE/],
    [["image", "pull", "https://example.com/x"], /--sha256/],
    [["image", "remove"], /USAGE[^]*Missing required argument/],
    [["template", "warm", "-m", "64"], /--memory/],
    [["template", "prune", "--keep", "lots"], /--keep/],
    [["completions", "tcsh"], /bash/]
  ]
  for (const [args, said] of wrong) {
    it(`exec-sandbox ${args.join(" ").replace(scratch, "")}`, async () => {
      const done = await runInside(args)
      assert.deepStrictEqual([done.code, done.stdout], [2, ""])
      assert.match(done.stderr, said)
    })
  }
})

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
