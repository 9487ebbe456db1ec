import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import { bind, fill, find, isForRequest, looksLikeOne, scanner } from "../../src/egress/Placeholders.ts"

const bytes = Schema.Uint8Array.check(
  Schema.makeFilter((it: Uint8Array) => it.length <= 300, { expected: "at most 300 bytes" })
)
const [one, two] = bind({
  ONE: { value: Redacted.make("$& the value"), hosts: ["a.example"], header: "*" },
  TWO: { value: Redacted.make("x"), hosts: ["a.example"], header: "X-Two" }
})
if (one === undefined || two === undefined) throw new Error("nothing was bound")
const both = [one, two]
const placeholder = Buffer.from(one.placeholder)

const basic = (text: string) => `Basic ${Buffer.from(text, "latin1").toString("base64")}`

describe("a placeholder", () => {
  it("goes into authorization and no other header, unless another is named", () => {
    const [usual] = bind({ USUAL: { value: Redacted.make("v"), hosts: ["a.example"] } })
    if (usual === undefined) throw new Error("nothing was bound")
    assert.strictEqual(fill("authorization", `Bearer ${usual.placeholder}`, [usual]).value, "Bearer v")
    const other = fill("x-request-id", usual.placeholder, [usual])
    assert.deepStrictEqual(other, { value: usual.placeholder, used: [] })
  })

  it("for GET and HEAD below a path is replaced in no other request", () => {
    const [read, any] = bind(
      {
        READ: { value: Redacted.make("v"), hosts: ["a.example"] },
        ANY: { value: Redacted.make("v"), hosts: ["a.example"] }
      },
      { READ: "/r/" }
    )
    if (read === undefined || any === undefined) throw new Error("nothing was bound")
    const targets: ReadonlyArray<readonly [method: string, target: string, allowed: boolean]> = [
      ["GET", "/r/", true],
      ["HEAD", "/r/@scope%2fname", true],
      ["GET", "/r/a.b/..c?to=/../x#../", true],
      ["POST", "/r/a", false],
      ["PUT", "/r/a", false],
      ["get", "/r/a", false],
      ["GET", "/r", false],
      ["GET", "/", false],
      ["GET", "/rr/a", false],
      ["GET", "/R/a", false],
      ["GET", "/r/../a", false],
      ["GET", "/r/%2e%2E/a", false],
      ["GET", "/r/x%2f..%2f../a", false],
      ["GET", "/r/x%5c..%5c../a", false],
      ["GET", "/r/./a", false],
      ["GET", "/r/%ff%", false],
      ["OPTIONS", "*", false]
    ]
    for (const [method, target, allowed] of targets) {
      assert.strictEqual(isForRequest(method, target, read), allowed, `${method} ${target}`)
      assert.isTrue(isForRequest(method, target, any))
    }
  })

  it.effect.prop(
    "is found anywhere, as it is and in base64, in pieces of any size",
    [bytes, bytes, Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 200 }))],
    ([before, after, size]) =>
      Effect.sync(() => {
        const around = Buffer.concat([before, placeholder, after])
        for (const text of [
          around,
          Buffer.from(around.toString("base64")),
          Buffer.from(around.toString("base64url"))
        ]) {
          assert.strictEqual(find(text, both), "ONE")
          const scan = scanner(both)
          const found = new Set<string | undefined>()
          for (let at = 0; at < text.length; at += size) found.add(scan(text.subarray(at, at + size)))
          assert.isTrue(found.has("ONE"))
        }
        // With one byte missing it is not found, whatever surrounds it; in base64 some of its first and last bits do not count.
        for (const less of [placeholder.subarray(1), placeholder.subarray(0, -1)]) {
          const text = Buffer.concat([before, Buffer.from("-"), less, Buffer.from("-"), after])
          assert.isUndefined(find(text, both))
        }
      })
  )

  it.effect.prop("becomes the value, and the rest of the header stays", [bytes, bytes], ([before, after]) =>
    Effect.sync(() => {
      const [left, right] = [before, after].map((it) => Buffer.from(it).toString("latin1"))
      const given = `${left}${one.placeholder}${right}${one.placeholder}`
      const filled = `${left}${one.value}${right}${one.value}`
      assert.deepStrictEqual(fill("x-any", given, both), { value: filled, used: ["ONE"] })
      assert.deepStrictEqual(fill("authorization", basic(given), both), { value: basic(filled), used: ["ONE"] })
      const without = basic(`${left}${right}`)
      assert.deepStrictEqual(fill("authorization", without, both), { value: without, used: [] })
    })
  )

  it("is replaced only in the named header, and recognized by its form", () => {
    assert.deepStrictEqual(fill("x-two", two.placeholder, both), { value: "x", used: ["TWO"] })
    assert.deepStrictEqual(fill("x-one", two.placeholder, both), { value: two.placeholder, used: [] })
    const twice = `${two.placeholder} ${one.placeholder}`
    assert.deepStrictEqual(fill("x-two", twice, both), { value: "x $& the value", used: ["ONE", "TWO"] })
    assert.isTrue(looksLikeOne(`a ${one.placeholder} b`))
    assert.isFalse(looksLikeOne("exec-sandbox-secret-"))
  })
})
