/** An execution ends exactly when its code does, and output of background work goes to `Session.output`. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type { Language } from "../../src/Execution.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import type { LateOutput, Session } from "../../src/Session.ts"
import { ended, executing, failure, fresh, session, stdout } from "../support/executions.ts"

/** Reads late output until `done`, which gets the text so far for each execution and stream. */
const lateUntil = (it: Session, done: (seen: Map<string, string>) => boolean) => {
  const seen = new Map<string, string>()
  return it.output.pipe(
    Stream.takeUntil((event: LateOutput) => {
      if (event._tag === "Dropped") seen.set("dropped", `${Number(seen.get("dropped") ?? 0) + event.bytes}`)
      else {
        const key = `${event.sequence} ${event._tag}`
        seen.set(key, (seen.get(key) ?? "") + Buffer.from(event.bytes).toString())
      }
      return done(seen)
    }),
    Stream.runDrain,
    Effect.as(seen),
    Effect.timeout("30 seconds")
  )
}

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("completion and background", (it) => {
  describe("6: completion is exact, not guessed", () => {
    it.effect("the result has all that was written before the end, however it was written", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const long = "0123456789abcdef".repeat(6000)
        const cases: ReadonlyArray<readonly [Language, string, string]> = [
          ["python", "import sys\nsys.stdout.write('no newline')\nNone", "no newline"],
          ["python", `print('0123456789abcdef' * 6000, end='')`, long],
          ["python", "import os\nos.write(1, b'raw')\nNone", "raw"],
          [
            "python",
            "import subprocess\nprint('a'); subprocess.run('echo b; (echo c)', shell=True); print('d')",
            "a\nb\nc\nd\n"
          ],
          ["python", "import sys\nsys.stdout.write('before exit')\nsys.exit(0)", "before exit"],
          [
            "python",
            "import io, sys\nout = io.TextIOWrapper(open(1, 'wb', closefd=False)); out.write('own buffer'); del out",
            "own buffer"
          ],
          [
            "python",
            "import threading\nt = threading.Thread(target=print, args=('thread',)); t.start(); t.join()",
            "thread\n"
          ],
          ["javascript", "process.stdout.write('no newline'); undefined", "no newline"],
          ["javascript", "process.stdout.write('0123456789abcdef'.repeat(6000)); undefined", long],
          ["javascript", "require('fs').writeSync(1, 'raw'); undefined", "raw"],
          [
            "javascript",
            "console.log('a'); require('child_process').execSync('echo b', { stdio: 'inherit' }); console.log('c')",
            "a\nb\nc\n"
          ],
          [
            "javascript",
            "await new Promise((r) => setTimeout(r, 10)); console.log('after a timer')",
            "after a timer\n"
          ],
          [
            "javascript",
            "Promise.resolve().then(() => console.log('microtask')); process.nextTick(() => console.log('tick')); undefined",
            "tick\nmicrotask\n"
          ],
          [
            "javascript",
            "const main = async () => { await null; await new Promise((r) => setImmediate(r)); console.log('main') }; main()",
            "main\n"
          ],
          ["typescript", "console.log('x' as string); process.exit(0)", "x\n"],
          ["bash", "printf 'no newline'", "no newline"],
          ["bash", "for ((i = 0; i < 6000; i++)); do printf 0123456789abcdef; done", long],
          ["bash", "echo a | cat | cat; (echo b); { echo c; } | tee /dev/null; x=$(echo d); echo $x", "a\nb\nc\nd\n"],
          ["bash", "trap 'echo trap' EXIT; echo x; exit 0", "x\ntrap\n"]
        ]
        for (const [language, code, expected] of cases)
          assert.strictEqual(yield* stdout(exec(language, code)), expected, code)
      }).pipe(Effect.scoped)
    )

    it.effect("the result does not wait for a fixed time after the end", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        for (const [language, code] of [
          ["python", "print(1)"],
          ["javascript", "console.log(1)"],
          ["bash", "echo 1"]
        ] as const) {
          const times: Array<number> = []
          for (let i = 0; i < 15; i++) times.push((yield* exec(language, code)).receipt.timing.executeMs ?? Infinity)
          assert.isBelow(Math.min(...times), 100, language)
        }
      }).pipe(Effect.scoped)
    )
  })

  /** Waits in the background until `~/go` exists, then writes `late`, then creates `~/done`. */
  const shell = "until [ -e ~/go ]; do sleep 0.02; done; echo late; echo oops >&2; touch ~/done"
  const kinds: ReadonlyArray<readonly [string, Language, string]> = [
    ["Popen", "python", `import subprocess\np = subprocess.Popen('${shell}', shell=True)\nprint('start')`],
    [
      "a double fork",
      "python",
      `import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: os.execvp('bash', ['bash', '-c', '${shell}'])
    os._exit(0)
print('start')`
    ],
    [
      "multiprocessing",
      "python",
      `import multiprocessing, os, sys, time
def work():
    while not os.path.exists('/home/user/go'): time.sleep(0.02)
    print('late', flush=True); print('oops', file=sys.stderr, flush=True)
    open('/home/user/done', 'w').close()
multiprocessing.get_context('fork').Process(target=work, daemon=True).start()
print('start')`
    ],
    [
      "a thread",
      "python",
      `import threading, os, sys, time
def work():
    while not os.path.exists('/home/user/go'): time.sleep(0.02)
    print('late'); print('oops', file=sys.stderr)
    open('/home/user/done', 'w').close()
threading.Thread(target=work).start()
print('start')`
    ],
    [
      "children of a thread",
      "python",
      `import threading, os, subprocess, time
def work():
    while not os.path.exists('/home/user/go'): time.sleep(0.02)
    subprocess.run(['sh', '-c', 'printf l; printf o >&2'])
    os.system('printf a; printf o >&2')
    os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', 'printf t; printf p >&2'], os.environ), 0)
    subprocess.run(['sh', '-c', 'printf e; printf s >&2'], preexec_fn=os.getpid)
    if subprocess.run(['echo', 'taken'], stdout=subprocess.PIPE).stdout == b'taken\\n': os.write(2, b'\\n')
    subprocess.run(['echo', 'for nobody'], stdout=subprocess.DEVNULL)
    t = threading.Thread(target=lambda: subprocess.run('echo', close_fds=False)); t.start(); t.join()
    open('/home/user/done', 'w').close()
threading.Thread(target=work).start()
print('start')`
    ],
    [
      "a timer",
      "javascript",
      `const fs = require('fs')
const timer = setInterval(() => {
  if (!fs.existsSync('/home/user/go')) return
  clearInterval(timer); console.log('late'); console.error('oops'); fs.writeFileSync('/home/user/done', '')
}, 20)
console.log('start')`
    ],
    [
      "children of a timer",
      "javascript",
      `const { execSync: run, spawn: start } = require('child_process')
const watch = setInterval(() => {
  if (!fs.existsSync('/home/user/go')) return
  clearInterval(watch); run('printf la; printf oo >&2', { stdio: 'inherit' }); run('printf p >&2')
  start('sh', ['-c', 'echo te; echo s >&2'], { stdio: ['ignore', process.stdout, 'inherit'] }).on('exit', () => fs.writeFileSync('/home/user/done', ''))
}, 20)
console.log('start')`
    ],
    [
      "a promise",
      "javascript",
      `const { access, writeFile } = require('fs/promises')
const work = async () => {
  for (;;) { try { await access('/home/user/go'); break } catch { await new Promise((r) => setTimeout(r, 20)) } }
  console.log('late'); console.error('oops'); await writeFile('/home/user/done', '')
}
void work(); console.log('start')`
    ],
    [
      "spawn, detached",
      "typescript",
      `import { spawn } from 'node:child_process'
spawn('bash', ['-c', '${shell}'], { detached: true, stdio: 'inherit' } as object).unref(); console.log('start')`
    ],
    ["&", "bash", `{ ${shell}; } & echo start`],
    ["nohup and setsid in a subshell", "bash", `( nohup setsid bash -c '${shell}' </dev/null & ) ; echo start`],
    ["process substitution", "bash", `exec 9> >(${shell}); echo start`],
    ["disown", "bash", `bash -c '${shell}' & disown; echo start`]
  ]
  describe("7: background work does not delay the end, and its output is in no other execution's result", () => {
    for (const language of ["python", "javascript", "bash"] as const) {
      const own = kinds.filter(([, it]) => (it === "typescript" ? "javascript" : it) === language)
      it.effect(`${language}: ${own.map(([name]) => name).join(", ")}`, () =>
        Effect.gen(function* () {
          const it = yield* session()
          const exec = executing(it)
          for (const [name, language, code] of own) {
            const first = yield* exec(language, code)
            assert.strictEqual(first.stdout, "start\n", name)
            const between: Record<string, string> = {
              python:
                "import os, time\nprint('mine')\nopen('/home/user/go', 'w').close()\nwhile not os.path.exists('/home/user/done'): time.sleep(0.02)\nprint('own')",
              javascript:
                "console.log('mine'); fs_ = require('fs'); fs_.writeFileSync('/home/user/go', ''); while (!fs_.existsSync('/home/user/done')) await new Promise((r) => setTimeout(r, 20)); console.log('own')",
              bash: "echo mine; touch ~/go; until [ -e ~/done ]; do sleep 0.02; done; echo own"
            }
            const second = yield* exec(language, between[language === "typescript" ? "javascript" : language] ?? "")
            assert.deepStrictEqual([second.stdout, second.stderr], ["mine\nown\n", ""], name)
            const at = first.receipt.sequence
            const late = yield* lateUntil(
              it,
              (seen) => seen.size >= 2 && [...seen.values()].every((text) => text.endsWith("\n"))
            )
            assert.deepStrictEqual(
              [...late].sort(),
              [
                [`${at} Stderr`, "oops\n"],
                [`${at} Stdout`, "late\n"]
              ],
              name
            )
            yield* exec("bash", "rm -f ~/go ~/done")
          }
        }).pipe(Effect.scoped)
      )
    }

    it.effect("late output is bounded: what is not read is dropped and counted, and no writer is blocked", () =>
      Effect.gen(function* () {
        const it = yield* session()
        const exec = executing(it)
        yield* exec("bash", "{ until [ -e ~/go ]; do sleep 0.02; done; head -c 3000000 /dev/zero; touch ~/done; } & :")
        yield* exec("bash", "touch ~/go; until [ -e ~/done ]; do sleep 0.02; done")
        yield* exec("bash", "{ sleep 0.1; echo the end; } & :")
        let kept = 0
        let dropped = 0
        let text = ""
        yield* it.output.pipe(
          Stream.takeUntil((event) => {
            if (event._tag === "Dropped") dropped += event.bytes
            else if (event.sequence === 1) kept += event.bytes.length
            else text += Buffer.from(event.bytes).toString()
            return text.endsWith("the end\n")
          }),
          Stream.runDrain,
          Effect.timeout("30 seconds")
        )
        assert.strictEqual(text, "the end\n")
        assert.isAtLeast(kept, 100_000)
        assert.isBelow(kept, 3_000_000)
        assert.strictEqual(kept + dropped, 3_000_000)
      }).pipe(Effect.scoped)
    )

    it.effect("an exception in the background is stderr of the execution that started it, and ends nothing", () =>
      Effect.gen(function* () {
        const it = yield* session()
        const exec = executing(it)
        yield* exec(
          "javascript",
          "setTimeout(() => { throw new Error('in a timer') }, 30); Promise.resolve().then(() => setTimeout(() => Promise.reject(new Error('rejected')), 30)); var v = 7; 1"
        )
        const next = yield* exec("javascript", "await new Promise((r) => setTimeout(r, 300)); console.log(v)")
        assert.deepStrictEqual([next.stdout, next.stderr, next.receipt.state], ["7\n", "", "kept"])
        const late = yield* lateUntil(it, (seen) => /in a timer[^]*rejected/.test(seen.get("1 Stderr") ?? ""))
        assert.deepStrictEqual([...late.keys()], ["1 Stderr"])
      }).pipe(Effect.scoped)
    )

    it.effect("a child that keeps the pipes open does not delay the end of an execution, however it ends", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const child = "import subprocess\nsubprocess.Popen(['sleep', '60'])\n"
        assert.strictEqual((yield* failure(exec("python", `${child}import os\nos._exit(6)`))).receipt.exitCode, 6)
        assert.strictEqual((yield* failure(exec("python", `${child}raise SystemExit(4)`))).receipt.exitCode, 4)
        assert.strictEqual((yield* failure(exec("bash", "sleep 60 & exit 5"))).receipt.exitCode, 5)
        assert.strictEqual((yield* ended(exec("bash", "sleep 60 & :"))).receipt.exitCode, 0)
        const node = "require('child_process').spawn('sleep', ['60'], { stdio: 'inherit' }); "
        assert.strictEqual((yield* failure(exec("javascript", `${node}process.exit(3)`))).receipt.exitCode, 3)
        assert.strictEqual((yield* ended(exec("javascript", `${node}undefined`))).receipt.exitCode, 0)
      }).pipe(Effect.scoped)
    )
  })

  describe("8: the JavaScript event loop runs between executions", () => {
    it.effect("a server answers before the next execution starts, and timers fire, unref'd ones included", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        yield* exec(
          "javascript",
          `let ticks = 0; setInterval(() => { ticks++ }, 5); let quiet = 0; setInterval(() => { quiet++ }, 5).unref()
const server = require('http').createServer((request, response) => response.end('hello ' + request.url))
await new Promise((resolve) => server.listen(8123, '127.0.0.1', resolve))`
        )
        const ask = "import urllib.request\nprint(urllib.request.urlopen('http://127.0.0.1:8123/x').read().decode())"
        assert.strictEqual(yield* stdout(exec("python", ask)), "hello /x\n")
        assert.strictEqual(
          yield* stdout(exec("javascript", "console.log(ticks > 1, quiet > 1, server.listening)")),
          "true true true\n"
        )
        assert.strictEqual(
          yield* stdout(exec("javascript", "server.close(); server.closeAllConnections(); console.log('closed')")),
          "closed\n"
        )
        assert.include((yield* failure(exec("python", ask))).stderr, "Connection refused")
      }).pipe(Effect.scoped)
    )
  })
})
