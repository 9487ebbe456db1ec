import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import * as Tar from "effect/encoding/Tar"
import { randomBytes } from "node:crypto"
import * as fs from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { type Bounds, extract } from "../../src/files/Extract.ts"
import { tree } from "../../src/files/HostTree.ts"

const bounds: Bounds = { maxBytes: 1024 * 1024, maxEntries: 100, outsideLinks: "refuse" }

/** A directory with a target in it, and next to that a file that no archive may reach. */
const hostDirectory = Effect.acquireRelease(
  Effect.sync(() => {
    const host = fs.mkdtempSync(join(tmpdir(), "exec-sandbox-extract-"))
    fs.mkdirSync(join(host, "target"))
    fs.writeFileSync(join(host, "outside"), "untouched")
    return host
  }),
  (host) => Effect.sync(() => fs.rmSync(host, { recursive: true, force: true }))
)

const archiveOf = (entries: ReadonlyArray<Tar.Entry>) =>
  Stream.fromIterable(entries).pipe(Stream.pipeThroughChannelOrFail(Tar.encode<never, unknown>()))

const unpack = (host: string, archive: Stream.Stream<Uint8Array, Tar.TarError>, given: Partial<Bounds> = {}) =>
  extract(archive, Buffer.from(join(host, "target")), { ...bounds, ...given })

/** Changes the header of an entry to what no constructor makes, as a hostile archive may. */
const hostile = (entry: Tar.Entry, header: Partial<Tar.Header>): Tar.Entry => ({
  // An entry without size has no body.
  body: header.size === 0 ? Stream.empty : entry.body,
  header: { ...entry.header, ...header }
})

const file = (path: string) => Tar.file(path, "evil")

