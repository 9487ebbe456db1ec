/** `exec-sandbox snapshot`: sessions saved on purpose. */
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import { layer, type Snapshot, Snapshots } from "../../Snapshot.ts"
import { Leave } from "../ending.ts"
import * as flags from "../flags.ts"
import { print, printJson, size, table } from "../output.ts"

const row = (it: Snapshot): ReadonlyArray<string> => [
  it.id,
  it.name ?? "-",
  size(it.bytes),
  `${it.memoryMiB} MiB`,
  `QEMU ${it.qemu}`,
  it.accelerator,
  `made ${it.createdAt}`
]

const which = Argument.String("snapshot").pipe(Argument.withDescription("A name or an id, as `snapshot list` shows it"))

const list = Command.make("list", { json: flags.json }, ({ json }) =>
  Effect.gen(function* () {
    const snapshots = yield* Snapshots.use((it) => it.list)
    yield* json ? printJson(snapshots) : print(table(snapshots.map(row)))
  })
).pipe(Command.withDescription("List the snapshots, the newest first"))

const remove = Command.make("remove", { snapshot: which }, ({ snapshot }) =>
  Effect.gen(function* () {
    const removed = yield* Snapshots.use((it) => it.remove(snapshot))
    yield* print(table([["removed"].concat(row(removed))]))
  })
).pipe(Command.withDescription("Remove a snapshot; sessions that were started from it run on"))

const verify = Command.make("verify", { snapshot: which }, ({ snapshot }) =>
  Effect.gen(function* () {
    const problem = yield* Snapshots.use((it) => it.verify(snapshot))
    if (problem !== undefined) return yield* new Leave({ code: 1, why: `snapshot ${snapshot}: ${problem}` })
    yield* print(`${snapshot} is as it was stored\n`)
  })
).pipe(Command.withDescription("Compare a snapshot's files with the hashes they were stored with"))

export const snapshot = Command.make("snapshot").pipe(
  Command.withDescription("Snapshots: sessions that were saved to go on from"),
  Command.withSubcommands([list, remove, verify]),
  Command.provide(layer)
)
