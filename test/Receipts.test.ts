/** Receipts in memory, and in a journal that several writers and crashes cannot damage. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import { execFile, execFileSync } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"
import * as Receipts from "../src/Receipts.ts"
import { receipt } from "./support/receipts.ts"

const directory = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-receipts-"))),
  (it) => Effect.sync(() => fs.rmSync(it, { recursive: true }))
)
const journal = Effect.map(directory, (it) => path.join(it, "receipts.jsonl"))

const publish = (...sequences: ReadonlyArray<number>) =>
  Effect.flatMap(Receipts.Receipts, (it) =>
    Effect.forEach(sequences, (sequence) => it.publish(receipt({ sequence })), { discard: true })
  )

const line = (sequence: number) => JSON.stringify(receipt({ sequence }))

const readAll = (file: string) =>
  Effect.gen(function* () {
    const damaged: Array<Receipts.Damaged> = []
    const receipts = yield* Receipts.read(file, {
      onDamaged: (it) => Effect.sync(() => void damaged.push(it))
    }).pipe(Stream.runCollect)
    return { sequences: receipts.map((it) => it.sequence), damaged }
  })

describe("layerMemory", () => {
  it.effect("keeps the last receipts, oldest first, and counts all", () =>
    Effect.gen(function* () {
      const memory = yield* Receipts.Memory
      yield* publish(1, 2)
      assert.deepStrictEqual(
        (yield* memory.all).map((it) => it.sequence),
        [1, 2]
      )
      yield* publish(3, 4, 5)
      assert.deepStrictEqual(
        (yield* memory.all).map((it) => it.sequence),
        [3, 4, 5]
      )
      assert.strictEqual(yield* memory.count, 5)
    }).pipe(Effect.provide(Receipts.layerMemory({ capacity: 3 })))
  )

  it.effect("is not required: without a layer, and with layerNone, receipts are dropped", () =>
    Effect.gen(function* () {
      yield* publish(1)
      yield* Effect.provide(publish(1), Receipts.layerNone)
    })
  )
})

describe("layerFile", () => {
  it.effect("writes one line of JSON for each receipt, and appends to a file that exists", () =>
    Effect.gen(function* () {
      const file = yield* journal
      yield* Effect.provide(publish(1, 2), Receipts.layerFile(file))
      yield* Effect.provide(publish(3), Receipts.layerFile(file))
      const lines = fs.readFileSync(file, "utf8").split("\n")
      assert.deepStrictEqual(
        lines.map((line) => (line === "" ? null : JSON.parse(line).sequence)),
        [1, 2, 3, null]
      )
      assert.strictEqual(fs.statSync(file).mode & 0o777, 0o600)
      assert.deepStrictEqual(yield* readAll(file), { sequences: [1, 2, 3], damaged: [] })
    })
  )

  it.effect("ends a line that a crashed writer left incomplete, at whatever byte it was cut", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const whole = `${JSON.stringify(receipt({ sequence: 1 }))}\n`
      for (const length of [1, 2, 100, whole.length - 2, whole.length - 1]) {
        const file = path.join(home, `${length}`)
        fs.writeFileSync(file, whole + whole.slice(0, length))
        yield* Effect.provide(publish(2, 3), Receipts.layerFile(file))
        // Only the newline of the last line is missing, so its receipt is not lost.
        const kept = length === whole.length - 1 ? [1, 1, 2, 3] : [1, 2, 3]
        const { damaged, sequences } = yield* readAll(file)
        assert.deepStrictEqual(sequences, kept)
        assert.deepStrictEqual(damaged, kept.length === 4 ? [] : [{ line: 2, bytes: length }])
      }
    })
  )

  it.effect("neither loses nor mixes lines when several processes write at once", () =>
    Effect.gen(function* () {
      const file = yield* journal
      const writer = fileURLToPath(new URL("./support/writeReceipts.ts", import.meta.url))
      const run = promisify(execFile)
      yield* Effect.forEach(
        [0, 1, 2],
        (n) => Effect.promise(() => run(process.execPath, [writer, file, `${n * 1000}`, "200"])),
        { concurrency: "unbounded" }
      )
      const { damaged, sequences } = yield* readAll(file)
      assert.deepStrictEqual(damaged, [])
      const expected = [0, 1, 2].flatMap((n) => Array.from({ length: 200 }, (_, i) => n * 1000 + i))
      assert.deepStrictEqual(
        [...sequences].sort((a, b) => a - b),
        expected
      )
    })
  )

  it.effect("logs the receipts that a full disk loses, and writes correct lines once there is room again", (context) =>
    Effect.gen(function* () {
      const home = yield* directory
      const mounted = yield* Effect.acquireRelease(
        Effect.try(() => execFileSync("mount", ["-t", "tmpfs", "-o", "size=8k", "tmpfs", home], { stdio: "ignore" })),
        () => Effect.sync(() => execFileSync("umount", ["--lazy", home]))
      ).pipe(Effect.option)
      if (Option.isNone(mounted)) return context.skip("needs permission to mount")
      const file = path.join(home, "receipts.jsonl")
      const said: Array<string> = []
      const logger = Logger.make(({ message }) => void said.push(String(message)))
      yield* Effect.gen(function* () {
        // Two pages have room for a few lines and a part of another.
        yield* publish(...Array.from({ length: 20 }, (_, n) => n + 1))
        const { damaged, sequences } = yield* readAll(file)
        const kept = sequences.length
        assert.isAbove(kept, 2)
        assert.isBelow(kept, 20)
        assert.deepStrictEqual(
          sequences,
          Array.from({ length: kept }, (_, n) => n + 1)
        )
        assert.deepStrictEqual(
          damaged.map((it) => it.line),
          [kept + 1]
        )
        assert.strictEqual(said.length, 20 - kept)
        for (const line of said) assert.match(line, /a receipt is lost: the journal .* cannot be used: .*exe-/)

        execFileSync("mount", ["-o", "remount,size=64k", home])
        yield* publish(21, 22)
        const later = yield* readAll(file)
        assert.deepStrictEqual(later.sequences, [...sequences, 21, 22])
        assert.deepStrictEqual(later.damaged, damaged)
        assert.strictEqual(said.length, 20 - kept)
      }).pipe(Effect.provide(Layer.merge(Receipts.layerFile(file), Logger.layer([logger]))))
    })
  )

  it.effect("fails with a typed error for a path that is not a regular file or cannot be written", () =>
    Effect.gen(function* () {
      const home = yield* directory
      yield* Effect.promise(() => promisify(execFile)("mkfifo", [path.join(home, "fifo")]))
      fs.writeFileSync(path.join(home, "plain"), "")
      const refusals = [
        [home, "EISDIR"],
        [path.join(home, "none", "x"), "ENOENT"],
        [path.join(home, "plain", "x"), "ENOTDIR"],
        [path.join(home, "fifo"), "EINVAL"],
        ["/dev/null", "EINVAL"],
        ["a\0b", "ERR_INVALID_ARG_VALUE"]
      ] as const
      for (const [file, code] of refusals) {
        const error = yield* Effect.flip(Effect.provide(publish(1), Receipts.layerFile(file)))
        assert.deepStrictEqual([error._tag, error.path, error.code], ["JournalUnusable", file, code])
        assert.include(error.message, "cannot be used")
      }
    })
  )
})

describe("read", () => {
  it.effect("skips and reports lines that are not receipts, however long, and reads a last line without newline", () =>
    Effect.gen(function* () {
      const file = yield* journal
      const lines = [line(1), "{}", "", "\xff", "x".repeat(3_000_000), line(2).slice(0, 90), line(3)]
      fs.writeFileSync(file, Buffer.from(lines.join("\n"), "latin1"))
      assert.deepStrictEqual(yield* readAll(file), {
        sequences: [1, 3],
        damaged: [
          { line: 2, bytes: 2 },
          { line: 4, bytes: 1 },
          { line: 5, bytes: 3_000_000 },
          { line: 6, bytes: 90 }
        ]
      })
      assert.deepStrictEqual((yield* Receipts.read(file).pipe(Stream.take(1), Stream.runCollect)).length, 1)
    })
  )

  it.effect("fails with a typed error when there is no file to read", () =>
    Effect.gen(function* () {
      const home = yield* directory
      for (const [file, code] of [
        [home, "EINVAL"],
        [path.join(home, "none"), "ENOENT"]
      ] as const) {
        const error = yield* Effect.flip(Stream.runCollect(Receipts.read(file)))
        assert.deepStrictEqual([error._tag, error.code], ["JournalUnusable", code])
      }
    })
  )
})