describe("extraction on the host", () => {
  it.effect("makes files, directories and links as they are in the archive", () =>
    Effect.gen(function* () {
      const host = yield* hostDirectory
      const mtime = new Date(1_600_000_000_000)
      const count = yield* unpack(
        host,
        archiveOf([
          Tar.directory("./", { mode: 0o750, mtime }),
          Tar.directory("a", { mode: 0o500, mtime }),
          Tar.file("a/f", "content", { mode: 0o4755, mtime }),
          Tar.symlink("a/up", "../b/c"),
          Tar.symlink("dangling", "a/nothing"),
          Tar.file("b/c", "parent made"),
          Tar.file("replacement", "odd", { pax: { "EXECSANDBOX.path": "61ff" } })
        ])
      )
      assert.deepStrictEqual(count, { entries: 8, bytes: 21, skipped: 0 })
      const target = join(host, "target")
      assert.strictEqual(fs.readFileSync(join(target, "a/up"), "utf8"), "parent made")
      assert.strictEqual(fs.readlinkSync(join(target, "dangling")), "a/nothing")
      assert.strictEqual(
        fs.readFileSync(Buffer.concat([Buffer.from(`${target}/a`), Buffer.from([0xff])]), "utf8"),
        "odd"
      )
      const of = (path: string) => [
        fs.statSync(join(target, path)).mode & 0o7777,
        fs.statSync(join(target, path)).mtimeMs
      ]
      assert.deepStrictEqual(of("."), [0o750, 1_600_000_000_000])
      assert.deepStrictEqual(of("a"), [0o500, 1_600_000_000_000])
      assert.deepStrictEqual(of("a/f"), [0o755, 1_600_000_000_000])
    })
  )

  const attacks: ReadonlyArray<readonly [what: string, entries: ReadonlyArray<Tar.Entry>, problem: RegExp]> = [
    ["..", [file("../outside")], /\.\./],
    [".. in the middle", [Tar.directory("a"), file("a/../../outside")], /\.\./],
    [
      ".. in a PAX record",
      [Tar.file("x", "", { pax: { "EXECSANDBOX.path": Buffer.from("../outside").toString("hex") } })],
      /\.\./
    ],
    ["an absolute name", [file("/etc/evil")], /absolute/],
    ["a NUL in a record", [Tar.file("x", "", { pax: { "EXECSANDBOX.path": "610062" } })], /NUL/],
    ["a link to the outside", [Tar.symlink("l", "../outside")], /outside/],
    ["an absolute link", [Tar.symlink("l", "/etc/passwd")], /outside/],
    [
      "a link that leads outside through another",
      [Tar.directory("d/e"), Tar.symlink("d/e/up", "../.."), Tar.symlink("d/e/l", "up/../outside")],
      /outside/
    ],
    [
      "a link through a name that may be another link's on a file system that ignores case",
      [Tar.directory("d/e"), Tar.symlink("d/e/up", "../.."), Tar.symlink("d/e/l", "UP/../../outside")],
      /outside/
    ],
    ["links in a circle", [Tar.symlink("a", "b/x"), Tar.symlink("b", "a/x")], /outside/],
    ["an empty link", [hostile(Tar.symlink("l", "x"), { linkTarget: "" })], /outside|archive/],
    ["a file through a link", [Tar.symlink("l", "."), file("l/f")], /through a link/],
    ["a file in place of a link", [Tar.symlink("l", "a"), file("l")], /twice/],
    ["a directory in place of a link", [Tar.symlink("l", "a"), Tar.directory("l")], /twice/],
    ["a link in place of a directory", [Tar.directory("d"), Tar.symlink("d", ".")], /twice/],
    ["a hard link", [Tar.hardlink("h", "../outside")], /Hardlink/],
    ["a device", [hostile(file("d"), { type: "CharDevice", size: 0, devMajor: 1, devMinor: 5 })], /CharDevice|archive/],
    ["a FIFO", [hostile(file("p"), { type: "Fifo", size: 0 })], /Fifo|archive/],
    ["an unknown type of entry", [hostile(file("v"), { type: "Other", typeflag: "V" })], /Other|archive/],
    ["a file as the tree itself", [file(".")], /itself/],
    ["unknown PAX records", [Tar.file("f", "", { pax: { "SCHILY.xattr.user.x": "1" } })], /records/]
  ]
  for (const [what, entries, problem] of attacks) {
    it.effect(`refuses ${what}`, () =>
      Effect.gen(function* () {
        const host = yield* hostDirectory
        const error = yield* Effect.flip(unpack(host, archiveOf(entries)))
        assert.strictEqual(error._tag, "Unsafe")
        if (error._tag === "Unsafe") assert.match(error.problem, problem)
        assert.deepStrictEqual(fs.readdirSync(host).sort(), ["outside", "target"])
        assert.strictEqual(fs.readFileSync(join(host, "outside"), "utf8"), "untouched")
        assert.isFalse(fs.existsSync("/etc/evil"))
      })
    )
  }

  it.effect("a file below another file fails, and so does a file that is there twice", () =>
    Effect.gen(function* () {
      const host = yield* hostDirectory
      const error = yield* Effect.flip(unpack(host, archiveOf([file("a"), file("a/b")])))
      assert.strictEqual(error._tag, "HostFailed")
      const twice = yield* Effect.flip(unpack(host, archiveOf([file("c"), file("c")])))
      assert.strictEqual(twice._tag, "HostFailed")
      assert.strictEqual(fs.readFileSync(join(host, "target/c"), "utf8"), "evil")
    })
  )

  it.effect("leaves out links that lead outside with `skip`, and no others", () =>
    Effect.gen(function* () {
      const host = yield* hostDirectory
      const entries = [Tar.symlink("in", "f"), Tar.symlink("out", "/etc/passwd"), Tar.file("f", "1")]
      const count = yield* unpack(host, archiveOf(entries), { outsideLinks: "skip" })
      assert.deepStrictEqual(count, { entries: 2, bytes: 1, skipped: 1 })
      assert.deepStrictEqual(fs.readdirSync(join(host, "target")).sort(), ["f", "in"])
    })
  )

  it.effect("checks the bounds before anything is written", () =>
    Effect.gen(function* () {
      const host = yield* hostDirectory
      const large = yield* Effect.flip(unpack(host, archiveOf([Tar.file("f", "12345")]), { maxBytes: 4 }))
      assert.deepStrictEqual([large._tag, fs.readdirSync(join(host, "target"))], ["Excess", []])
      const many = Array.from({ length: 5 }, (_, i) => Tar.file(`d/${i}`, ""))
      const entries = yield* Effect.flip(unpack(host, archiveOf(many), { maxEntries: 5 }))
      assert.strictEqual(entries._tag, "Excess")
      const deep = yield* Effect.flip(
        unpack(host, archiveOf([Tar.file(`${"e/".repeat(50)}f`, "")]), { maxEntries: 10 })
      )
      assert.strictEqual(deep._tag, "Excess")
    })
  )

  it.effect("refuses an archive that is cut off, invalid, or endless without content", () =>
    Effect.gen(function* () {
      const host = yield* hostDirectory
      const whole = Buffer.concat(yield* Stream.runCollect(archiveOf([Tar.file("f", randomBytes(5000))])))
      for (const bytes of [whole.subarray(0, 3000), randomBytes(2048)]) {
        const error = yield* Effect.flip(unpack(host, Stream.make(new Uint8Array(bytes))))
        assert.strictEqual(error._tag, "Unsafe")
      }
      // Endless zeros after the end of the archive.
      const endless = Stream.concat(archiveOf([]), Stream.forever(Stream.make(new Uint8Array(65_536))))
      assert.strictEqual((yield* Effect.flip(unpack(host, endless)))._tag, "Unsafe")
      const record = Buffer.concat(
        yield* Stream.runCollect(archiveOf([Tar.file("f", "", { pax: { a: "1".repeat(500_000) } })]))
      )
      record[156] = "g".charCodeAt(0)
      const global = headerAt(record, 0)
      const records = Stream.forever(Stream.make(new Uint8Array(global)))
      assert.strictEqual((yield* Effect.flip(unpack(host, records)))._tag, "Unsafe")
    })
  )

  it.effect("a tree of the host comes back as it was", () =>
    Effect.gen(function* () {
      const host = yield* hostDirectory
      const source = join(host, "source")
      fs.mkdirSync(join(source, "d"), { recursive: true })
      fs.writeFileSync(join(source, "d/f"), randomBytes(200_000), { mode: 0o600 })
      fs.symlinkSync("d/f", join(source, "l"))
      fs.writeFileSync(Buffer.concat([Buffer.from(`${source}/`), Buffer.from([0xe9, 0x0a])]), "odd")
      const count = { entries: 0, bytes: 0, skipped: 0 }
      const archive = tree(Buffer.from(source), count).pipe(Stream.pipeThroughChannelOrFail(Tar.encode()))
      const out = yield* extract(archive, Buffer.from(join(host, "target")), bounds)
      assert.deepStrictEqual(out, count)
      assert.deepStrictEqual(count, { entries: 5, bytes: 200_003, skipped: 0 })
      assert.isTrue(fs.readFileSync(join(host, "target/d/f")).equals(fs.readFileSync(join(source, "d/f"))))
      assert.strictEqual(fs.statSync(join(host, "target/d/f")).mode & 0o777, 0o600)
      assert.deepStrictEqual(
        fs.readdirSync(join(host, "target"), { encoding: "buffer" }).map((it) => it.toString("hex")),
        fs.readdirSync(source, { encoding: "buffer" }).map((it) => it.toString("hex"))
      )
    })
  )
})

/** A header with its body and padding, and a correct checksum. */
const headerAt = (archive: Buffer, at: number): Buffer => {
  const size = Number.parseInt(archive.toString("latin1", at + 124, at + 135), 8)
  const entry = Buffer.from(archive.subarray(at, at + 512 + Math.ceil(size / 512) * 512))
  entry.write("        ", 148, "latin1")
  const sum = entry.subarray(0, 512).reduce((a, b) => a + b, 0)
  entry.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, "latin1")
  return entry
}
