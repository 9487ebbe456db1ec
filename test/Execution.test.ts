import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import * as Execution from "../src/Execution.ts"
import { decodeInput } from "../src/internal/decodeInput.ts"
import type { SandboxError } from "../src/SandboxError.ts"
import { done, failures, notStarted } from "./support/failures.ts"

const ended = (outcome: Effect.Effect<Execution.Result, Execution.Failure>) => outcome
const last: Execution.Event = { _tag: "Done", result: done }
const out = (...bytes: ReadonlyArray<number>): Execution.Event => ({ _tag: "Stdout", bytes: Uint8Array.from(bytes) })
const err = (...bytes: ReadonlyArray<number>): Execution.Event => ({ _tag: "Stderr", bytes: Uint8Array.from(bytes) })

const textsOf = (events: ReadonlyArray<Execution.Event>) =>
  Stream.fromIterable(events).pipe(
    Execution.text,
    Stream.map((event) => (event._tag === "Done" ? "Done" : `${event._tag} ${event.text}`)),
    Stream.runCollect
  )

describe("Request", () => {
  const decode = decodeInput(Execution.Request, "request")
  const good = { language: "python", code: "1" }
  const refusals: ReadonlyArray<readonly [string, unknown, string, RegExp]> = [
    ["no object", null, "request", /object/],
    ["empty code", { ...good, code: "" }, "code", /not empty/],
    ["blank code", { ...good, code: " \n" }, "code", /not empty/],
    ["code with NUL", { ...good, code: "a\0b" }, "code", /without NUL/],
    ["17 MiB of code", { ...good, code: "x".repeat(17 * 1024 * 1024) }, "code", /at most 16777216 bytes/],
    ["9 Mi characters of two bytes", { ...good, code: "é".repeat(9 * 1024 * 1024) }, "code", /at most 16777216 bytes/],
    ["17 MiB of stdin", { ...good, stdin: Buffer.alloc(17 * 1024 * 1024) }, "stdin", /at most 16777216 bytes/],
    ["an unknown language", { ...good, language: "cobol" }, "language", /"python" \| "javascript"/],
    ["a misspelt field", { ...good, cdw: "/" }, "cdw", /no excess property/],
    ["an environment name with =", { ...good, env: { "A=B": "x" } }, "env", /neither '=' nor NUL/],
    ["an empty environment name", { ...good, env: { "": "x" } }, "env", /neither '=' nor NUL/],
    ["an environment value with NUL", { ...good, env: { A: "\0" } }, "env.A", /without NUL/],
    ["too much environment", { ...good, env: { A: "x".repeat(200_000) } }, "env", /at most 131072 bytes/],
    [
      "too much environment once it is escaped",
      { ...good, env: { A: "\x01".repeat(30_000) } },
      "env",
      /at most 131072/
    ],
    ["an environment name with a lone surrogate", { ...good, env: { "\ud800": "x" } }, "env", /^well-formed/],
    ["an environment value with a lone surrogate", { ...good, env: { A: "\udc80" } }, "env.A", /^well-formed/],
    ["an environment that is a list", { ...good, env: ["A=B"] }, "env", /./],
    ["code with a lone surrogate", { ...good, code: "print('\ud800')" }, "code", /^well-formed/],
    ["code that is bytes", { ...good, code: Buffer.from("1") }, "code", /./],
    ["stdin with a lone surrogate", { ...good, stdin: "\udfff" }, "stdin", /^well-formed text, or bytes/],
    ["stdin that is a number", { ...good, stdin: 1 }, "stdin", /./],
    ["an empty cwd", { ...good, cwd: "" }, "cwd", /./],
    ["a cwd with a lone surrogate", { ...good, cwd: "/\udc80" }, "cwd", /^well-formed/],
    ["a cwd with NUL", { ...good, cwd: "/\0" }, "cwd", /without NUL/],
    ["a cwd longer than any path", { ...good, cwd: "/".repeat(4097) }, "cwd", /4096/],
    ["an unknown limit", { ...good, limits: { diskGiB: 1 } }, "limits.diskGiB", /no excess property/],
    ["an endless limit", { ...good, limits: { timeMs: Infinity } }, "limits.timeMs", /./],
    ["a limit that is a string", { ...good, limits: { memoryMiB: "512" } }, "limits.memoryMiB", /./],
    ["an unknown value of output", { ...good, limits: { output: "drop" } }, "limits.output", /"truncate" \| "fail"/],
    ["no processes", { ...good, limits: { processes: 0 } }, "limits.processes", /./],
    ["negative output", { ...good, limits: { outputBytes: -1 } }, "limits.outputBytes", /./],
    ["too little memory", { ...good, limits: { memoryMiB: 127 } }, "limits.memoryMiB", /from 128 to 65536/],
    ["no time", { ...good, limits: { timeMs: 0 } }, "limits.timeMs", /from 1 to/],
    ["half a millisecond", { ...good, limits: { timeMs: 0.5 } }, "limits.timeMs", /integer/]
  ]
  for (const [name, input, field, expected] of refusals) {
    it.effect(`refuses ${name}`, () =>
      Effect.gen(function* () {
        const error: SandboxError = yield* Effect.flip(decode(input))
        assert.strictEqual(error.reason._tag, "InvalidInput")
        assert.strictEqual(error.retry, "never")
        if (error.reason._tag !== "InvalidInput") return
        assert.strictEqual(error.reason.field, field)
        assert.match(error.reason.expected, expected)
        assert.isBelow(error.message.length, 400)
      })
    )
  }
  it.effect("accepts any environment names that Linux allows, and 16 MiB of code", () =>
    Effect.gen(function* () {
      const code = "#".repeat(16 * 1024 * 1024)
      const env = { "a.b-c d": "1", ü: "" }
      assert.deepStrictEqual(yield* decode({ language: "bash", code, env }), { language: "bash", code, env })
    })
  )
})

