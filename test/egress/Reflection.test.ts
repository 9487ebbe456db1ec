/** A server that sends a secret back is cut off before the guest has seen it. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import { Readable, type Transform } from "node:stream"
import { pipeline } from "node:stream/promises"
import * as zlib from "node:zlib"
import { bind } from "../../src/egress/Placeholders.ts"
import { passing, Reflected, Unreadable, watch } from "../../src/egress/Reflection.ts"
import { ask, first, world } from "../support/border.ts"

const value = 's3cr3t/+"value" of mine'
const bound = (text: string) => bind({ KEY: { value: Redacted.make(text), hosts: ["a.example"] } })

/** What a guest receives of a body in these pieces, and why it ended. */
const received = async (pieces: ReadonlyArray<Buffer>, encoding?: string) => {
  const watched = watch(bound(value))
  if (watched === undefined) return assert.fail("it cannot be looked for")
  let bytes = Buffer.alloc(0)
  const error = await pipeline(Readable.from(pieces), passing(watched.look(), encoding), async (source) => {
    for await (const piece of source) bytes = Buffer.concat([bytes, piece as Buffer])
  }).then(
    () => undefined,
    (reason: unknown) => reason
  )
  return { bytes, error }
}
const cut = (bytes: Buffer, size: number): ReadonlyArray<Buffer> =>
  Array.from({ length: Math.ceil(bytes.length / size) }, (_, at) => bytes.subarray(at * size, (at + 1) * size))

const forms: Readonly<Record<string, string>> = {
  "as it is": value,
  percent: encodeURIComponent(value),
  "percent in lower case": encodeURIComponent(value).toLowerCase(),
  form: encodeURIComponent(value).replaceAll("%20", "+"),
  JSON: JSON.stringify({ echo: value }),
  base64: Buffer.from(`user:${value}`).toString("base64"),
  base64url: Buffer.from(`:${value}!`).toString("base64url"),
  "base64 of itself": Buffer.from(value).toString("base64")
}
const codings: Readonly<Record<string, (bytes: Buffer) => Buffer>> = {
  gzip: (bytes) => zlib.gzipSync(bytes),
  deflate: (bytes) => zlib.deflateSync(bytes),
  br: (bytes) => zlib.brotliCompressSync(bytes),
  zstd: (bytes) => zlib.zstdCompressSync(bytes)
}

const decoders: Readonly<Record<string, () => Transform>> = {
  gzip: () => zlib.createGunzip(),
  deflate: () => zlib.createInflate(),
  br: () => zlib.createBrotliDecompress(),
  zstd: () => zlib.createZstdDecompress()
}

describe("a secret in a response", () => {
  for (const [form, text] of Object.entries(forms)) {
    it(`${form}: is found in pieces of any size, and at most its first three bytes pass`, async () => {
      const before = "x".repeat(1000)
      for (const size of [1, 2, 3, 7, 64, 4096]) {
        const { bytes, error } = await received(cut(Buffer.from(`${before}${text} and more`), size))
        assert.instanceOf(error, Reflected, `${size}`)
        assert.isAtMost(bytes.length, before.length + text.length)
        assert.notInclude(bytes.toString(), text.slice(0, -2))
      }
    })
  }

  for (const [coding, encode] of Object.entries(codings)) {
    it(`${coding}: is found in what the guest would decode`, async () => {
      const filler = Buffer.from(Array.from({ length: 8000 }, (_, at) => at * 2654435761).join(" "))
      const clean = encode(filler)
      const passed = await received(cut(clean, 1500), coding)
      assert.isUndefined(passed?.error)
      assert.isTrue(passed?.bytes.equals(clean), "an innocent body is passed on unchanged")
      const dirty = encode(Buffer.concat([filler, Buffer.from(value), filler]))
      for (const size of [64, 1500, dirty.length]) {
        const { bytes, error } = await received(cut(dirty, size), coding)
        assert.instanceOf(error, Reflected)
        // What a guest decodes of the part that it got.
        const decoder = decoders[coding]?.()
        if (decoder === undefined) return assert.fail("no decoder")
        let text = ""
        decoder.on("data", (piece: Buffer) => (text += piece.toString("latin1"))).on("error", () => {})
        await new Promise<void>((resolve) => decoder.write(bytes, () => setImmediate(resolve)))
        assert.notInclude(text, value)
      }
      assert.instanceOf((await received([Buffer.from("not compressed")], coding))?.error, Unreadable)
    })
  }

  it("after the end of a compressed body it is found too", async () => {
    const [body, rest] = [zlib.gzipSync("fine"), Buffer.from(`and ${value}`)]
    for (const pieces of [[body, rest], [Buffer.concat([body, rest])]]) {
      const { bytes, error } = await received(pieces, "gzip")
      assert.isDefined(error)
      assert.notInclude(bytes.toString("latin1"), value)
    }
  })

  it("what cannot be decoded, or grows without end, does not pass", async () => {
    assert.instanceOf((await received([Buffer.from("x")], "exotic"))?.error, Unreadable)
    assert.instanceOf((await received([zlib.gzipSync("x")], "gzip, br"))?.error, Unreadable)
    const bomb = zlib.gzipSync(Buffer.alloc(256 * 1024 * 1024))
    assert.instanceOf((await received(cut(bomb, 4096), "gzip"))?.error, Unreadable)
  })

  it.effect.prop(
    "bytes without one pass unchanged, whatever they begin like",
    [Schema.Array(Schema.Literals(["s3cr3t", "s3cr3t/+", value.slice(0, -1), "x", " "])), Schema.Literals([1, 3, 16])],
    ([parts, size]) =>
      Effect.promise(async () => {
        const bytes = Buffer.from(parts.join("|"))
        const done = await received(cut(bytes, size))
        assert.isUndefined(done?.error)
        assert.strictEqual(done?.bytes.toString(), bytes.toString())
      })
  )

  it("one that is too short to tell from chance is not looked for", () => {
    assert.isUndefined(watch(bound("12345")))
    assert.isDefined(watch(bound("123456")))
  })

  it.live("at the border: in a header, in a body, in a status line; and TRACE is refused", () =>
    Effect.gen(function* () {
      const it = yield* world((request, response) => {
        const sent = request.headers.authorization ?? ""
        if (request.url === "/header") return void response.writeHead(200, { "x-request-id": sent }).end("fine")
        if (request.url === "/status") return void response.writeHead(200, sent).end("fine")
        if (request.url === "/body") return void response.end(`you sent ${sent}`)
        response.end("fine")
      })
      const sent = (path: string, method = "GET") =>
        ask(it, "a.example", { method, path, headers: { host: "a.example", authorization: `Bearer ${it.first}` } })
      assert.propertyVal(yield* sent("/"), "body", "fine")
      for (const path of ["/header", "/status", "/body"]) {
        const answer = yield* sent(path)
        assert.notInclude(JSON.stringify(answer), first)
        assert.deepInclude(it.last(), { rule: "secret" }, path)
        assert.include(it.last().reason ?? "", "FIRST")
      }
      assert.isString(yield* sent("/", "TRACE"))
      assert.deepInclude(it.last(), { rule: "secret", decision: "deny" })
    }).pipe(Effect.scoped)
  )
})
