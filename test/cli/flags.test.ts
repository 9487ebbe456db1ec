/** The values of flags. */
import { assert, describe, it } from "@effect/vitest"
import * as Option from "effect/Option"
import { parseBytes, parsePair } from "../../src/cli/flags.ts"
import { parseSecret } from "../../src/cli/secrets.ts"

describe("flags", () => {
  it.each([
    ["A=b", ["A", "b"]],
    ["A=", ["A", ""]],
    ["A=b=c", ["A", "b=c"]],
    ["a.b-c= x ", ["a.b-c", " x "]]
  ])("%s is a pair", (text, pair) => assert.deepStrictEqual(Option.getOrUndefined(parsePair(text)), pair as never))

  it.each([
    ["A@b", { name: "A", from: "A", hosts: ["b"] }],
    ["A=B@c,*.d:8443", { name: "A", from: "B", hosts: ["c", "*.d:8443"] }],
    ["A@c:x-api-key", { name: "A", from: "A", hosts: ["c"], header: "x-api-key" }],
    ["A=./f:x@c,d.e:8443:*", { name: "A", from: "./f:x", hosts: ["c", "d.e:8443"], header: "*" }],
    ["A_1=/x@y=z/f@b", { name: "A_1", from: "/x@y=z/f", hosts: ["b"] }],
    ["A", undefined],
    ["A=@b", undefined],
    ["A@", undefined],
    ["@b", undefined],
    ["1=B@c", undefined]
  ] as const)("%s is parsed as a secret", (text, wanted) =>
    assert.deepEqual(Option.getOrUndefined(parseSecret(text)), wanted as never)
  )

  it.each(["A", "=b", "", "="])("%s is not a pair", (text) => assert.isTrue(Option.isNone(parsePair(text))))

  it.each([
    ["0", 0],
    ["1024", 1024],
    ["2K", 2048],
    ["2KiB", 2048],
    ["2kb", 2048],
    ["3m", 3 * 1024 ** 2],
    ["1G", 1024 ** 3],
    ["1TiB", 1024 ** 4]
  ])("%s is %i bytes", (text, bytes) => assert.deepStrictEqual(Option.getOrUndefined(parseBytes(text)), bytes))

  it.each(["", "-1", "1.5G", "G", "1 G", "1P", "1e3", "999999999999999T"])("%s is not a size", (text) =>
    assert.isTrue(Option.isNone(parseBytes(text)))
  )
})
