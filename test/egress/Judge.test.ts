import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { guarded } from "../../src/egress/Guard.ts"
import { compile, judge, judgeAddress } from "../../src/egress/Judge.ts"
import { parseRule } from "../../src/network/Rules.ts"
import { parseHost } from "../../src/network/Target.ts"
import * as NetworkPolicy from "../../src/NetworkPolicy.ts"

const none: ReadonlySet<string> = new Set()

/** `DECISION rule` for a host and a port. */
const decision = (policy: NetworkPolicy.NetworkPolicy, host: string, port = 443): string => {
  const parsed = parseHost(host)
  if (parsed === undefined) return "no host"
  const { decision, rule } = judge(compile(policy), { host: parsed, port })
  return `${decision} ${rule}`
}

const target = (port: number) => ({ host: { kind: "name", name: "db.example.com" } as const, port })

describe("a rule", () => {
  it("is refused in every bad form, with the correct form in the message", () => {
    for (const text of [
      "",
      " ",
      "*",
      "*.*.com",
      "a.*.com",
      "*example.com",
      "*.1.2.3.4",
      "https://example.com",
      "example.com/path",
      "user@example.com",
      "example.com:",
      "example.com:0",
      "example.com:65536",
      "example.com:https",
      "example.com:443:80",
      "host",
      "localhost:80",
      "db.localhost",
      "10.0.0.1/8",
      "10.0.0.0/33",
      "10.0.0.0/",
      "10.0.0/8",
      "example.com/8",
      "::/129",
      "fd00::1/8",
      "127.1:80",
      "2130706433",
      "exa mple.com",
      "example.com\n"
    ]) {
      assert.isString(parseRule(text), JSON.stringify(text))
    }
  })

  it.effect("is named in the error", () =>
    Effect.gen(function* () {
      const decode = Schema.decodeUnknownEffect(NetworkPolicy.NetworkPolicy)
      const error = yield* Effect.flip(decode(NetworkPolicy.allow(["good.example", "10.0.0.1/8"])))
      assert.include(error.message, "no bits behind its prefix")
      assert.include(error.message, '["rules"][1]')
      yield* Effect.flip(decode({ _tag: "Some" }))
      yield* Effect.flip(decode({ _tag: "Allow" }))
      yield* Effect.flip(decode({ _tag: "Allow", rules: [], askMs: 0 }))
      yield* Effect.flip(decode({ _tag: "All", rules: Array.from({ length: 1001 }, () => "a.example") }))
    })
  )

  it("grants what it names and nothing else", () => {
    const policy = NetworkPolicy.allow([
      "api.example.com",
      "*.Example.org",
      "db.example.net:5432",
      "10.1.0.0/16:5432",
      "[fd00::]:8080",
      "8.8.4.4",
      "host:9000"
    ])
    const cases: ReadonlyArray<readonly [host: string, port: number, expected: string]> = [
      ["api.example.com", 443, "allow api.example.com"],
      ["API.example.com.", 80, "allow api.example.com"],
      ["api.example.com", 8443, "deny not-granted"],
      ["x.api.example.com", 443, "deny not-granted"],
      ["example.com", 443, "deny not-granted"],
      ["a.b.example.org", 443, "allow *.Example.org"],
      ["example.org", 443, "deny not-granted"],
      ["badexample.org", 443, "deny not-granted"],
      ["db.example.net", 5432, "allow db.example.net:5432"],
      ["db.example.net", 443, "deny not-granted"],
      ["10.1.255.1", 5432, "allow 10.1.0.0/16:5432"],
      ["10.1.255.1", 443, "deny private"],
      ["10.2.0.1", 5432, "deny private"],
      ["[fd00::0]", 8080, "allow [fd00::]:8080"],
      ["fd00::1", 8080, "deny private"],
      ["8.8.4.4", 80, "allow 8.8.4.4"],
      ["8.8.8.8", 443, "deny not-granted"],
      ["host", 9000, "allow host:9000"],
      ["host", 9001, "deny loopback"],
      ["localhost", 9000, "deny loopback"],
      ["127.0.0.1", 9000, "deny loopback"],
      ["169.254.169.254", 80, "deny metadata"]
    ]
    for (const [host, port, expected] of cases) assert.strictEqual(decision(policy, host, port), expected, host)
  })

  it("an empty list grants nothing, and the first matching rule of several is reported", () => {
    assert.strictEqual(decision(NetworkPolicy.allow([]), "example.com"), "deny not-granted")
    assert.strictEqual(decision(NetworkPolicy.none, "example.com"), "deny none")
    const overlapping = NetworkPolicy.allow(["*.example.com", "a.example.com", "a.example.com:443"])
    assert.strictEqual(decision(overlapping, "a.example.com"), "allow *.example.com")
  })

  it("is needed under All only for private addresses", () => {
    const policy = NetworkPolicy.all(["192.168.1.5:22"])
    assert.strictEqual(decision(policy, "example.com", 25), "allow all")
    assert.strictEqual(decision(policy, "203.0.113.7", 443), "allow all")
    assert.strictEqual(decision(policy, "192.168.1.5", 22), "allow 192.168.1.5:22")
    assert.strictEqual(decision(policy, "192.168.1.6", 22), "deny private")
    assert.strictEqual(decision(policy, "localhost", 80), "deny loopback")
    assert.strictEqual(decision(policy, "host", 80), "deny loopback")
  })

  it("for a name does not grant the private address of that name", () => {
    const named = compile(NetworkPolicy.allow(["db.example.com:5432"]))
    assert.strictEqual(judgeAddress(named, target(5432), "10.1.2.3")?.rule, "private")
    assert.include(judgeAddress(named, target(5432), "10.1.2.3")?.grant, "10.1.2.3:5432")
    assert.isUndefined(judgeAddress(named, target(5432), "203.0.113.80"))
    const both = compile(NetworkPolicy.allow(["db.example.com:5432", "10.1.0.0/16:5432"]))
    assert.isUndefined(judgeAddress(both, target(5432), "10.1.2.3"))
    assert.strictEqual(judgeAddress(both, target(80), "10.1.2.3")?.rule, "private")
    // A registry in this host's configuration may have a private address, but none of the other guarded ones.
    const mirror = compile(NetworkPolicy.packages(), ["db.example.com:443"])
    assert.isUndefined(judgeAddress(mirror, target(443), "10.1.2.3"))
    assert.strictEqual(judgeAddress(mirror, target(443), "169.254.169.254")?.rule, "metadata")
    assert.strictEqual(judgeAddress(mirror, target(443), "127.0.0.1")?.rule, "loopback")
    const files = compile(NetworkPolicy.packages(), ["pypi.example:443"], ["db.example.com:443"])
    assert.strictEqual(judgeAddress(files, target(443), "10.1.2.3")?.rule, "private")
  })
})

