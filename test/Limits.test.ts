/** A limit has the same name everywhere, from the option to the receipt. */
import { assert, describe, it } from "@effect/vitest"
import * as Limits from "../src/Limits.ts"
import { Receipt, StopReason } from "../src/Receipt.ts"
import { LimitExceeded } from "../src/SandboxError.ts"
import { stopReason } from "../src/session/Outcome.ts"
import { fields } from "./support/receipts.ts"

/** `file-size` → `fileSize` */
const camel = (name: string): string => name.replace(/-(.)/g, (_, letter: string) => letter.toUpperCase())
const unit = /(Ms|MiB|Bytes)$/

describe("Limits", () => {
  it("an option is its limit's name with a unit, and each limit has an option", () => {
    const options = Object.keys(Limits.Limits.fields)
    const named = new Set(options.map((option) => option.replace(unit, "")))
    assert.deepStrictEqual([...named].sort(), Limits.Name.literals.map(camel).sort())
  })

  it("a receipt lists each limit under the same name, in ms or bytes or as a count", () => {
    const listed = new Set(Object.keys(Receipt.fields.limits.fields).map((field) => field.replace(unit, "")))
    assert.deepStrictEqual([...listed].sort(), Limits.Name.literals.map(camel).sort())
  })

  it("a stop reason is the limit's name and -limit", () => {
    const reasons = Limits.Name.literals.map((limit) =>
      stopReason({ _tag: "LimitExceeded", limit, allowed: null, observed: null })
    )
    assert.deepStrictEqual(
      reasons,
      Limits.Name.literals.map((name) => `${name}-limit`)
    )
    assert.deepStrictEqual([...reasons].sort(), StopReason.literals.filter((it) => it.endsWith("-limit")).sort())
  })

  it("each has a message with its unit", () => {
    const messages = Limits.Name.literals.map(
      (limit) => new LimitExceeded({ ...fields(), limit, allowed: 7, observed: 8 }).message
    )
    assert.deepStrictEqual(messages, [
      "time limit exceeded: 7 ms allowed, 8 observed",
      "memory limit exceeded: 7 bytes allowed, 8 observed",
      "output limit exceeded: 7 bytes allowed, 8 observed",
      "processes limit exceeded: 7 processes allowed, 8 observed",
      "file-size limit exceeded: 7 bytes allowed, 8 observed",
      "disk limit exceeded: 7 bytes allowed, 8 observed"
    ])
  })

  it("resolve takes absent limits from the base, and the base is the defaults by default", () => {
    assert.deepStrictEqual(Limits.resolve(), Limits.defaults)
    const base = Limits.resolve({ timeMs: 5, processes: 20 })
    assert.deepStrictEqual(Limits.resolve({ timeMs: 7 }, base), { ...Limits.defaults, timeMs: 7, processes: 20 })
  })
})
