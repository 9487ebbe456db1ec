/** Which images the store removes automatically. */
import { assert, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { makeStore } from "../../src/image/Store.ts"

const day = 24 * 3600 * 1000
const idOf = (n: number): string => `${n}`.padStart(32, "0")

it.live("images that were not used for long are removed, unless a snapshot needs them", () =>
  Effect.gen(function* () {
    const cache = fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-images-"))
    yield* Effect.addFinalizer(() => Effect.sync(() => fs.rmSync(cache, { recursive: true })))
    const image = (n: number, ageMs: number): void => {
      const directory = path.join(cache, "images", idOf(n))
      fs.mkdirSync(directory, { recursive: true })
      const then = new Date(Date.now() - ageMs)
      fs.utimesSync(directory, then, then)
    }
    const snapshot = (name: string, manifest: string): void => {
      const directory = path.join(cache, "snapshots", name)
      fs.mkdirSync(directory, { recursive: true })
      fs.writeFileSync(path.join(directory, "manifest.json"), manifest)
    }
    // Two that were not used for long, and more from yesterday than are kept.
    image(1, 15 * day)
    image(2, 15 * day)
    for (let n = 10; n < 22; n++) image(n, day + n * 60_000)
    image(30, 30 * day)
    snapshot("snap-1", JSON.stringify({ image: idOf(1), more: true }))
    snapshot("snap-2", JSON.stringify({ image: idOf(21) }))
    snapshot("snap-3", "{")
    fs.mkdirSync(path.join(cache, "snapshots", ".building-1"))
    yield* makeStore(cache).removeUnused(idOf(30))
    const kept = fs.readdirSync(path.join(cache, "images")).filter((name) => /^\d{32}$/.test(name))
    const expected = [1, 10, 11, 12, 13, 14, 15, 16, 17, 21, 30].map(idOf)
    assert.deepStrictEqual(kept.sort(), expected)
  }).pipe(Effect.scoped)
)