describe("settle", () => {
  it.effect("returns a success with its value and exit code", () =>
    Effect.gen(function* () {
      const settled = yield* ended(Effect.succeed(done)).pipe(Execution.settle)
      assert.deepStrictEqual(
        [settled.outcome, settled.exitCode, settled.error, settled.result, settled.stdout],
        ["Success", 0, null, { repr: "1", json: 1 }, "out"]
      )
      assert.strictEqual(settled.receipt, done.receipt)
    })
  )

  for (const error of Object.values(failures)) {
    it.effect(`returns ${error._tag} as a value with all its fields`, () =>
      Effect.gen(function* () {
        const settled = yield* ended(Effect.fail(error)).pipe(Execution.settle)
        assert.deepStrictEqual(
          [settled.outcome, settled.exitCode, settled.stdout, settled.stderr, settled.result],
          [error._tag, error.receipt.exitCode, "out", "err", null]
        )
        assert.strictEqual(settled.error, error)
        assert.strictEqual(settled.bytes, error.bytes)
      })
    )
  }

  it.effect("leaves only a failure of the sandbox an error", () =>
    Effect.gen(function* () {
      const flipped: SandboxError = yield* Effect.flip(ended(Effect.fail(notStarted)).pipe(Execution.settle))
      assert.strictEqual(flipped, notStarted)
    })
  )
})

describe("text", () => {
  it.effect("gives the same text however the bytes are cut", () =>
    Effect.gen(function* () {
      const text = "aé€😀\ufeffz"
      const bytes = Buffer.from(text)
      for (let first = 0; first <= bytes.length; first++) {
        for (let second = first; second <= bytes.length; second++) {
          const parts = [bytes.subarray(0, first), bytes.subarray(first, second), bytes.subarray(second)]
          const events = yield* Stream.fromIterable(parts.map((part) => out(...part))).pipe(
            Execution.text,
            Stream.runCollect
          )
          const texts = events.map((event) => (event._tag === "Stdout" ? event.text : ""))
          assert.strictEqual(texts.join(""), text)
          for (const it of texts) assert.isTrue(it !== "" && it.isWellFormed() && !it.includes("\ufffd"))
        }
      }
    })
  )

  it.effect("keeps stdout and stderr apart and in order", () =>
    Effect.gen(function* () {
      const events = [out(0xe2, 0x82), err(0x78), err(0xc3), out(0xac), err(0xa9), last]
      assert.deepStrictEqual(yield* textsOf(events), ["Stderr x", "Stdout €", "Stderr é", "Done"])
    })
  )

  it.effect("replaces bytes that are not UTF-8, and an incomplete character before the result", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* textsOf([out(0xff, 0x61), err(0xf0, 0x9f), last]), [
        "Stdout �a",
        "Stderr �",
        "Done"
      ])
    })
  )

  it.effect("replaces an incomplete character before the error too, and starts fresh on each run", () =>
    Effect.gen(function* () {
      const seen: Array<string> = []
      const events = Stream.concat(Stream.fromIterable([out(0x61, 0xe2)]), Stream.fail("no" as const)).pipe(
        Execution.text,
        Stream.tap((event) => Effect.sync(() => void seen.push(event._tag === "Done" ? "" : event.text)))
      )
      assert.strictEqual(yield* Effect.flip(Stream.runDrain(events)), "no")
      assert.strictEqual(yield* Effect.flip(Stream.runDrain(events)), "no")
      assert.deepStrictEqual(seen, ["a", "�", "a", "�"])
    })
  )
})
