/** The bytes of code, stdin and output arrive exactly as they were sent. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type { Language } from "../../src/Execution.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { executing, fresh, session, stdout } from "../support/executions.ts"

const all = Buffer.from(Array.from({ length: 256 }, (_, i) => i))

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("bytes", (it) => {
  describe("13: bytes are exact", () => {
    it.effect("any byte values arrive on stdout and stderr, in every language", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const cases: ReadonlyArray<readonly [Language, string]> = [
          [
            "python",
            "import sys\nb = bytes(range(256)) * 300\nsys.stdout.buffer.write(b); sys.stderr.buffer.write(b)\nNone"
          ],
          [
            "javascript",
            "const b = Buffer.alloc(76800, Buffer.from(Array.from({ length: 256 }, (_, i) => i))); process.stdout.write(b); process.stderr.write(b); undefined"
          ],
          [
            "typescript",
            "const u: Uint8Array = new Uint8Array(76800).map((_, i) => i & 255); process.stdout.write(u); process.stderr.write(u); undefined"
          ],
          [
            "bash",
            'for ((i = 0; i < 256; i++)); do printf -v x \'\\\\x%02x\' $i; s+=$x; done; for ((i = 0; i < 300; i++)); do printf "$s"; printf "$s" >&2; done'
          ]
        ]
        const expected = Buffer.alloc(76_800, all)
        for (const [language, code] of cases) {
          const { bytes, receipt } = yield* exec(language, code)
          assert.isTrue(expected.equals(bytes.stdout), `${language} stdout`)
          assert.isTrue(expected.equals(bytes.stderr), `${language} stderr`)
          assert.deepStrictEqual(receipt.output, { stdoutBytes: 76_800, stderrBytes: 76_800, truncated: false })
        }
      }).pipe(Effect.scoped)
    )

    it.effect(
      "a character of four bytes arrives whole across any boundary, also when its bytes are written at different times",
      () =>
        Effect.gen(function* () {
          const exec = yield* fresh
          for (let shift = 0; shift < 4; shift++) {
            const text = "x".repeat(shift) + "\u{1F600}".repeat(40_000)
            assert.strictEqual(
              yield* stdout(exec("python", `print('x' * ${shift} + '\\U0001F600' * 40000, end='')`)),
              text
            )
          }
          const apart =
            "import sys, time\nfor b in '\\U0001F600é'.encode():\n    sys.stdout.buffer.write(bytes([b])); sys.stdout.flush(); time.sleep(0.02)"
          assert.strictEqual(yield* stdout(exec("python", apart)), "\u{1F600}é")
          assert.strictEqual(
            yield* stdout(exec("bash", "printf '\\xf0\\x9f'; sleep 0.05; printf '\\x98\\x80'")),
            "\u{1F600}"
          )
          assert.strictEqual(
            yield* stdout(
              exec(
                "javascript",
                "process.stdout.write(Buffer.from([0xf0, 0x9f])); await new Promise((r) => setTimeout(r, 50)); process.stdout.write(Buffer.from([0x98, 0x80])); undefined"
              )
            ),
            "\u{1F600}"
          )
          const broken = yield* exec("bash", "printf 'a\\xffb'")
          assert.strictEqual(broken.stdout, "a\uFFFDb")
          assert.deepStrictEqual([...broken.bytes.stdout], [0x61, 0xff, 0x62])
        }).pipe(Effect.scoped)
    )

    it.effect(
      "50 MB are streamed whole, a reader that pauses blocks the writer, and memory stays bounded on both sides",
      () =>
        Effect.gen(function* () {
          const it = yield* session()
          const size = 50 * 1024 * 1024
          const code = `import sys
b = b'z' * 65536
for i in range(800):
    sys.stdout.buffer.write(b); sys.stdout.flush()
    with open('/dev/shm/written', 'w') as f: f.write(str((i + 1) * 65536))
None`
          const written = Effect.map(it.exec({ language: "bash", code: "cat /dev/shm/written" }), (at) =>
            Number(at.stdout)
          )
          let count = 0
          let wrong = 0
          yield* it.stream({ language: "python", code, limits: { timeMs: 55_000 } }).pipe(
            Stream.runForEach((event) =>
              Effect.gen(function* () {
                if (event._tag !== "Stdout") return
                if (count === 0) {
                  let last = -1
                  for (let now = 0; now !== last || now === 0; now = yield* written) last = now
                  assert.isBelow(last, 5 * 1024 * 1024)
                }
                count += event.bytes.length
                if (event.bytes[0] !== 0x7a || event.bytes.at(-1) !== 0x7a) wrong++
              })
            )
          )
          assert.deepStrictEqual([count, wrong], [size, 0])
        }).pipe(Effect.scoped)
    )

    it.effect("the host's memory is bounded while 300 MB are streamed", () =>
      Effect.gen(function* () {
        const it = yield* session()
        const read = (bytes: number, look: () => void) =>
          it
            .stream({ language: "bash", code: `head -c ${bytes} /dev/zero`, limits: { timeMs: 55_000 } })
            .pipe(Stream.runForEach((event) => Effect.sync(() => event._tag === "Stdout" && look())))
        yield* read(60_000_000, () => {})
        const before = process.memoryUsage.rss()
        let most = before
        yield* read(300_000_000, () => {
          most = Math.max(most, process.memoryUsage.rss())
        })
        // Uncollected garbage may grow to a few dozen MiB.
        assert.isBelow(most - before, 100 * 1024 * 1024)
      }).pipe(Effect.scoped)
    )

    it.effect("progress without newlines arrives live, from every language", () =>
      Effect.gen(function* () {
        const it = yield* session()
        const other = executing(it)
        const cases: ReadonlyArray<readonly [Language, Language, string]> = [
          [
            "python",
            "bash",
            "import os, sys, time\nfor i in (10, 20):\n    sys.stderr.write(f'{i}%\\r'); sys.stderr.flush()\n    while not os.path.exists(f'/tmp/{i}'): time.sleep(0.01)"
          ],
          [
            "javascript",
            "bash",
            "const { existsSync } = require('fs'); for (const i of [10, 20]) { process.stderr.write(i + '%\\r'); while (!existsSync('/tmp/' + i)) await new Promise((r) => setTimeout(r, 10)) }"
          ],
          [
            "bash",
            "python",
            "for i in 10 20; do printf '%s%%\\r' $i >&2; until [ -e /tmp/$i ]; do sleep 0.01; done; done"
          ]
        ]
        for (const [language, helper, code] of cases) {
          let seen = ""
          const touch =
            helper === "bash" ? (n: string) => `touch /tmp/${n}` : (n: string) => `open('/tmp/${n}', 'w').close()`
          yield* it.stream({ language, code }).pipe(
            Stream.runForEach((event) => {
              if (event._tag !== "Stderr") return Effect.void
              seen += Buffer.from(event.bytes).toString()
              // The code continues only after its output has arrived here.
              return other(helper, touch(seen.endsWith("10%\r") ? "10" : "20"))
            })
          )
          assert.strictEqual(seen, "10%\r20%\r", language)
          yield* other("bash", "rm -f /tmp/10 /tmp/20")
        }
      }).pipe(Effect.scoped)
    )

    it.effect("stdout and stderr each keep their order", () =>
      Effect.gen(function* () {
        const exec = yield* fresh
        const cases: ReadonlyArray<readonly [Language, string]> = [
          ["python", "import sys\nfor i in range(2000): print(i, file=(sys.stdout, sys.stderr)[i % 2])"],
          ["javascript", "for (let i = 0; i < 2000; i++) (i % 2 ? console.error : console.log)(i)"],
          ["bash", "for ((i = 0; i < 2000; i++)); do if ((i % 2)); then echo $i >&2; else echo $i; fi; done"]
        ]
        const numbers = Array.from({ length: 2000 }, (_, i) => `${i}\n`)
        for (const [language, code] of cases) {
          const result = yield* exec(language, code)
          assert.strictEqual(result.stdout, numbers.filter((_, i) => i % 2 === 0).join(""), language)
          assert.strictEqual(result.stderr, numbers.filter((_, i) => i % 2 === 1).join(""), language)
        }
      }).pipe(Effect.scoped)
    )
  })
})
