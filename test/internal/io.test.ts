import { assert, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { readFile } from "node:fs/promises"
import { io } from "../../src/internal/io.ts"

it.effect("a failed call keeps its code, its operation, its path and its message", () =>
  Effect.gen(function* () {
    const failed = yield* Effect.flip(io(() => readFile("/nonexistent/file")))
    assert.deepStrictEqual([failed.code, failed.operation, failed.path], ["ENOENT", "open", "/nonexistent/file"])
    assert.strictEqual(failed.message, "ENOENT: no such file or directory, open '/nonexistent/file'")
    assert.instanceOf(failed.cause, Error)
    const other = yield* Effect.flip(io(() => Promise.reject(new Error("a bad day"))))
    assert.deepStrictEqual([other.operation, other.path, other.message], [undefined, undefined, "a bad day"])
  })
)
