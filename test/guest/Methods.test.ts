/**
 * The protocol's golden messages: examples of each message, decoded by the schemas here and by the agent's structs in Go
 * (`images/agent/**\/golden_test.go`), so that both sides stay in agreement. `npm run golden` writes them.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { fileURLToPath } from "node:url"
import { expect } from "vitest"
import { GuestHello, Hello } from "../../src/guest/Hello.ts"
import * as Methods from "../../src/guest/Methods.ts"
import { examples, guestHello, hello, lines } from "../support/messages.ts"

const golden = fileURLToPath(new URL("../../images/agent/testdata/messages.json", import.meta.url))
const all = [...Methods.ofHost, ...Methods.ofGuest]

type Codec = Methods.Method["request"]
const decodes = (schema: Codec, value: unknown): boolean =>
  Option.isSome(Schema.decodeUnknownOption(schema, { onExcessProperty: "error" })(value))

const fieldsOf = (schema: Codec): ReadonlyArray<string> =>
  "fields" in schema && typeof schema.fields === "object" && schema.fields !== null ? Object.keys(schema.fields) : []

describe("Methods", () => {
  it("have unique names, and examples", () => {
    assert.deepStrictEqual(Object.keys(examples).sort(), all.map((it) => it.name).sort())
  })

  for (const method of all) {
    it(`${method.name}: the examples decode, and contain every field of the request`, () => {
      const { ends, notes, orders, requests } = examples[method.name] ?? assert.fail()
      for (const it of requests) assert.isTrue(decodes(method.request, it), JSON.stringify(it))
      for (const it of orders) assert.isTrue(decodes(method.orders, it), JSON.stringify(it))
      for (const it of notes) assert.isTrue(decodes(method.notes, it), JSON.stringify(it))
      for (const it of ends) assert.isTrue(decodes(method.end, it), JSON.stringify(it))
      assert.isAbove(ends.length, 0)
      const shown = new Set(requests.flatMap((it) => Object.keys(it as object)))
      assert.deepStrictEqual([...shown].sort(), fieldsOf(method.request).toSorted())
    })
  }

  it("HELLO and the lines decode", () => {
    assert.isTrue(decodes(Hello, hello))
    assert.isTrue(decodes(GuestHello, guestHello))
    assert.isTrue(decodes(Methods.ChangeLine, lines.change))
    assert.isTrue(decodes(Methods.ListLine, lines.list))
    assert.isTrue(decodes(Methods.WatchLine, lines.watch))
  })

  it("the file that the agent's tests read has these messages", async () => {
    const methods = Object.fromEntries(
      Object.entries(examples).map(([method, { requests, ...rest }]) => [
        method,
        { requests: requests.map((request) => ({ method, ...(request as object) })), ...rest }
      ])
    )
    await expect(`${JSON.stringify({ hello, guestHello, methods, lines }, null, 2)}\n`).toMatchFileSnapshot(golden)
  })
})
