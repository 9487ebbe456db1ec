/** The contract of `Sandbox`, kept by the test kit. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Receipts from "../src/Receipts.ts"
import * as Testing from "../src/Testing.ts"
import { contract, Outside } from "./support/contract.ts"
import { script } from "./support/contractPrograms.ts"

const outside = Layer.effect(
  Outside,
  Effect.map(Testing.Machines, (machines) => ({
    kill: Effect.flatMap(machines.live, (live) => Effect.forEach(live, machines.kill, { discard: true })),
    live: Effect.map(machines.live, (live) => live.length)
  }))
)

contract(
  "the test kit",
  outside.pipe(Layer.provideMerge(Testing.layer({ script })), Layer.provideMerge(Receipts.layerMemory()))
)
