/** `exec-sandbox snapshot`: lists, checks and removes saved sessions. */
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

const which = Argument.String("snapshot").pipe(Argument.withDescription("A name or id from `snapshot list`"))

const list = Command.make("list", { json: flags.json }, ({ json }) =>
  Effect.gen(function* () {
    const snapshots = yield* Snapshots.use((it) => it.list)
    yield* json ? printJson(snapshots) : print(table(snapshots.map(row)))
  })
).pipe(Command.withDescription("List the snapshots, newest first"))

const remove = Command.make("remove", { snapshot: which }, ({ snapshot }) =>
  Effect.gen(function* () {
    const removed = yield* Snapshots.use((it) => it.remove(snapshot))
    yield* print(table([["removed"].concat(row(removed))]))
  })
).pipe(Command.withDescription("Remove a snapshot; sessions that were started from it keep running"))

const verify = Command.make("verify", { snapshot: which }, ({ snapshot }) =>
  Effect.gen(function* () {
    const problem = yield* Snapshots.use((it) => it.verify(snapshot))
    if (problem !== undefined) return yield* new Leave({ code: 1, why: `snapshot ${snapshot}: ${problem}` })
    yield* print(`${snapshot} is as it was stored\n`)
  })
).pipe(Command.withDescription("Check a snapshot's files against the hashes from when it was stored"))

export const snapshot = Command.make("snapshot").pipe(
  Command.withDescription("Manage snapshots, the saved sessions that new ones can start from"),
  Command.withSubcommands([list, remove, verify]),
  Command.provide(layer)
)
