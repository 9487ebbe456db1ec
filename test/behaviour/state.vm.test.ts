/** State lasts from one execution to the next, and the receipt says when it was lost. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import type { Language } from "../../src/Execution.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { ended, executing, failure, fresh, session, stdout } from "../support/executions.ts"
import { qemus } from "../support/processes.ts"

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("state", (it) => {
  describe("1: state persists between executions of one language", () => {
    it.effect("python: variables, imports, functions, classes, closures, generators, cwd and environment", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        yield* exec(
          "python",
          `import math, os.path as p
from collections import Counter
x = 41
def f(n=1): return x + n
class A:
    count = 0
    def up(self): A.count += 1; return self
a = A().up()
def counter():
    n = 0
    def up():
        nonlocal n
        n += 1
        return n
    return up
up = counter(); up()
g = (i * i for i in range(10)); next(g); next(g)
os = p.os
os.chdir('/tmp'); os.environ['V'] = 'kept'
data = {'a': [1]}; data['self'] = data`
        )
        const out = yield* stdout(
          exec(
            "python",
            "x += 1\nprint(f(), math.floor(1.5), p.basename('/a/b'), Counter('aa')['a'], a.up().count, up(), next(g), os.getcwd(), os.environ['V'], data['self']['a'])"
          )
        )
        assert.strictEqual(out, "43 1 b 2 2 2 4 /tmp kept [1]\n")
        assert.strictEqual(
          yield* stdout(exec("python", "print(type(a) is A, isinstance(a, A), _ if '_' in dir() else 'no _')")),
          "True True no _\n"
        )
      }).pipe(Effect.scoped)
    )

    it.effect("javascript: let, const and class can be declared again; var, functions, imports and globals stay", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        yield* exec(
          "javascript",
          `let a = 1; const b = 2; class C { m() { return 'first' } }; var d = 4; function f() { return a + b + d }
async function g() { return f() }
function* h() { yield 1; yield 2 }
const it = h(); it.next()
globalThis.e = 5
const { x, ...rest } = { x: 1, y: 2 }
const old = new C()
process.chdir('/tmp'); process.env.V = 'kept'`
        )
        assert.strictEqual(
          yield* stdout(
            exec("javascript", "console.log(f(), await g(), it.next().value, e, x, rest, process.cwd(), process.env.V)")
          ),
          "7 7 2 5 1 { y: 2 } /tmp kept\n"
        )
        const again = yield* stdout(
          exec(
            "javascript",
            "let a = 10; const b = 20; class C { m() { return 'second' } }; console.log(f(), old.m(), new C().m())"
          )
        )
        assert.strictEqual(again, "34 first second\n")
        assert.strictEqual(yield* stdout(exec("javascript", "a++; console.log(a, old instanceof C)")), "11 false\n")
        assert.strictEqual((yield* ended(exec("javascript", "const q = 1; q = 2"))).receipt.outcome, "TaskFailed")
      }).pipe(Effect.scoped)
    )

    it.effect("javascript: top-level await, import(), static import and require", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        yield* exec(
          "javascript",
          `import fs, { readFileSync as read } from 'node:fs'
import * as path from 'path'
const os = await import('node:os')
const { inspect } = require('util')
const v = await new Promise((resolve) => setTimeout(resolve, 5, 'waited'))
export const exported = 6
for await (const x of (async function* () { yield 1 })()) globalThis.seen = x`
        )
        const out = yield* stdout(
          exec(
            "javascript",
            "console.log(typeof fs.readFileSync, read === fs.readFileSync, path.basename('/a/b'), typeof os.cpus, inspect(1), v, exported, seen)"
          )
        )
        assert.strictEqual(out, "function true b function 1 waited 6 1\n")
        yield* exec(
          "bash",
          "mkdir -p ~/lib && cd ~/lib && echo 'export const a = 1; export default 7' > m.mjs && echo 'module.exports = { b: 2 }' > c.cjs"
        )
        assert.strictEqual(
          yield* stdout(
            exec(
              "javascript",
              "import seven, { a } from './m.mjs'\nconsole.log(seven, a, require('./c.cjs').b, (await import('./c.cjs')).default)",
              { cwd: "/home/user/lib" }
            )
          ),
          "7 1 2 { b: 2 }\n"
        )
      }).pipe(Effect.scoped)
    )

    it.effect("typescript: types, generics, enums, interfaces and everything else that JavaScript does not have", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        yield* exec(
          "typescript",
          `interface Named { readonly name: string; age?: number }
type Pair<A, B = A> = readonly [A, B]
enum Color { Red, Green = 5, Blue }
const enum Small { One = 1 }
namespace Space { export const inside = 9 }
abstract class Animal<T extends Named> implements Named {
  constructor(public readonly name: string, protected value?: T) {}
  abstract speak(): string
}
class Dog extends Animal<Named> { override speak(): string { return this.name + '!' } }
function id<T>(x: T): T { return x }
function over(a: number): number
function over(a: string): string
function over(a: unknown): unknown { return a }
declare const never: never
const pair: Pair<number, string> = [1, 'b'] satisfies Pair<number, string>
let maybe: string | undefined = undefined as string | undefined
const dog = new Dog('rex')!
import type { Stats } from 'node:fs'
const isNamed = (x: any): x is Named => 'name' in x`
        )
        const out = yield* stdout(
          exec(
            "typescript",
            "const n: number = id<number>(3); console.log(n, Color.Blue, Color[5], Small.One, Space.inside, dog.speak(), over('o'), pair[1], maybe?.length, isNamed(dog), <number>n)"
          )
        )
        assert.strictEqual(out, "3 6 Green 1 9 rex! o b undefined true 3\n")
        // JavaScript and TypeScript share one interpreter.
        assert.strictEqual(yield* stdout(exec("javascript", "console.log(dog.name, n)")), "rex 3\n")
        const error = yield* failure(exec("javascript", "let y: number = 1"))
        assert.strictEqual(
          error._tag === "TaskFailed" && error.reason._tag === "Exception" && error.reason.type,
          "SyntaxError"
        )
      }).pipe(Effect.scoped)
    )

    it.effect("bash: cwd, exports, functions, arrays, aliases, options, traps and positional parameters", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        yield* exec(
          "bash",
          `cd /usr/lib; export E=exported; plain=p; declare -i n=5; readonly R=r
f() { local l=1; echo "f $1 $plain"; }
a=(one 'two words' three); declare -A m=([k]=v ['a b']=c)
shopt -s extglob expand_aliases nullglob; alias hi='echo hello'; set -o pipefail
set -- first second
trap 'echo usr1' USR1
umask 027; pushd /tmp >/dev/null`
        )
        const out = yield* stdout(
          exec(
            "bash",
            `n+=2; echo "$PWD $OLDPWD $(bash -c 'echo $E $plain') $n $R"; f x; echo "\${a[1]} \${#a[@]} \${m[k]} \${m[a b]}"
hi; false | true; echo $?; echo "$1 $# $0"; kill -USR1 $$; umask; dirs; echo /none-of*this`
          )
        )
        assert.strictEqual(
          out,
          "/tmp /usr/lib exported 7 r\nf x p\ntwo words 3 v c\nhello\n1\nfirst 2 bash\nusr1\n0027\n/tmp /usr/lib\n\n"
        )
      }).pipe(Effect.scoped)
    )

    it.effect("files are shared by all languages, the state of one language is not another's", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        yield* exec("python", "x = 1\nopen('/home/user/f', 'w').write('from python')")
        assert.strictEqual(yield* stdout(exec("bash", 'x=2; cat f; echo " $x"')), "from python 2\n")
        assert.strictEqual(
          yield* stdout(exec("javascript", "console.log(typeof x, require('fs').readFileSync('f', 'utf8'))")),
          "undefined from python\n"
        )
        assert.strictEqual(yield* stdout(exec("python", "print(x)")), "1\n")
      }).pipe(Effect.scoped)
    )
  })

  describe("10: the session survives what it can, and the receipt says whether the state was kept", () => {
    const keep: Record<Exclude<Language, "typescript">, string> = {
      python: "v = 7",
      javascript: "var v = 7",
      bash: "v=7"
    }
    const show: typeof keep = {
      python: "print(globals().get('v', 'gone'))",
      javascript: "console.log(globalThis.v ?? 'gone')",
      bash: 'echo "${v:-gone}"'
    }
    const cases: ReadonlyArray<
      readonly [keyof typeof keep, "kept" | "reset", ReadonlyArray<readonly [string, number?]>]
    > = [
      [
        "python",
        "kept",
        [
          ["1 / 0"],
          ["import sys; sys.exit(3)"],
          ["raise SystemExit"],
          ["raise KeyboardInterrupt"],
          ["def f(:"],
          ["quit()"],
          ["while True: pass", 200],
          ["import time; time.sleep(60)", 200],
          ["import subprocess; subprocess.run(['sleep', '60'])", 200]
        ]
      ],
      [
        "python",
        "reset",
        [
          ["import os; os._exit(5)"],
          ["import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
          ["import os; os.execvp('true', ['true'])"],
          ["import time\nwhile True:\n  try: time.sleep(60)\n  except KeyboardInterrupt: pass", 200]
        ]
      ],
      [
        "javascript",
        "kept",
        [
          ["null.x"],
          ["throw 1"],
          ["await Promise.reject(new Error('no'))"],
          ["process.exit(3)"],
          ["process.exitCode = 4"],
          ["let = 1"],
          ["await new Promise(() => {})"],
          ["for (;;);", 200],
          // Interrupted inside a write, which never ends: the stream must not wait for it.
          [
            "{ const o = process.stdout, own = o._write; o._write = () => { o._write = own; for (;;); }; console.log(1) }",
            200
          ],
          ["await new Promise((r) => setTimeout(r, 60000))", 200],
          ["require('child_process').execSync('sleep 60')", 200]
        ]
      ],
      ["javascript", "reset", [["process.abort()"], ["process.kill(process.pid, 'SIGKILL')"]]],
      [
        "bash",
        "kept",
        [
          ["false"],
          ["exit 5"],
          ["set -e; false"],
          ["f() { exit 4; }; f"],
          ["( exit 3 )"],
          ["nonsense-command"],
          ["if; then"],
          ["${v:?given}; ${nope:?missing}"],
          ["while :; do :; done", 200],
          ["sleep 60", 200],
          ["kill -INT $$"]
        ]
      ],
      [
        "bash",
        "reset",
        [["kill -KILL $$"], ["kill -SEGV $$"], ["exec true"], ["trap '' INT; while :; do :; done", 200]]
      ]
    ]
    for (const [language, state, codes] of cases) {
      it.effect(`${language}: state is ${state} after ${codes.length} ways to end`, () =>
        Effect.gen(function* () {
          const it = yield* session()
          const exec = executing(it)
          for (const [code, timeMs = 30_000] of codes) {
            yield* exec(language, keep[language])
            const end = yield* ended(exec(language, code, { limits: { timeMs } }))
            assert.strictEqual(end.receipt.state, state, code)
            const after = yield* exec(language, show[language])
            assert.strictEqual(after.stdout, state === "kept" ? "7\n" : "gone\n", code)
            assert.strictEqual(after.receipt.state, "kept", code)
          }
        }).pipe(Effect.scoped)
      )
    }

    it.effect(
      "after an interpreter dies between executions, the next one works and reports reset; files and other languages are kept",
      () =>
        Effect.gen(function* () {
          const exec = yield* fresh
          yield* exec("python", "v = 7; open('/home/user/kept', 'w').write('k')")
          yield* exec("javascript", "var v = 8")
          yield* exec(
            "bash",
            "kill -KILL $(pgrep -f lib/exec-sandbox/python.py); while pgrep -f sandbox/python-1/ >/dev/null; do :; done"
          )
          const after = yield* exec("python", "print(globals().get('v', 'gone'), open('/home/user/kept').read())")
          assert.deepStrictEqual([after.stdout, after.receipt.state], ["gone k\n", "reset"])
          const other = yield* exec("javascript", "console.log(v)")
          assert.deepStrictEqual([other.stdout, other.receipt.state], ["8\n", "kept"])
          // The same when it dies while code is on its way to it.
          yield* exec("python", "import os, threading\nthreading.Timer(0.05, os._exit, [3]).start()")
          yield* Effect.exit(exec("python", "#".padEnd(8_000_000, "x")))
          assert.strictEqual((yield* exec("python", "print(1)")).stdout, "1\n")
        }).pipe(Effect.scoped)
    )
  })

  describe("15: idle sessions close", () => {
    it.effect("the VM is destroyed, and the error says why", () =>
      Effect.gen(function* () {
        const before = new Set(qemus())
        const it = yield* session({ idleMs: 400 })
        const long = yield* it.exec({ language: "bash", code: "sleep 0.8; echo used" })
        assert.strictEqual(long.stdout, "used\n")
        yield* Effect.sync(() => qemus().every((pid) => before.has(pid))).pipe(
          Effect.repeat({ until: (gone) => gone, schedule: Schedule.spaced("20 millis") }),
          Effect.timeout("20 seconds")
        )
        const error = yield* Effect.flip(it.exec({ language: "bash", code: "true" }))
        assert.strictEqual(error._tag === "SandboxError" && error.reason._tag, "SessionClosed")
        assert.match(error.message, /it was idle for 400 ms/)
      }).pipe(Effect.scoped)
    )

    it.effect("the options of a session are checked before it is opened", () =>
      Effect.gen(function* () {
        const before = new Set(qemus())
        const bad: ReadonlyArray<readonly [string, object]> = [
          ...[0, -1, 1.5, 86_400_001].map((idleMs) => ["idleMs", { idleMs }] as const),
          ["parkAfterMs", { parkAfterMs: 0 }],
          ["limits.memoryMiB", { limits: { memoryMiB: 64 } }],
          ["limits.timeMs", { limits: { timeMs: "1" } }],
          ["env", { env: { "A=B": "x" } }],
          ["env.A", { env: { A: "\ud800" } }],
          ["network", { network: "everything" }],
          ["from", { from: "" }],
          ["idle", { idle: 1 }]
        ]
        for (const [field, options] of bad) {
          const error = yield* Effect.flip(session(options))
          assert.strictEqual(error.reason._tag, "InvalidInput", field)
          assert.isTrue(error.message.startsWith(`invalid ${field}`), `${field}: ${error.message}`)
        }
        assert.isTrue(qemus().every((pid) => before.has(pid)))
      }).pipe(Effect.scoped)
    )
  })
})
