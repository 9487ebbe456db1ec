/** Python code behaves as it does in Python's own prompt and scripts. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Sandbox } from "../../src/Sandbox.ts"
import { failure, fresh, stdout } from "../support/executions.ts"

/** Replaces what differs from run to run. */
const plain = (text: string) => text.replace(/<exec-\d+>/g, "<exec-N>").replace(/0x[0-9a-f]+/g, "0xN")

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("python", (it) => {
  describe("3: Python is Python", () => {
    it.effect("`from __future__` applies only to the execution that has it", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const show = "def f(x: int) -> 'str': pass\nprint(f.__annotations__)"
        assert.strictEqual(yield* stdout(exec("python", show)), "{'x': <class 'int'>, 'return': 'str'}\n")
        assert.strictEqual(
          yield* stdout(exec("python", `"""doc"""\nfrom __future__ import annotations\n${show}\nprint(__doc__)`)),
          "{'x': 'int', 'return': \"'str'\"}\ndoc\n"
        )
        assert.strictEqual(yield* stdout(exec("python", show)), "{'x': <class 'int'>, 'return': 'str'}\n")
        const late = yield* failure(exec("python", "x = 1\nfrom __future__ import division"))
        assert.include(late.stderr, "from __future__ imports must occur at the beginning of the file")
      }).pipe(Effect.scoped)
    )

    it.effect("tracebacks show the user's lines, from any execution, and none of the runner's", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        yield* exec("python", "def outer(f):\n    # a comment\n    return f()")
        const error = yield* failure(exec("python", "\n\ndef inner():\n    return 1 / 0\n\nouter(inner)\n"))
        assert.strictEqual(
          error.stderr,
          `Traceback (most recent call last):
  File "<exec-2>", line 6, in <module>
    outer(inner)
    ~~~~~^^^^^^^
  File "<exec-1>", line 3, in outer
    return f()
  File "<exec-2>", line 4, in inner
    return 1 / 0
           ~~^~~
ZeroDivisionError: division by zero
`
        )
        const chained = yield* failure(
          exec("python", "try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('v') from e")
        )
        assert.match(chained.stderr, /KeyError: 'k'\n\nThe above exception was the direct cause[^]*ValueError: v\n$/)
        const group = yield* failure(exec("python", "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])"))
        assert.match(group.stderr, /ExceptionGroup: g \(2 sub-exceptions\)[^]*ValueError: 1[^]*TypeError: 2/)
        const syntax = yield* failure(exec("python", "x = 1\ny = (\nz = 2"))
        assert.match(
          syntax.stderr,
          /^ {2}File "<exec-\d+>", line 2\n {4}y = \(\n {8}\^\nSyntaxError: '\(' was never closed\n$/
        )
        const noted = yield* failure(exec("python", "e = ValueError('v')\ne.add_note('a note')\nraise e"))
        assert.match(noted.stderr, /ValueError: v\na note\n$/)
        const thread = yield* exec(
          "python",
          "import threading\nt = threading.Thread(target=inner, name='T'); t.start(); t.join()"
        )
        assert.include(thread.stderr, "Exception in thread T:")
        for (const { stderr } of [error, chained, group, syntax, noted, thread])
          assert.notInclude(stderr, "exec-sandbox")
      }).pipe(Effect.scoped)
    )

    it.effect("no frame of the runner is beneath the user's code, or above it", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        yield* exec(
          "python",
          "import faulthandler, inspect, signal, sys, traceback, warnings\nnames = lambda: [f.function for f in inspect.stack()]"
        )
        const cases: ReadonlyArray<readonly [string, string, string]> = [
          [
            "print(sys._getframe().f_back, [(f.filename[:6], f.function) for f in inspect.stack()])",
            "None [('<exec-', '<module>')]\n",
            ""
          ],
          [
            "traceback.print_stack(file=sys.stdout)",
            '  File "<exec-N>", line 1, in <module>\n    traceback.print_stack(file=sys.stdout)\n',
            ""
          ],
          [
            "def f(): faulthandler.dump_traceback(sys.stdout)\nf()",
            'Current thread 0xN (most recent call first):\n  File "<exec-N>", line 1 in f\n  File "<exec-N>", line 2 in <module>\n',
            ""
          ],
          ["warnings.warn('far', stacklevel=2)", "", "<sys>:0: UserWarning: far\n"],
          ["try: sys._getframe(1)\nexcept ValueError as e: print(e)", "call stack is not deep enough\n", ""],
          ["class R:\n    def __repr__(self): print(names()); return ''\nR()", "['<lambda>', '__repr__']\n", ""],
          [
            "class W:\n    def write(self, text): print(names())\n    def flush(self): print(names())\nsys.stdout = W(); print('x', file=sys.__stdout__); sys.stdout = sys.__stdout__",
            "x\n",
            ""
          ],
          [
            "class F:\n    def flush(self): print(names(), file=sys.__stdout__)\nsys.stderr = F(); None",
            "['<lambda>', 'flush']\n",
            ""
          ],
          [
            "seen = []\ndef trace(frame, event, _): seen.append((event, frame.f_code.co_name)); return trace\nsys.settrace(trace)",
            "",
            ""
          ],
          ["print(1)", "1\n", ""],
          [
            "sys.settrace(None); print(seen); seen.clear(); sys.setprofile(trace)",
            "[('call', '<module>'), ('line', '<module>'), ('return', '<module>'), ('call', '<module>'), ('line', '<module>')]\n",
            ""
          ],
          ["print(1)", "1\n", ""],
          [
            "sys.setprofile(None); print(seen[1:4])",
            "[('call', '<module>'), ('c_call', '<module>'), ('c_return', '<module>')]\n",
            ""
          ],
          [
            "signal.signal(signal.SIGUSR1, lambda *_: print(names())); signal.raise_signal(signal.SIGUSR1)",
            "['<lambda>', '<lambda>', '<module>']\n",
            ""
          ],
          ["print(type(sys.stdout.buffer.raw).__name__, type(sys.stdin.buffer.raw).__module__)", "FileIO _io\n", ""]
        ]
        for (const [code, expected, complaint] of cases) {
          const { stdout, stderr } = yield* exec("python", code)
          assert.deepStrictEqual([plain(stdout), plain(stderr)], [expected, complaint], code)
        }
        const hook = "sys.excepthook = lambda *_: print(names(), sys.exc_info())\n1 / 0"
        assert.strictEqual(
          (yield* failure(exec("python", hook))).stdout,
          "['<lambda>', '<lambda>'] (None, None, None)\n"
        )
        const text =
          "sys.excepthook = sys.__excepthook__\nclass E(Exception):\n    def __str__(self): return str(names())\nraise E"
        const { stderr } = yield* failure(exec("python", text))
        assert.match(stderr, /in <module>\n {4}raise E\nE: \['<lambda>', '__str__', '_safe_string', '__init__'\]\n$/)
        const deep = yield* exec("python", "def f(n): return 0 if n == 0 else f(n - 1)\nf(sys.getrecursionlimit() - 2)")
        assert.strictEqual(deep.result?.repr, "0")
        const blocked = "import os\nr, w = os.pipe(); os.dup2(w, 1)\nprint('x' * 200000)"
        const stopped = yield* failure(exec("python", blocked, { limits: { timeMs: 300 } }))
        assert.match(
          stopped.stderr,
          /^Traceback \(most recent call last\):\n {2}File "<exec-\d+>", line 3[^]*\nKeyboardInterrupt\n$/
        )
        assert.notInclude(stopped.stderr, "exec-sandbox")
      }).pipe(Effect.scoped)
    )

    it.effect("the value of a trailing expression is the result: its repr, and JSON when it is plain data", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const values: ReadonlyArray<readonly [string, { repr: string; json?: unknown } | null]> = [
          ["1 + 1", { repr: "2", json: 2 }],
          ["x = 5\nx", { repr: "5", json: 5 }],
          ["x = 5", null],
          ["None", null],
          ["print(1)", null],
          ["'é\\n\\ud800'.encode('utf-8', 'surrogatepass')", { repr: "b'\\xc3\\xa9\\n\\xed\\xa0\\x80'" }],
          ["'é'", { repr: "'é'", json: "é" }],
          [
            "[1, 2.5, True, None, 'a', {'k': []}]",
            { repr: "[1, 2.5, True, None, 'a', {'k': []}]", json: [1, 2.5, true, null, "a", { k: [] }] }
          ],
          ["(1, 2)", { repr: "(1, 2)", json: [1, 2] }],
          ["{1: 2}", { repr: "{1: 2}" }],
          ["{3}", { repr: "{3}" }],
          ["float('nan')", { repr: "nan" }],
          ["2 ** 60", { repr: "1152921504606846976" }],
          ["class A:\n    def __repr__(self): return 'mine'\nA()", { repr: "mine" }],
          ["if True:\n    7", null],
          ["7;", { repr: "7", json: 7 }],
          ["(y := 8)", { repr: "8", json: 8 }],
          ["lambda: 1\n# the end", { repr: "<function <lambda> at 0x" }]
        ]
        for (const [code, expected] of values) {
          const { result } = yield* exec("python", code)
          if (expected?.repr.endsWith("0x")) assert.isTrue(result?.repr.startsWith(expected.repr), code)
          else assert.deepStrictEqual<unknown>(result, expected, code)
        }
      }).pipe(Effect.scoped)
    )

    it.effect("main module, pickling, inspection, dataclasses, asyncio, warnings and exit helpers work", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const cases: ReadonlyArray<readonly [string, string]> = [
          ["if __name__ == '__main__': print('main')", "main\n"],
          [
            "import pickle\nclass P: pass\np = pickle.loads(pickle.dumps(P()))\nprint(type(p) is P, P.__module__)",
            "True __main__\n"
          ],
          [
            "import inspect\ndef g(a, b=1):\n    return a\nprint(inspect.getsource(g), inspect.signature(g))",
            "def g(a, b=1):\n    return a\n (a, b=1)\n"
          ],
          [
            "from dataclasses import dataclass, field\n@dataclass\nclass D:\n    a: int\n    b: list = field(default_factory=list)\nprint(D(1))",
            "D(a=1, b=[])\n"
          ],
          [
            "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    return 3\nprint(asyncio.run(main()), asyncio.run(main()))",
            "3 3\n"
          ],
          [
            "from typing import NamedTuple, get_type_hints\nclass N(NamedTuple):\n    a: int\nprint(get_type_hints(N), N(1))",
            "{'a': <class 'int'>} N(a=1)\n"
          ],
          ["print(eval('1+1'), globals() is locals()); exec('zz = 3'); print(zz)", "2 True\n3\n"],
          [
            "class C:\n    __slots__ = 'a'\n    @property\n    def p(self): return __class__.__name__\nprint(C().p)",
            "C\n"
          ],
          ["match {'k': [1, 2]}:\n    case {'k': [a, *rest]}: print(a, rest)", "1 [2]\n"],
          [
            "import sys\nprint(sys.version_info >= (3, 11), sys.executable, len(sys.argv))",
            "True /usr/bin/python3 1\n"
          ],
          ["# -*- coding: utf-8 -*-\nprint('ünïcödé', '\\U0001F600')", "ünïcödé \u{1F600}\n"],
          ["\tprint('tab')".trim(), "tab\n"],
          ["print('crlf')\r\nprint('works')\r\n", "crlf\nworks\n"],
          [
            "import logging; logging.basicConfig(stream=__import__('sys').stdout, format='%(lineno)d %(funcName)s'); logging.warning('x')",
            "1 <module>\n"
          ]
        ]
        for (const [code, expected] of cases) assert.strictEqual(yield* stdout(exec("python", code)), expected, code)
        const warned = yield* exec("python", "import warnings\n\nwarnings.warn('careful')")
        assert.match(warned.stderr, /^<exec-\d+>:3: UserWarning: careful\n {2}warnings\.warn\('careful'\)\n$/)
        for (const code of ["exit(3)", "quit(3)", "import sys; sys.exit(3)", "raise SystemExit(3)"]) {
          assert.strictEqual((yield* failure(exec("python", code))).receipt.exitCode, 3, code)
        }
      }).pipe(Effect.scoped)
    )

    it.effect("multiprocessing and concurrent.futures work, forked and spawned", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const code = `import multiprocessing as m, concurrent.futures as c
def square(x): return x * x
with m.Pool(2) as pool: print(pool.map(square, range(4)))
with c.ThreadPoolExecutor(2) as pool: print(list(pool.map(square, range(3))))
q = m.Queue(); p = m.Process(target=q.put, args=(5,)); p.start(); print(q.get()); p.join(); print(p.exitcode)
a = m.Array('i', 3); v = m.Value('d', 1.5); print(len(a), v.value)
print(m.get_context('spawn').Pool(1).apply(abs, (-7,)))`
        assert.strictEqual(yield* stdout(exec("python", code)), "[0, 1, 4, 9]\n[0, 1, 4]\n5\n0\n3 1.5\n7\n")
      }).pipe(Effect.scoped)
    )
  })
})
