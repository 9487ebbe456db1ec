import { assert, describe, it } from "@effect/vitest"
import { hostText, parseHost } from "../../src/network/Target.ts"

describe("a host", () => {
  it("has one form, however it is written", () => {
    const forms: { readonly [text: string]: string } = {
      "Example.COM": "example.com",
      "example.com.": "example.com",
      "bücher.example": "xn--bcher-kva.example",
      "BÜCHER.example.": "xn--bcher-kva.example",
      "xn--bcher-kva.example": "xn--bcher-kva.example",
      "_dmarc.example.com": "_dmarc.example.com",
      "1e100.net": "1e100.net",
      "8.8.8.8": "8.8.8.8",
      "8.8.8.8.": "8.8.8.8",
      "[2001:DB8:0:0::1]": "[2001:db8::1]",
      "2001:db8::0:1": "[2001:db8::1]",
      "::ffff:127.0.0.1": "127.0.0.1",
      "[::ffff:a00:1]": "10.0.0.1"
    }
    for (const [text, expected] of Object.entries(forms)) {
      const host = parseHost(text)
      assert.strictEqual(host && hostText(host), expected, text)
    }
  })

  it("is not what can be read in two ways, or in none", () => {
    for (const text of [
      "",
      ".",
      "..",
      "a..b",
      ".a",
      "-a.b",
      "a-.b",
      "a b",
      "a\0b",
      "a/b",
      "a@b",
      "a:b",
      "127.1",
      "0x7f.1",
      "0x7f000001",
      "2130706433",
      "017700000001",
      "0177.0.0.1",
      "1.2.3.4.5",
      "1.2.3.256",
      "example.0x1",
      "１２７.１",
      "[::1",
      "::1]",
      "fe80::1%eth0",
      "[1.2.3.4]",
      "xn--BCHER-kva-.example",
      `${"a".repeat(64)}.example`,
      `${"a.".repeat(130)}b`
    ]) {
      assert.isUndefined(parseHost(text), JSON.stringify(text))
    }
  })
})
