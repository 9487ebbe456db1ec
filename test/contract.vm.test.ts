/** The contract of `Sandbox`, kept by real VMs. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as fs from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import * as Receipts from "../src/Receipts.ts"
import { contract, Outside } from "./support/contract.ts"
import { qemus } from "./support/processes.ts"
import { layerAt } from "./support/snapshots.ts"

const outside = Layer.succeed(Outside, {
  kill: Effect.sync(() => {
    for (const pid of qemus()) process.kill(pid, "SIGKILL")
  }),
  live: Effect.sync(() => qemus().length)
})

const home = fs.mkdtempSync(path.join(tmpdir(), "exec-sandbox-contract-"))
const here = Layer.effectDiscard(
  Effect.addFinalizer(() => Effect.sync(() => fs.rmSync(home, { recursive: true, force: true })))
).pipe(Layer.provideMerge(layerAt(home)))

contract("real VMs", Layer.merge(here, outside).pipe(Layer.provideMerge(Receipts.layerMemory())))
