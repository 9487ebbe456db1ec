/** The error of a task is decided by evidence from the guest, not guessed from its output. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { Language } from "../../src/Execution.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { ended, failure, fresh, type TaskFailure } from "../support/executions.ts"

/** The error's tag-specific fields, in one line. */
const summary = (error: TaskFailure): string => {
  switch (error._tag) {
    case "PermissionDenied":
      return `${error.operation} ${error.target} ${error.rule}`
    case "UnsupportedCommand":
      return `${error.kind} ${error.name}`
    case "LimitExceeded":
      return error.limit
    case "TaskFailed":
      return error.reason._tag === "ExitCode"
        ? `exit ${error.reason.exitCode}`
        : error.reason._tag === "Signal"
          ? error.reason.signal
          : error.reason.type
  }
}

type Case = readonly [Language, code: string, summary: string]
const kinds: Record<TaskFailure["_tag"], ReadonlyArray<Case>> = {
  UnsupportedCommand: [
    ["bash", "nonsense-command --flag", "command nonsense-command"],
    ["bash", "true | nonsense-command", "command nonsense-command"],
    ["bash", "x=$(nonsense-command)", "command nonsense-command"],
    ["bash", "f() { nonsense-command; }; f", "command nonsense-command"],
    ["bash", "set -e; nonsense-command; echo no", "command nonsense-command"],
    ["bash", "set +e; (exit 127); ( ( nonsense-command; exit ) )", "command nonsense-command"],
    [
      "bash",
      "set -o pipefail; nonsense-command | cat; eval 'nonsense-command' && x=$(true; (nonsense-command))",
      "command nonsense-command"
    ],
    ["bash", "nonsense-command & wait $!", "command nonsense-command"],
    ["bash", "set +e; /nowhere/program", "command /nowhere/program"],
    ["bash", "exec /nowhere/program", "command /nowhere/program"],
    ["bash", "exec nonsense-command --flag", "command nonsense-command"],
    ["bash", "exec -c -a name nonsense-command 2>/dev/null", "command nonsense-command"],
    ["bash", "command exec -- nonsense-command", "command nonsense-command"],
    ["bash", "f() { (builtin exec nonsense-command); }; f", "command nonsense-command"],
    ["bash", "shopt -s execfail; exec nonsense-command", "command nonsense-command"],
    ["bash", "printf '\\x7fELF garbage' >/tmp/elf; chmod +x /tmp/elf; /tmp/elf", "executable /tmp/elf"],
    [
      "bash",
      "printf '#!/nowhere/interpreter\\n' >/tmp/script; chmod +x /tmp/script; /tmp/script",
      "executable /tmp/script"
    ],
    ["python", "import nonsense_module", "module nonsense_module"],
    ["python", "from nonsense_module.sub import x", "module nonsense_module"],
    ["python", "import importlib; importlib.import_module('nonsense_module')", "module nonsense_module"],
    ["python", "import subprocess; subprocess.run(['nonsense-command'])", "command nonsense-command"],
    ["python", "import subprocess; subprocess.run(['/tmp/elf'])", "executable /tmp/elf"],
    ["javascript", "require('nonsense-package')", "module nonsense-package"],
    ["javascript", "await import('@scope/nonsense/sub')", "module @scope/nonsense"],
    ["javascript", "import x from 'nonsense-package'", "module nonsense-package"],
    ["typescript", "import x from 'nonsense-package'; const y: number = x", "module nonsense-package"],
    ["javascript", "import 'node:nonsense'", "module node:nonsense"],
    ["javascript", "require('child_process').execFileSync('nonsense-command')", "command nonsense-command"]
  ],
  PermissionDenied: [
    ["python", "open('/etc/shadow')", "file /etc/shadow EACCES"],
    ["python", "open('/etc/new', 'w')", "file /etc/new EACCES"],
    ["python", "import os; os.chown('/etc/passwd', 0, 0)", "file /etc/passwd EPERM"],
    ["python", "import os; os.listdir('/root')", "file /root EACCES"],
    ["python", "import os; os.kill(1, 9)", "file null EPERM"],
    ["python", "import subprocess; subprocess.run(['/etc/passwd'])", "execute /etc/passwd EACCES"],
    ["javascript", "require('fs').readFileSync('/etc/shadow')", "file /etc/shadow EACCES"],
    ["javascript", "await require('fs/promises').mkdir('/usr/x')", "file /usr/x EACCES"],
    ["typescript", "import { rmSync } from 'node:fs'; rmSync('/etc/passwd' as string)", "file /etc/passwd EACCES"],
    ["javascript", "require('child_process').execFileSync('/etc/passwd')", "execute /etc/passwd EACCES"],
    ["bash", "/etc/passwd", "execute /etc/passwd EACCES"],
    ["bash", "echo echo x >/tmp/plain; chmod -x /tmp/plain; /tmp/plain", "execute /tmp/plain EACCES"],
    ["bash", "exec /tmp/plain", "execute /tmp/plain EACCES"]
  ],
  LimitExceeded: [
    ["python", "raise MemoryError", "memory"],
    ["python", "import errno; raise OSError(errno.ENOSPC, 'full', '/x')", "disk"],
    ["python", "import errno; raise OSError(errno.EDQUOT, 'full')", "disk"],
    ["javascript", "throw Object.assign(new Error('full'), { code: 'ENOSPC' })", "disk"]
  ],
  TaskFailed: [
    ["bash", "exit 126", "exit 126"],
    ["bash", "exit 127", "exit 127"],
    ["bash", "shopt -s execfail; exec nonsense-command; exec 3<&-; exit 127", "exit 127"],
    ["bash", "exec bash -c 'exit 126'", "exit 126"],
    ["bash", "nonsense-command || true; exit 127", "exit 127"],
    ["bash", "nonsense-command; false", "exit 1"],
    ["bash", "(exit 127)", "exit 127"],
    ["bash", "nonsense-command; (exit 127)", "exit 127"],
    ["bash", "x=$(nonsense-command); bash -c 'exit 127'", "exit 127"],
    ["bash", "shopt -s execfail; exec nonsense-command; sh -c 'exit 127'", "exit 127"],
    ["bash", "bash -c 'exit 126'", "exit 126"],
    ["bash", "grep x /dev/null", "exit 1"],
    ["bash", "grep -r x /root", "exit 2"],
    ["bash", "echo 'bash: x: command not found' >&2; echo 'Permission denied' >&2; false", "exit 1"],
    ["bash", "cat /etc/shadow", "exit 1"],
    ["bash", "test 1 = 2", "exit 1"],
    ["python", "raise ValueError('Permission denied: EACCES')", "ValueError"],
    ["python", "raise ImportError('No module named x')", "ImportError"],
    ["python", "open('/nowhere')", "FileNotFoundError"],
    ["python", "assert False", "AssertionError"],
    ["python", "class Mine(Exception): pass\nraise Mine", "Mine"],
    ["python", "import json; json.loads('{')", "json.decoder.JSONDecodeError"],
    ["python", "import subprocess; subprocess.run(['false'], check=True)", "subprocess.CalledProcessError"],
    ["python", "import sys; print('ModuleNotFoundError', file=sys.stderr); sys.exit(127)", "exit 127"],
    ["python", "x = (", "SyntaxError"],
    ["javascript", "throw new RangeError('EACCES')", "RangeError"],
    ["javascript", "throw 'a string'", "string"],
    ["javascript", "class Mine extends Error {} throw new Mine('x')", "Mine"],
    ["javascript", "require('fs').readFileSync('/nowhere')", "Error"],
    ["javascript", "process.exit(126)", "exit 126"],
    ["javascript", "let x = ;", "SyntaxError"],
    ["javascript", "(".repeat(100_000), "RangeError"],
    ["typescript", "(".repeat(100_000), "RangeError"],
    ["typescript", "x=[".repeat(100_000), "RangeError"],
    ["typescript", "const x: number = (null as any).y", "TypeError"],
    ["javascript", "require('child_process').execSync('exit 3')", "Error"]
  ]
}

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("outcome", (it) => {
  const reasons = {
    UnsupportedCommand: "unsupported",
    PermissionDenied: "permission",
    LimitExceeded: undefined,
    TaskFailed: "failed"
  }
  describe("4: evidence decides the error", () => {
    for (const tag of ["UnsupportedCommand", "PermissionDenied", "LimitExceeded", "TaskFailed"] as const) {
      it.effect(`${tag}: ${kinds[tag].length} kinds`, () =>
        Effect.gen(function* () {
          const exec = yield* fresh
          yield* exec("bash", "printf '\\x7fELF garbage' >/tmp/elf; chmod +x /tmp/elf")
          for (const [language, code, expected] of kinds[tag]) {
            const error = yield* failure(exec(language, code))
            assert.deepStrictEqual([error._tag, summary(error)], [tag, expected], code)
            assert.strictEqual(error.receipt.outcome, tag, code)
            if (reasons[tag] !== undefined) assert.strictEqual(error.receipt.stopReason, reasons[tag], code)
          }
        }).pipe(Effect.scoped)
      )
    }

    it.effect("an exception that the code catches is no failure", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const cases: ReadonlyArray<readonly [Language, string]> = [
          ["bash", "nonsense-command || true"],
          ["bash", "nonsense-command; true"],
          ["bash", "if nonsense-command; then :; fi"],
          ["bash", "/etc/passwd; cat /etc/shadow; echo survived"],
          ["bash", "command -v nonsense-command || echo none"],
          ["python", "try: import nonsense_module\nexcept ImportError: print('no')"],
          ["python", "try: open('/etc/shadow')\nexcept PermissionError: pass"],
          ["javascript", "try { require('nonsense-package') } catch {}"],
          ["javascript", "await import('nonsense-package').catch(() => 0)"]
        ]
        for (const [language, code] of cases) {
          const end = yield* ended(exec(language, code))
          assert.deepStrictEqual(
            [end.receipt.outcome, end.receipt.stopReason, end.receipt.exitCode],
            ["Success", "completed", 0],
            code
          )
        }
      }).pipe(Effect.scoped)
    )
  })
})
