/** The contract of `Sandbox`, kept by real VMs. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Receipts from "../src/Receipts.ts"
import * as Sandbox from "../src/Sandbox.ts"
import { contract, Outside } from "./support/contract.ts"
import { qemus } from "./support/processes.ts"

const outside = Layer.succeed(Outside, {
  kill: Effect.sync(() => {
    for (const pid of qemus()) process.kill(pid, "SIGKILL")
  }),
  live: Effect.sync(() => qemus().length)
})

contract("real VMs", Layer.merge(Sandbox.layer, outside).pipe(Layer.provideMerge(Receipts.layerMemory())))
