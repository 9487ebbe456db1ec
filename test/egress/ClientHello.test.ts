import { assert, describe, it } from "@effect/vitest"
import { randomBytes } from "node:crypto"
import * as net from "node:net"
import * as tls from "node:tls"
import { reader } from "../../src/egress/ClientHello.ts"

/** The parser's answer to these bytes, received at once or in pieces of `size`. */
const read = (bytes: Buffer, size = Math.max(bytes.length, 1)) => {
  const { all, read } = reader()
  let hello = read(Buffer.alloc(0))
  for (let at = 0; at < bytes.length; at += size) hello = read(bytes.subarray(at, at + size))
  assert.isTrue(all().equals(bytes))
  return hello
}

/** The first message of a real client. */
const helloOf = (options: tls.ConnectionOptions): Promise<Buffer> =>
  new Promise((resolve, reject) => {
    const server = net.createServer((socket) => {
      socket.once("data", (bytes) => {
        socket.destroy()
        server.close()
        resolve(bytes)
      })
    })
    server.listen(0, "127.0.0.1", () => {
      const address = server.address()
      if (address === null || typeof address === "string") return reject(new Error("no address"))
      tls.connect({ host: "127.0.0.1", port: address.port, ...options }).on("error", () => {})
    })
  })

/** The same message in records of a few bytes each. */
const inRecords = (hello: Buffer, size: number): Buffer => {
  const message = hello.subarray(5)
  const parts: Array<Buffer> = []
  for (let at = 0; at < message.length; at += size) {
    const part = message.subarray(at, at + size)
    parts.push(Buffer.from([22, 3, 1, part.length >> 8, part.length & 255]), part)
  }
  return Buffer.concat(parts)
}

const length = (size: number, bytes: number): Buffer => {
  const out = Buffer.alloc(bytes)
  out.writeUIntBE(size, 0, bytes)
  return out
}

/** The same message, of one record, with one extension more. */
const withExtension = (hello: Buffer, kind: number, value: Buffer): Buffer => {
  const body = hello.subarray(9)
  let at = 34
  for (const size of [1, 2, 1]) at += size + body.readUIntBE(at, size)
  const extensions = Buffer.concat([body.subarray(at + 2), length(kind, 2), length(value.length, 2), value])
  const message = Buffer.concat([body.subarray(0, at), length(extensions.length, 2), extensions])
  return Buffer.concat([
    hello.subarray(0, 3),
    length(message.length + 4, 2),
    Buffer.from([1]),
    length(message.length, 3),
    message
  ])
}

describe("a ClientHello", () => {
  it("has its server name, in one record or in records of any size", async () => {
    const hello = await helloOf({ servername: "a.example.com" })
    const expected = { _tag: "Hello", name: "a.example.com", protocols: null } as const
    assert.deepStrictEqual(read(hello), expected)
    assert.deepStrictEqual(read(Buffer.concat([hello, randomBytes(10)])), expected)
    for (const size of [1, 2, 3, 7, 100]) {
      assert.deepStrictEqual(read(inRecords(hello, size)), expected)
      assert.deepStrictEqual(read(hello, size), expected)
      for (const piece of [1, 3, 11]) assert.deepStrictEqual(read(inRecords(hello, size), piece), expected)
    }
    const old = await helloOf({ servername: "b.example.com", maxVersion: "TLSv1.2" })
    assert.deepStrictEqual(read(old), { _tag: "Hello", name: "b.example.com", protocols: null })
  })

  it("with an encrypted ClientHello inside has the outer one's name only", async () => {
    const hello = await helloOf({ servername: "outer.example" })
    const inner = await helloOf({ servername: "inner.example" })
    const encrypted = withExtension(hello, 0xfe0d, Buffer.concat([Buffer.from([0, 0, 1, 0, 1]), inner]))
    assert.deepStrictEqual(read(encrypted), { _tag: "Hello", name: "outer.example", protocols: null })
    const second = Buffer.from("\0\x10\0\0\x0dinner.example", "latin1")
    assert.deepStrictEqual(read(withExtension(hello, 0, second)), { _tag: "Not", problem: "two server names" })
  })

  it("may have no server name", async () => {
    assert.deepStrictEqual(read(await helloOf({})), { _tag: "Hello", name: null, protocols: null })
  })

  it("has the offered protocols", async () => {
    const hello = await helloOf({ servername: "a.example.com", ALPNProtocols: ["h2", "http/1.1"] })
    assert.deepStrictEqual(read(hello), { _tag: "Hello", name: "a.example.com", protocols: ["h2", "http/1.1"] })
  })

  it("may have several records, up to 64 KiB in pieces of any size", async () => {
    const hello = await helloOf({ servername: "a.example.com" })
    const expected = { _tag: "Hello", name: "a.example.com", protocols: null } as const
    const large = inRecords(withExtension(hello, 21, Buffer.alloc(40_000)), 16_384)
    assert.deepStrictEqual(read(large), expected)
    assert.deepStrictEqual(read(large, 1000), expected)
    const long = { _tag: "Not", problem: "a ClientHello that is too long" } as const
    const larger = withExtension(hello, 21, Buffer.alloc(60_000))
    // One byte a record, received one byte at a time: reading each byte more than once would take minutes.
    assert.deepStrictEqual(read(inRecords(larger, 1), 1), long)
    assert.deepStrictEqual(read(inRecords(larger, 16_384), 1), expected)
  })

  it("is incomplete while any byte is missing", async () => {
    const hello = await helloOf({ servername: "a.example.com" })
    for (let length = 0; length < hello.length; length++) {
      assert.deepStrictEqual(read(hello.subarray(0, length)), { _tag: "More" }, `${length} bytes`)
    }
  })

  it("is not found in other bytes, and no bytes make the parser throw", async () => {
    for (const text of [
      "GET / HTTP/1.1\r\n\r\n",
      "SSH-2.0-x\r\n",
      "\x16\x02",
      "\x16\x03\x01\x00\x00",
      "\x15\x03\x01\x00\x02\x01\x00"
    ]) {
      assert.strictEqual(read(Buffer.from(text, "latin1"))._tag, "Not", JSON.stringify(text))
    }
    const hello = await helloOf({ servername: "a.example.com" })
    for (let i = 0; i < 20_000; i++) {
      const bytes = i % 2 === 0 ? randomBytes(i % 300) : Buffer.from(hello)
      const at = Math.floor(Math.random() * bytes.length)
      if (i % 2 === 1) bytes[at] = (bytes[at] ?? 0) ^ (1 << (i % 8))
      const { _tag } = read(bytes)
      assert.include(["More", "Not", "Hello"], _tag)
    }
  })
})
