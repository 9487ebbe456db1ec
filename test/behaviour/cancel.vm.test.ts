/** Cancelling an execution stops its code in the guest, not only the call. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import type { Language } from "../../src/Execution.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { executing, session, stdout } from "../support/executions.ts"

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("cancel", (it) => {
  describe("12: cancel is real", () => {
    const cases: Record<"python" | "javascript" | "bash", ReadonlyArray<readonly [Language, string, "7" | "gone"]>> = {
      python: [
        ["python", "print('on', flush=True)\nwhile True: pass", "7"],
        ["python", "print('on', flush=True)\nimport subprocess\nsubprocess.run(['sleep', '77'])", "7"],
        [
          "python",
          "import subprocess, time\nsubprocess.Popen('sleep 77 & sleep 77', shell=True)\nprint('on', flush=True)\ntime.sleep(60)",
          "7"
        ],
        // Has the effect of a SIGINT between Python's last check for signals and a blocking call: nothing interrupts the call.
        [
          "python",
          "import signal, threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nsignal.pthread_sigmask(signal.SIG_BLOCK, [2])\nprint('on', flush=True)\ntime.sleep(60)",
          "7"
        ],
        [
          "python",
          "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on', flush=True)\ntime.sleep(60)",
          "gone"
        ]
      ],
      javascript: [
        ["javascript", "console.log('on'); for (;;);", "7"],
        ["typescript", "console.log('on' as string); await new Promise(() => setTimeout(() => {}, 60000))", "7"],
        [
          "javascript",
          "require('child_process').spawn('sleep', ['77']); console.log('on'); await new Promise((r) => setTimeout(r, 60000))",
          "7"
        ]
      ],
      bash: [
        ["bash", "echo on; while :; do :; done", "7"],
        ["bash", "echo on; sleep 77 | cat", "7"],
        ["bash", "sleep 77 & echo on; wait", "7"],
        ["bash", "trap '' INT; echo on; while :; do sleep 77; done", "gone"]
      ]
    }
    const keep = { python: "v = 7", javascript: "var v = 7", bash: "v=7" }
    const show = {
      python: "print(globals().get('v', 'gone'))",
      javascript: "console.log(globalThis.v ?? 'gone')",
      bash: "echo ${v:-gone}"
    }
    for (const language of ["python", "javascript", "bash"] as const) {
      it.effect(`${language}: ending the stream ends the process tree, and the session stays usable`, () =>
        Effect.gen(function* () {
          const it = yield* session()
          const exec = executing(it)
          for (const [languageOfCode, code, expected] of cases[language]) {
            yield* exec(language, keep[language])
            const first = yield* it.stream({ language: languageOfCode, code }).pipe(Stream.take(1), Stream.runCollect)
            assert.deepStrictEqual(
              first.map((event) => event._tag === "Stdout" && `${Buffer.from(event.bytes)}`),
              ["on\n"],
              code
            )
            assert.strictEqual(yield* stdout(exec(language, show[language])), `${expected}\n`, code)
            // Checked from another interpreter, because the interrupted one may be the parent.
            const other = language === "bash" ? "python" : "bash"
            const count =
              other === "bash"
                ? "pgrep -fc '^sleep 77' || true"
                : "import subprocess\nprint(subprocess.run(['pgrep', '-fc', '^sleep 77'], capture_output=True, text=True).stdout, end='')"
            yield* stdout(exec(other, count)).pipe(
              Effect.repeat({ until: (n) => n === "0\n", schedule: Schedule.spaced("50 millis") }),
              Effect.timeout("15 seconds")
            )
          }
        }).pipe(Effect.scoped)
      )
    }

    it.effect("an interrupted exec ends its fibre at once, and the next execution gets the interpreter", () =>
      Effect.gen(function* () {
        const it = yield* session()
        const exec = executing(it)
        for (const [language, code] of [
          ["python", "open('/tmp/p', 'w'); import time; time.sleep(60)"],
          ["javascript", "require('fs').writeFileSync('/tmp/j', ''); for (;;);"],
          ["bash", ": >/tmp/b; sleep 60"]
        ] as const) {
          const fiber = yield* Effect.forkChild(exec(language, code), { startImmediately: true })
          const other = language === "bash" ? "python" : "bash"
          const file = `/tmp/${language.slice(0, 1)}`
          const wait =
            other === "bash"
              ? `until [ -e ${file} ]; do sleep 0.01; done`
              : `import os, time\nwhile not os.path.exists('${file}'): time.sleep(0.01)`
          yield* exec(other, wait)
          yield* Fiber.interrupt(fiber)
          assert.strictEqual(
            yield* stdout(
              exec(language, language === "python" ? "print(1)" : language === "bash" ? "echo 1" : "console.log(1)")
            ),
            "1\n"
          )
        }
      }).pipe(Effect.scoped)
    )

    it.effect("an execution cancelled while it waits never runs, and those behind it do", () =>
      Effect.gen(function* () {
        const it = yield* session()
        const exec = executing(it)
        const hold = "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nprint('held')"
        const first = yield* Effect.forkChild(exec("python", hold), { startImmediately: true })
        const second = yield* Effect.forkChild(exec("python", "open('/tmp/ran', 'w')"), { startImmediately: true })
        const third = yield* Effect.forkChild(exec("python", "import os\nprint(os.path.exists('/tmp/ran'))"), {
          startImmediately: true
        })
        yield* exec("bash", "true")
        yield* Fiber.interrupt(second)
        yield* exec("bash", "touch /tmp/go")
        assert.strictEqual((yield* Fiber.join(first)).stdout, "held\n")
        assert.strictEqual((yield* Fiber.join(third)).stdout, "False\n")
      }).pipe(Effect.scoped)
    )
  })
})
