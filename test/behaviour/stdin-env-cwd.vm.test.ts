/** Stdin, environment and working directory are per execution and do not leak into the next. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { Language } from "../../src/Execution.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { failure, fresh, session, stdout } from "../support/executions.ts"

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("stdin, env, cwd", (it) => {
  describe("4: stdin is empty, or the bytes that the caller gives", () => {
    it.effect("without stdin, every way to read it ends at once", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const input = yield* failure(exec("python", "input('prompt> ')"))
        assert.strictEqual(
          input._tag === "TaskFailed" && input.reason._tag === "Exception" && input.reason.type,
          "EOFError"
        )
        assert.strictEqual(input.stdout, "prompt> ")
        const cases: ReadonlyArray<readonly [Language, string, string]> = [
          [
            "python",
            "import os, sys\nprint(repr(sys.stdin.read()), os.read(0, 1), list(sys.stdin), sys.stdin.isatty())",
            "'' b'' [] False\n"
          ],
          ["python", "import subprocess\nprint(subprocess.run(['cat'], capture_output=True).stdout)", "b''\n"],
          ["javascript", "let n = 0; for await (const x of process.stdin) n += x.length; console.log(n)", "0\n"],
          [
            "javascript",
            "console.log(require('fs').readFileSync(0).length, await new Promise((r) => process.stdin.on('end', () => r('end')).resume()))",
            "0 end\n"
          ],
          [
            "typescript",
            "import * as readline from 'node:readline'; const rl = readline.createInterface({ input: process.stdin }); let n: number = 0; for await (const l of rl) n++; console.log(n)",
            "0\n"
          ],
          ["bash", 'read -r x; echo "$? [$x]"; cat; wc -c', "1 []\n0\n"]
        ]
        for (const [language, code, expected] of cases) {
          assert.strictEqual(yield* stdout(exec(language, code)), expected, code)
        }
      }).pipe(Effect.scoped)
    )

    it.effect("stdin arrives exactly, and what is left unread does not reach the next execution", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const lines = { stdin: "one\ntwo\nthree" }
        const cases: ReadonlyArray<readonly [Language, string, string]> = [
          ["python", "print([input(), input()])", "['one', 'two']\n"],
          ["python", "import sys\nprint(input(), sys.stdin.readline(), [*sys.stdin])", "one two\n ['three']\n"],
          [
            "python",
            "import os, subprocess\nprint(os.read(0, 2)); print(subprocess.run(['cat'], capture_output=True).stdout)",
            "b'on'\nb'e\\ntwo\\nthree'\n"
          ],
          [
            "javascript",
            "let s = ''; for await (const x of process.stdin) s += x; console.log(JSON.stringify(s))",
            '"one\\ntwo\\nthree"\n'
          ],
          ["javascript", "console.log(require('fs').readFileSync('/dev/stdin', 'utf8').length)", "13\n"],
          [
            "typescript",
            "process.stdin.setEncoding('utf8'); await new Promise<void>((r) => process.stdin.once('readable', r)); console.log(process.stdin.read(3) as string)",
            "one\n"
          ],
          ["bash", 'read -r a; read -r b; echo "$a-$b-$(cat)"', "one-two-three\n"],
          ["bash", "mapfile -t all; echo ${#all[@]}", "3\n"],
          ["bash", 'head -n1 >/dev/null; while IFS= read -r l || [[ $l ]]; do echo "[$l]"; done', "[two]\n[three]\n"]
        ]
        for (const [language, code, expected] of cases) {
          assert.strictEqual(yield* stdout(exec(language, code, lines)), expected, code)
        }
        const empty = "import sys\nprint(repr(sys.stdin.read()))"
        assert.strictEqual(yield* stdout(exec("python", empty)), "''\n")
        assert.strictEqual(yield* stdout(exec("bash", "cat")), "")
      }).pipe(Effect.scoped)
    )

    it.effect("any bytes arrive, up to the maximum", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const all = Buffer.alloc(3 * 1024 * 1024, Buffer.from(Array.from({ length: 256 }, (_, i) => i)))
        const sum = (yield* stdout(exec("bash", "sha256sum", { stdin: all }))).slice(0, 64)
        const python = "import sys, hashlib\nprint(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
        const javascript =
          "const h = require('crypto').createHash('sha256'); for await (const x of process.stdin) h.update(x); console.log(h.digest('hex'))"
        const { createHash } = yield* Effect.promise(() => import("node:crypto"))
        assert.strictEqual(sum, createHash("sha256").update(all).digest("hex"))
        assert.strictEqual((yield* stdout(exec("python", python, { stdin: all }))).trim(), sum)
        assert.strictEqual((yield* stdout(exec("javascript", javascript, { stdin: all }))).trim(), sum)
      }).pipe(Effect.scoped)
    )
  })

  const environment: Record<Language, (name: string) => string> = {
    python: (name) => `import os\nprint(os.environ.get('${name}', 'none'))`,
    javascript: (name) => `console.log(process.env['${name}'] ?? 'none')`,
    typescript: (name) => `console.log((process.env['${name}'] ?? 'none') as string)`,
    bash: (name) => `printenv '${name}' || echo none`
  }
  const directory: Record<Language, string> = {
    python: "import os\nprint(os.getcwd())",
    javascript: "console.log(process.cwd())",
    typescript: "console.log(process.cwd() as string)",
    bash: "echo $PWD"
  }
  const children: Record<Language, (command: string) => string> = {
    python: (command) => `import subprocess\nsubprocess.run(['sh', '-c', '${command}'])\nNone`,
    javascript: (command) =>
      `require('child_process').spawnSync('sh', ['-c', '${command}'], { stdio: 'inherit' }); undefined`,
    typescript: (command) =>
      `require('child_process').spawnSync('sh', ['-c', '${command}'] as string[], { stdio: 'inherit' }); undefined`,
    bash: (command) => `sh -c '${command}'`
  }
  describe("5: env and cwd are per execution", () => {
    for (const language of ["python", "javascript", "typescript", "bash"] as const) {
      it.effect(`${language}: they reach the code and its children, and do not leak`, () =>
        Effect.gen(function* () {
          const exec = yield* fresh
          const values = {
            A: 'it\'s "quoted" $HOME `id` \\ \n\u{1F600}',
            EMPTY: "",
            HOME: "/tmp",
            "not-an.identifier": "v"
          }
          const own = { env: values, cwd: "/usr/lib" }
          assert.strictEqual(yield* stdout(exec(language, environment[language]("A"), own)), `${values.A}\n`)
          assert.strictEqual(yield* stdout(exec(language, environment[language]("not-an.identifier"), own)), "v\n")
          assert.strictEqual(yield* stdout(exec(language, environment[language]("EMPTY"), own)), "\n")
          assert.strictEqual(yield* stdout(exec(language, directory[language], own)), "/usr/lib\n")
          assert.strictEqual(
            yield* stdout(exec(language, children[language]("pwd; printenv A HOME"), own)),
            `/usr/lib\n${values.A}\n/tmp\n`
          )
          for (const name of ["A", "not-an.identifier", "EMPTY"]) {
            assert.strictEqual(yield* stdout(exec(language, environment[language](name))), "none\n", name)
          }
          assert.strictEqual(yield* stdout(exec(language, environment[language]("HOME"))), "/home/user\n")
          assert.strictEqual(yield* stdout(exec(language, directory[language])), "/home/user\n")
          assert.strictEqual(
            yield* stdout(exec(language, children[language]("pwd; printenv A || true"))),
            "/home/user\n"
          )
        }).pipe(Effect.scoped)
      )
    }

    it.effect(
      "they are also undone when an execution fails, exits or is interrupted; what the code itself sets stays",
      () =>
        Effect.gen(function* () {
          const exec = yield* fresh
          const own = { env: { A: "a" }, cwd: "/tmp", limits: { timeMs: 1000 } }
          const ends: ReadonlyArray<readonly [Language, string]> = [
            ["python", "1 / 0"],
            ["python", "exit(3)"],
            ["python", "while True: pass"],
            ["javascript", "throw 1"],
            ["javascript", "process.exit(3)"],
            ["javascript", "for (;;);"],
            ["bash", "false"],
            ["bash", "exit 3"],
            ["bash", "while :; do :; done"],
            ["bash", "set -e; false"]
          ]
          for (const [language, code] of ends) {
            assert.strictEqual((yield* failure(exec(language, code, own))).receipt.state, "kept", code)
            assert.strictEqual(yield* stdout(exec(language, environment[language]("A"))), "none\n", code)
            assert.strictEqual(yield* stdout(exec(language, directory[language])), "/home/user\n", code)
          }
          yield* exec("python", "import os\nos.environ['A'] = 'mine'; os.chdir('/usr')", {
            env: { A: "a" },
            cwd: "/tmp"
          })
          assert.strictEqual(yield* stdout(exec("python", "print(os.environ['A'], os.getcwd())")), "mine /usr\n")
          yield* exec("javascript", "process.env.A = 'mine'; process.chdir('/usr')", { env: { A: "a" }, cwd: "/tmp" })
          assert.strictEqual(
            yield* stdout(exec("javascript", "console.log(process.env.A, process.cwd())")),
            "mine /usr\n"
          )
          yield* exec("bash", "set +e; A=mine; cd /usr", { env: { A: "a" }, cwd: "/tmp" })
          assert.strictEqual(yield* stdout(exec("bash", "echo $A $PWD")), "mine /usr\n")
        }).pipe(Effect.scoped)
    )

    it.effect("line numbers do not shift with env or cwd", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const own = { env: { A: "1\n2\n3" }, cwd: "/tmp", stdin: "x\n" }
        const python = yield* failure(exec("python", "\n\nraise ValueError", own))
        assert.match(python.stderr, /line 3, in <module>/)
        const javascript = yield* failure(exec("javascript", "\n\nthrow new Error('x')", own))
        assert.match(javascript.stderr, /<exec-\d+>:3\n/)
        const typescript = yield* failure(
          exec("typescript", "enum E { A }\n\ninterface I { a: E }\nthrow new Error('x')", own)
        )
        assert.match(typescript.stderr, /<exec-\d+>:4:7/)
        assert.strictEqual((yield* exec("bash", "\n\necho $LINENO", own)).stdout, "3\n")
        assert.match(
          (yield* failure(exec("bash", "\nnonsense-command", own))).stderr,
          /^bash: line 2: nonsense-command: command not found\n$/
        )
      }).pipe(Effect.scoped)
    )

    it.effect("a cwd that does not exist or is not a directory fails the task; NUL and invalid names are refused", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        for (const language of ["python", "javascript", "typescript", "bash"] as const) {
          for (const cwd of ["/nowhere", "/etc/passwd"]) {
            const error = yield* failure(exec(language, directory[language], { cwd }))
            assert.deepStrictEqual(
              [error._tag, error.receipt.exitCode, error.stdout],
              ["TaskFailed", 1, ""],
              `${language} ${cwd}`
            )
            assert.include(error.stderr, cwd)
          }
          assert.strictEqual(yield* stdout(exec(language, directory[language])), "/home/user\n")
        }
        const bad = [
          { env: { "": "x" } },
          { env: { "A=B": "x" } },
          { env: { "A\0": "x" } },
          { env: { A: "x\0y" } },
          { cwd: "a\0b" },
          { cwd: "" }
        ]
        for (const settings of bad) {
          const error = yield* Effect.flip(exec("bash", "true", settings))
          assert.strictEqual(
            error._tag === "SandboxError" && error.reason._tag,
            "InvalidInput",
            JSON.stringify(settings)
          )
        }
      }).pipe(Effect.scoped)
    )

    it.effect("a session's env is in every execution, which may override it, in restarted interpreters too", () =>
      Effect.gen(function* () {
        const it = yield* session({ env: { S: "session", A: "session" } })
        for (const language of ["python", "javascript", "bash"] as const) {
          const show = environment[language]
          assert.strictEqual((yield* it.exec({ language, code: show("S") })).stdout, "session\n")
          assert.strictEqual((yield* it.exec({ language, code: show("A"), env: { A: "own" } })).stdout, "own\n")
          assert.strictEqual((yield* it.exec({ language, code: show("A") })).stdout, "session\n")
        }
        yield* Effect.flip(it.exec({ language: "bash", code: "kill -KILL $$" }))
        assert.strictEqual((yield* it.exec({ language: "bash", code: environment.bash("S") })).stdout, "session\n")
      }).pipe(Effect.scoped)
    )
  })
})
