/** Progress on a terminal and elsewhere. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as progress from "../../src/cli/progress.ts"
import type { ProgressEvent } from "../../src/internal/Progress.ts"

/** What progress writes, on a terminal or elsewhere. */
const drawn = (terminal: boolean, ...events: ReadonlyArray<ProgressEvent>) => {
  const written: Array<string> = []
  const stream = { isTTY: terminal, columns: 60, write: (text: string | Uint8Array) => written.push(`${text}`) > 0 }
  const drawer = progress.make(stream as never)
  return Effect.as(
    Effect.andThen(
      Effect.forEach(events, (event) => drawer.show(event)),
      drawer.clear
    ),
    written
  )
}

describe("progress", () => {
  const half = { stage: "image", message: "pulling", done: 512, total: 1024 }

  it.effect("is one changing line on a terminal", () =>
    Effect.gen(function* () {
      const written = yield* drawn(true, { stage: "template", message: "booting" }, half, half)
      assert.deepStrictEqual(written, [
        "\r\x1b[Ktemplate: booting",
        "\r\x1b[Kimage: pulling [############            ] 50%",
        "\r\x1b[K"
      ])
    })
  )

  it.effect("is a line per step elsewhere", () =>
    Effect.gen(function* () {
      const written = yield* drawn(false, half, { ...half, done: 1024 }, { stage: "image", message: "unpacking" })
      assert.deepStrictEqual(written, ["image: pulling\n", "image: unpacking\n"])
    })
  )

  it("fits the terminal", () => {
    for (const columns of [0, 1, 20, 31, 32, 79]) {
      assert.isAtMost(progress.draw({ ...half, message: "x".repeat(200) }, columns).length, columns)
    }
    assert.strictEqual(progress.draw({ ...half, done: 9999 }, 79).slice(-4), "100%")
  })
})
