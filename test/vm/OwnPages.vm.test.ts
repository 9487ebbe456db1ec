/** Reads and writes the own pages of a QEMU process without a machine. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Buffer } from "node:buffer"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { Host } from "../../src/Host.ts"
import { openOwnPages, type Piece, writeOwnPages } from "../../src/vm/OwnPages.ts"
import * as Machine from "../../src/qemu/Machine.ts"

const page = 4096
const size = 16 * 1024 * 1024
/** The one page of the file that is not a hole; it contains only `f`. */
const filled = 2048

const pieceOf = (at: number, pages: number, value: number): Piece => ({
  at: at * page,
  bytes: Buffer.alloc(pages * page, value)
})

/** The memory after the pieces are written. */
const memoryOf = (pieces: ReadonlyArray<Piece>): Buffer => {
  const whole = Buffer.alloc(size)
  whole.fill("f", filled * page, (filled + 1) * page)
  for (const { at, bytes } of pieces) whole.set(bytes, at)
  return whole
}

/** A process that maps the file privately and touches none of it. */
const mapped = Effect.gen(function* () {
  const qemu = yield* Host.use((host) => host.qemu(host.arch))
  const file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-pages-")), "ram")
  const ram = fs.openSync(file, "wx+")
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      fs.closeSync(ram)
      fs.rmSync(path.dirname(file), { recursive: true })
    })
  )
  fs.ftruncateSync(ram, size)
  fs.writeSync(ram, Buffer.alloc(page, "f"), 0, page, filled * page)
  const object = `memory-backend-file,id=ram,size=${size},mem-path=${file},share=off`
  const argv = [qemu.path, "-M", "none", "-nodefaults", "-display", "none", "-qmp", "stdio", "-object", object] as const
  const { commands, kill, pid } = yield* Machine.launch({ argv, files: [] })
  yield* commands({ execute: "qmp_capabilities" })
  return { file, kill, pid, ram }
})

describe("own pages", () => {
  it.live("reads back what was written, run by run, and does not change the file", () =>
    Effect.gen(function* () {
      const { file, pid, ram } = yield* mapped
      const given = [
        pieceOf(0, 1, 1),
        // Near enough to be read together with the one before.
        pieceOf(3, 1, 2),
        pieceOf(100, 700, 3),
        pieceOf(filled - 1, 1, 4),
        pieceOf(filled + 2, 1, 5),
        pieceOf(size / page - 2, 2, 6)
      ]
      const before = openOwnPages(pid, ram, size)
      assert.deepStrictEqual(yield* Effect.promise(() => before.read(() => assert.fail("nothing is its own"))), {
        bytes: 0,
        pieces: []
      })
      before.close()
      const rest = given.values()
      yield* Effect.promise(() => writeOwnPages(pid, ram, size, () => Promise.resolve(rest.next().value)))
      const expected = memoryOf(given)
      for (const room of [undefined, 0, 8 * page]) {
        const own = openOwnPages(pid, ram, size, room)
        const written: Array<Piece> = []
        const { bytes, pieces } = yield* Effect.promise(() => own.read((piece) => written.push(piece)))
        own.close()
        const all = [...pieces, ...written].sort((a, b) => a.at - b.at)
        assert.strictEqual(
          all.reduce((sum, it) => sum + it.bytes.length, 0),
          bytes
        )
        assert.deepStrictEqual(
          all.map((it) => [it.at / page, it.bytes.length / page]),
          [
            [0, 4],
            [100, 256],
            [356, 256],
            [612, 188],
            [filled - 1, 4],
            [size / page - 2, 2]
          ]
        )
        if (room === 0) assert.strictEqual(written.length, 6)
        assert.isTrue(memoryOf(all).equals(expected))
      }
      assert.isTrue(fs.readFileSync(file).equals(memoryOf([])))
    }).pipe(Effect.scoped, Effect.provide(Host.layer))
  )

  it.live("refuses a process that does not map the whole file, or has ended", () =>
    Effect.gen(function* () {
      const { kill, pid, ram } = yield* mapped
      const other = fs.openSync("/dev/null", "r")
      yield* Effect.addFinalizer(() => Effect.sync(() => fs.closeSync(other)))
      assert.throws(() => openOwnPages(pid, ram, size + page), `QEMU maps ${size} of its memory's ${size + page} bytes`)
      assert.throws(() => openOwnPages(pid, other, size), "QEMU maps 0 of")
      assert.throws(() => openOwnPages(process.pid, ram, size), "QEMU maps 0 of")
      const beyond = (): Promise<Piece> => Promise.resolve(pieceOf(size / page - 1, 2, 1))
      const error = yield* Effect.flip(Effect.tryPromise(() => writeOwnPages(pid, ram, size, beyond)))
      assert.match(String(error.cause), /outside QEMU's memory/)
      yield* kill
      assert.throws(() => openOwnPages(pid, ram, size), "ENOENT")
    }).pipe(Effect.scoped, Effect.provide(Host.layer))
  )
})