describe("an address", () => {
  it("is guarded by its kind, in every notation", () => {
    const expected: { readonly [address: string]: string | undefined } = {
      "127.0.0.1": "loopback",
      "127.255.255.254": "loopback",
      "::1": "loopback",
      "10.0.0.1": "private",
      "172.16.0.1": "private",
      "172.31.255.255": "private",
      "172.32.0.1": undefined,
      "192.168.0.1": "private",
      "100.64.0.1": "carrier",
      "100.128.0.1": undefined,
      "100.100.100.200": "metadata",
      "169.254.169.254": "metadata",
      "169.254.0.1": "link-local",
      "168.63.129.16": "metadata",
      "0.0.0.0": "reserved",
      "198.18.0.1": "reserved",
      "198.19.255.255": "reserved",
      "224.0.0.1": "multicast",
      "255.255.255.255": "reserved",
      "203.0.113.80": undefined,
      "192.0.2.1": undefined,
      "8.8.8.8": undefined,
      "fd00::1": "private",
      "fd00:ec2::254": "metadata",
      "fe80::1": "link-local",
      "ff02::1": "multicast",
      "::": "reserved",
      "::7f00:1": "loopback",
      "64:ff9b::a00:1": "private",
      "64:ff9b::808:808": undefined,
      "2002:7f00:1::": "loopback",
      "2001:0:4136:e378:8000:63bf:3fff:fdd2": "reserved",
      "2606:4700::1111": undefined,
      "4000::1": "reserved"
    }
    for (const [address, why] of Object.entries(expected)) assert.strictEqual(guarded(address, none), why, address)
    assert.strictEqual(guarded("8.8.8.8", new Set(["8.8.8.8"])), "host-address")
  })
})
