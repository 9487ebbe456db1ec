/** The runner puts nothing into the user's namespace, descriptors or streams, and nothing that the user does there breaks it. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { Language } from "../../src/Execution.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { ended, fresh, stdout } from "../support/executions.ts"

/** Code that must end by itself, after which the next execution works. `lost`: it may end the interpreter, which is then reset. */
interface Abuse {
  readonly code: string
  readonly out?: string
  readonly lost?: true
  /** Undoes the abuse. Only for code that shadows what the usual check needs; a bare expression is checked before. */
  readonly undo?: string
}
const check: Record<Language, readonly [string, string]> = {
  python: [
    "import os, sys\nprint(len([1]), sum((2, 3)), [it for fd in (0, 1, 2) for it in (os.get_inheritable(fd), os.get_blocking(fd)) if not it])\nprint('e', file=sys.stderr)",
    "1 5 []\n"
  ],
  javascript: ["console.log([1].length, JSON.stringify({ a: [2] })); console.error('e')", '1 {"a":[2]}\n'],
  typescript: ["console.log(1 as number); console.error('e')", "1\n"],
  bash: ["echo 1; echo e >&2", "1\n"]
}

const show = (what: string) => `console.log(JSON.stringify(${what}))`

/** The paths and URLs that name the running file, in a directory. */
const here = (at: string) => `${at}/eval.js ${at} ${at}/eval.js ${at} file://${at}/eval.js true ${at}/eval.js\n`

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("isolation", (it) => {
  describe("2: the runner is invisible to the code", () => {
    it.effect("python: names, arguments, modules, descriptors, threads and stack depth are those of `python3 -c`", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const names = "print(sorted(dir()))"
        assert.strictEqual(
          yield* stdout(exec("python", names)),
          "['__builtins__', '__doc__', '__loader__', '__name__', '__package__', '__spec__']\n"
        )
        const code = `import sys, os, threading, signal
main = sys.modules['__main__']
print(main.__dict__ is globals(), __name__, hasattr(main, '__file__'), sys.argv, sys.flags.isolated, sys.path[0] == '')
print(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:3], len([fd for fd in os.listdir('/proc/self/fd')]))
print(threading.active_count(), threading.current_thread().name, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print([m for m in sys.modules if 'sandbox' in m], [k for k in os.environ if 'SANDBOX' in k], sys.gettrace(), sys.getrecursionlimit())
print(sys.stdout.name, sys.stdout.encoding, sys.stdin.name, sys.stderr.name, sys.stdout.fileno())`
        const out = yield* stdout(exec("python", code))
        assert.strictEqual(
          out,
          "True __main__ False [''] 0 True\n[0, 1, 2] 4\n1 MainThread True\n[] [] None 1000\n<stdout> utf-8 <stdin> <stderr> 1\n"
        )
        // What an execution or its child does to its pipes does not affect the next execution.
        yield* exec("python", "import os, subprocess\nos.set_blocking(1, False); subprocess.run(['node', '-e', '1'])")
        assert.strictEqual(
          yield* stdout(exec("python", "print(os.get_blocking(1), os.get_blocking(2))")),
          "True True\n"
        )
      }).pipe(Effect.scoped)
    )

    it.effect("javascript: globals and modules are those of `node -e`, as for a file in the working directory", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const plain = (yield* stdout(
          exec("bash", `echo '${show("Object.keys(globalThis).sort()")}' >x.mjs; node x.mjs`)
        )).trim()
        assert.strictEqual((yield* stdout(exec("javascript", show("Object.keys(globalThis).sort()")))).trim(), plain)
        const out = yield* stdout(
          exec(
            "javascript",
            `console.log(process.argv, process.execArgv, require.main === module, module.id, this === globalThis)
console.log(require('module').builtinModules.filter((m) => m.includes('internal')), Object.keys(process.env).filter((k) => /SANDBOX|NODE/.test(k)))
console.log(process.listenerCount('SIGINT'), process.listenerCount('exit'), process.listenerCount('beforeExit'), console.log.name, Math.random.name, String(process.exit).length > 0)`
          )
        )
        assert.strictEqual(
          out,
          "[ '/usr/bin/node', '/home/user/eval.js' ] [] true [eval] true\n[] []\n0 0 0 log random true\n"
        )
        const names =
          "__filename, __dirname, import.meta.filename, import.meta.dirname, import.meta.url, import.meta.main, process.argv[1]"
        assert.strictEqual(yield* stdout(exec("javascript", `console.log(${names})`)), here("/home/user"))
        assert.strictEqual(
          yield* stdout(exec("typescript", `console.log(${names} as string)`, { cwd: "/tmp" })),
          here("/tmp")
        )
        const idioms: ReadonlyArray<readonly [string, string]> = [
          [
            "if (require.main === module) console.log(require.main.filename, module.path)",
            "/home/user/eval.js /home/user\n"
          ],
          ["if (import.meta.url === `file://${process.argv[1]}`) console.log('main')", "main\n"],
          [
            "import { pathToFileURL } from 'node:url'\nif (import.meta.url === pathToFileURL(process.argv[1]).href) console.log('main')",
            "main\n"
          ],
          [
            "import { createRequire } from 'node:module'; import { dirname } from 'node:path'; import { fileURLToPath } from 'node:url'\nconst require = createRequire(import.meta.url); const __filename = fileURLToPath(import.meta.url); const __dirname = dirname(__filename)\nconsole.log(__dirname, require('node:os').EOL === '\\n')",
            "/home/user true\n"
          ],
          [
            "console.log(import.meta.resolve('./x.mjs'), import.meta.resolve('node:fs'), 'import.meta', typeof import . meta)",
            "file:///home/user/x.mjs node:fs import.meta object\n"
          ],
          [
            "export const at = () => import.meta.filename; console.log(at(), Object.keys(import.meta).length)",
            "/home/user/eval.js 5\n"
          ],
          [
            "console.log(process.argv.slice(2), Object.keys(globalThis).some((key) => /meta|__/.test(key)))",
            "[] false\n"
          ]
        ]
        for (const [code, expected] of idioms)
          assert.strictEqual(yield* stdout(exec("javascript", code)), expected, code)
        const frames = yield* stdout(exec("javascript", "console.log(new Error('x').stack)"))
        assert.match(frames, /^Error: x\n {4}at <exec-\d+>:1:13\n$/)
      }).pipe(Effect.scoped)
    )

    it.effect("bash: variables, functions, descriptors, traps and arguments are those of a script", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const code = `compgen -v | grep -i sandbox; declare -F | grep -v command_not_found_handle; trap; echo "$0 $# $- $BASH_SUBSHELL $SHLVL"
ls /proc/$$/fd | tr '\\n' ' '; echo; alias; jobs; env | grep -ic 'sandbox\\|preload'; echo "\${BASH_SOURCE[*]} \${FUNCNAME[*]} $BASH_EXECUTION_STRING"`
        assert.strictEqual(yield* stdout(exec("bash", code)), "bash 0 hBc 0 1\n0 1 2 \n0\n  \n")
      }).pipe(Effect.scoped)
    )
  })

  const python: ReadonlyArray<Abuse> = [
    { code: "sys = json = os = print = len = None", undo: "del sys, json, os, print, len" },
    {
      code: "import builtins\nsaved = dict(vars(builtins))\nfor name in saved: setattr(builtins, name, None)",
      undo: "vars(builtins)"
    },
    {
      code: "saved['print']('back')",
      out: "back\n",
      undo: "[builtins.__dict__.__setitem__(*pair) for pair in saved.items()] and None"
    },
    { code: "def print(*values): raise ValueError\nclass str: pass", undo: "del print, str" },
    { code: "import os\nos.closerange(3, 4096)\nos.write(1, b'x\\n')", out: "x\n" },
    { code: "import os\nfor fd in (0, 1, 2): os.close(fd)" },
    { code: "import sys\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close()" },
    { code: "import sys\nsys.stdout = sys.stderr = sys.stdin = None" },
    { code: "import sys, io\nsys.stdout = io.StringIO(); print('lost'); sys.stdout.flush = 1" },
    {
      code: "import sys\nclass Bad:\n  def write(self, *a): raise ValueError\n  flush = write\nsys.stdout = sys.stderr = Bad()\n1 / 0"
    },
    { code: "import os\nos.dup2(os.open('/dev/null', os.O_RDWR), 1)\nprint('lost')", out: "" },
    { code: "import os, sys\nsys.stdout.write('lost'); sys.stderr.write('lost'); os.close(1); os.close(2)" },
    { code: "import os\nfor fd in (0, 1, 2): os.set_inheritable(fd, False); os.set_blocking(fd, False)" },
    { code: "import os\nfd = os.open('/proc/self/fd/2', os.O_RDONLY | os.O_NONBLOCK); os.dup2(fd, 2); os.close(fd)" },
    {
      code: "print('done 1'); print('started 1'); print('ready')\nimport sys; sys.stderr.write('done 2\\n')",
      out: "done 1\nstarted 1\nready\n"
    },
    { code: "import os\nos.write = os.open = os.read = os.close = None" },
    { code: "import sys\nsys.settrace(lambda *a: 1 / 0); sys.setprofile(lambda *a: 1 / 0)" },
    { code: "import sys\nsys.settrace(None); sys.setprofile(None); sys.setrecursionlimit(60)" },
    { code: "import sys\nsys.setrecursionlimit(3)", undo: "sys.setrecursionlimit(1000)" },
    { code: "import gc, types\nfor it in gc.get_objects():\n  if isinstance(it, types.GeneratorType): it.close()" },
    { code: "import sys\nsys.excepthook = None\n1 / 0" },
    {
      code: "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.alarm(0)"
    },
    { code: "import gc\ngc.disable(); gc.set_threshold(0)" },
    {
      code: "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))\nhandles = [open('/dev/null') for _ in range(2)]"
    },
    {
      code: "import os, shutil\nos.makedirs('/tmp/gone', exist_ok=True); os.chdir('/tmp/gone'); os.rmdir('/tmp/gone')"
    },
    { code: "class E(Exception):\n  def __str__(self): raise SystemExit(9)\nraise E" },
    { code: "class R:\n  def __repr__(self): raise KeyboardInterrupt\nR()" },
    { code: "raise BaseException('bare')" },
    { code: "import sys\ndef f(): f()\nf()" },
    { code: "import os\nfor k in list(os.environ): del os.environ[k]" },
    {
      code: "import os\nif os.fork() == 0: raise ValueError('the child ends here')\nos.wait(); print('parent')",
      out: "parent\n"
    },
    {
      code: "import linecache, traceback, json\nlinecache.cache = traceback.TracebackException = json.dumps = None\n1 / 0"
    },
    {
      code: "import os, shutil, glob\nfor d in glob.glob('/run/exec-sandbox/python-*/[0-9]*'): shutil.rmtree(d, ignore_errors=True)",
      lost: true
    }
  ]
  const javascript: ReadonlyArray<Abuse> = [
    {
      code: "var JSON_ = JSON; JSON = process_ = setTimeout = setImmediate = queueMicrotask = undefined; var process_; globalThis.JSON = JSON_"
    },
    {
      code: "const { log, error } = console; console.log = console.error = null; Object.assign(console, { log, error })"
    },
    { code: "process.kill(process.pid, 'SIGCONT'); console.log('x')", out: "x\n" },
    { code: "process.stdout.end('bye\\n')", out: "bye\n" },
    { code: "process.stdout.destroy(); process.stderr.destroy(); process.stdin.destroy()" },
    { code: "for (const fd of [0, 1, 2]) require('fs').closeSync(fd)" },
    { code: "require('fs').closeSync = require('fs').writeFileSync = require('fs').readFileSync = () => { throw 1 }" },
    {
      code: "Array.prototype[Symbol.iterator] = function () { throw 1 }; Object.prototype.toJSON = () => 1; Object.prototype.get = 1",
      lost: true
    },
    {
      code: "delete Object.prototype.toJSON; delete Object.prototype.get; Array.prototype[Symbol.iterator] = Array.prototype.values",
      lost: true
    },
    { code: "Promise.prototype.then = () => { throw 1 }", lost: true },
    { code: "JSON.parse = JSON.stringify_ = null; String.prototype.split_ = 1" },
    { code: "process.removeAllListeners(); process.on('uncaughtException', () => {}); process.on('SIGINT', () => {})" },
    { code: "process.removeAllListeners(); process.exit = process.emit_ = null" },
    { code: "Error.prepareStackTrace = () => { throw 1 }; throw new Error('x')" },
    { code: "delete Error.prepareStackTrace; Error.stackTraceLimit = 0; throw new Error('x')" },
    { code: "process._rawDebug('done 1'); console.log('done 1\\nready')", out: "done 1\nready\n" },
    { code: "({ get [Symbol.toStringTag]() { throw 1 }, [require('util').inspect.custom]() { throw 2 } })" },
    { code: "new Proxy({}, { get() { throw 1 }, ownKeys() { throw 1 } })" },
    { code: "throw { toString() { throw 1 } }" },
    { code: "throw null" },
    { code: "function f() { f() } f()" },
    {
      code: "process.chdir('/tmp'); require('fs').mkdirSync('/tmp/gone'); process.chdir('/tmp/gone'); require('fs').rmdirSync('/tmp/gone')"
    },
    { code: "for (const k of Object.keys(process.env)) delete process.env[k]" },
    { code: "Object.freeze(globalThis); Object.freeze(console)", lost: true },
    { code: "for (let fd = 3; fd < 100; fd++) { try { require('fs').closeSync(fd) } catch {} }", lost: true }
  ]
  const bash: ReadonlyArray<Abuse> = [
    { code: "exec 3>&- 4>&- 5<&- 6>&- 7>&-; echo x", out: "x\n" },
    { code: "exec >/dev/null 2>&1 </dev/null; echo lost", out: "" },
    { code: "exec >&- 2>&- <&-" },
    { code: "set -e; false; echo not reached", out: "" },
    { code: "set -e; nonsense-command" },
    { code: "if; then" },
    { code: "set +e; set -u; echo $nope" },
    { code: "set +u; set -n; echo x" },
    { code: "set -f; set -C; set -v; set +v; set -x; set +x" },
    { code: "set -o posix; set +o posix; IFS=x; PATH=; unset HOME" },
    {
      code: "IFS=$' \\t\\n'; PATH=/usr/bin:/bin; exit() { :; }; return() { :; }; builtin() { :; }; command() { :; }; unset -f exit return builtin command"
    },
    { code: "trap '' INT TERM; trap 'echo bye' EXIT", out: "bye\n" },
    { code: "trap 'echo debug >/dev/null' DEBUG; trap 'exit 9' ERR; false" },
    { code: "trap - DEBUG ERR INT TERM; enable -n echo; enable echo" },
    { code: "echo 'done 1'; echo 'started 1'; echo ready", out: "done 1\nstarted 1\nready\n" },
    { code: "command_not_found_handle() { echo mine; return 5; }; nothing-here", out: "mine\n" },
    { code: "unset -f command_not_found_handle; f() { return 3; }; f; return 4" },
    { code: "break; continue; exit 300" },
    { code: "ulimit -n 3", lost: true },
    { code: "ulimit -f 0; echo x > /home/user/y", lost: true },
    { code: "umask 777; echo x > /tmp/closed" },
    { code: "mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone" },
    { code: "( exit 5 ) & wait $!; kill %1; disown -a; wait" },
    { code: "readonly -f check 2>/dev/null; readonly PATH PWD HOME IFS OPTIND" },
    { code: "f() { f; }; FUNCNEST=50; f" },
    { code: "exec nonsense-program" },
    { code: 'echo "$(kill -TERM $BASHPID)"' },
    { code: "coproc cat; kill $COPROC_PID; wait" },
    { code: "shopt -s execfail lastpipe; exec /nonexistent; echo still", out: "still\n" },
    { code: "exec 200>/tmp/lock; flock -n 200 && echo locked", out: "locked\n" },
    { code: "rm -rf /run/exec-sandbox/bash-*/[0-9]*", lost: true }
  ]
  describe("2: whatever code does to the process, it ends by itself and the next execution works", () => {
    for (const [language, abuses] of [
      ["python", python],
      ["javascript", javascript],
      ["bash", bash]
    ] as const) {
      it.effect(`${language}: ${abuses.length} kinds of abuse in one session`, () =>
        Effect.gen(function* () {
          const exec = yield* fresh
          for (const { code, lost, out, undo } of abuses) {
            const end = yield* ended(exec(language, code, { limits: { timeMs: 20_000 } }))
            assert.notStrictEqual(end.receipt.stopReason, "time-limit", code)
            if (lost === undefined) assert.strictEqual(end.receipt.state, "kept", code)
            if (out !== undefined) assert.strictEqual(end.stdout, out, code)
            if (undo !== undefined) {
              assert.strictEqual((yield* exec(language, "40 + 2")).result?.repr, "42", code)
              yield* exec(language, undo)
              continue
            }
            const next = yield* ended(exec(language, check[language][0]))
            assert.deepStrictEqual([next.stdout, next.stderr], [check[language][1], "e\n"], code)
          }
        }).pipe(Effect.scoped)
      )
    }
  })
})
