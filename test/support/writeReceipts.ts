/** A process that publishes receipts to a journal. Arguments: path, first sequence, number of receipts. */
import * as Effect from "effect/Effect"
import * as Receipts from "../../src/Receipts.ts"
import { receipt } from "./receipts.ts"

const [, , path = "", first = "0", count = "0"] = process.argv
const program = Effect.gen(function* () {
  const { publish } = yield* Receipts.Receipts
  for (let i = 0; i < Number(count); i++) yield* publish(receipt({ sequence: Number(first) + i }))
})
await Effect.runPromise(Effect.provide(program, Receipts.layerFile(path)))
