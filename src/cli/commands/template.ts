/** `exec-sandbox template`: lists, makes, checks and removes the templates that clones start from. */
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { defaults } from "../../Limits.ts"
import { type Entry, Template } from "../../Template.ts"
import { Leave } from "../ending.ts"
import * as flags from "../flags.ts"
import { print, printJson, size, table } from "../output.ts"
import { ending, floating, packages } from "../packages.ts"
import { withProgress } from "../progress.ts"
import { layer } from "../services.ts"

const row = (entry: Entry): ReadonlyArray<string> => [
  entry.key,
  size(entry.bytes),
  `${entry.memoryMiB} MiB`,
  `QEMU ${entry.qemu}`,
  entry.accelerator,
  `used ${entry.usedAt}`,
  entry.packages?.asked.join(" ") ?? ""
]

const list = Command.make("list", { json: flags.json }, ({ json }) =>
  Effect.gen(function* () {
    const entries = yield* (yield* Template).list
    yield* json ? printJson(entries) : print(table(entries.map(row)))
  })
).pipe(Command.withDescription("List the templates, most recently used first"))

const warmFlags = { memory: flags.memory, package: packages, floating, quiet: flags.quiet }

const warm = Command.make("warm", warmFlags, ({ floating, memory, package: wanted, quiet }) =>
  Effect.gen(function* () {
    const template = yield* Template
    const limit = Option.getOrElse(memory, () => defaults.memoryMiB)
    const entry = yield* withProgress(quiet, () => template.warm(limit, { ...wanted, floating })).pipe(
      Effect.catchTag("PackageError", (error) => Effect.fail(ending(error)))
    )
    yield* print(table([row(entry)]))
  })
).pipe(Command.withDescription("Make the template for a memory limit and packages now, so that no run waits for it"))

const prune = Command.make(
  "prune",
  {
    keep: Flag.String("keep").pipe(
      Flag.withMetavar("BYTES"),
      Flag.withDescription(
        "Keep the most recently used templates, up to this many bytes; 4G is 4 GiB (default: keep none)"
      ),
      Flag.filterMap(flags.parseBytes, () => "a number of bytes such as 1073741824, 512M or 4GiB"),
      Flag.withDefault(0)
    )
  },
  ({ keep }) =>
    Effect.gen(function* () {
      const removed = yield* (yield* Template).prune(keep)
      yield* print(table(removed.map((entry) => ["removed"].concat(row(entry)))))
    })
).pipe(Command.withDescription("Remove the least recently used templates; they are made again when needed"))

const verify = Command.make(
  "verify",
  { key: Argument.String("key").pipe(Argument.withDescription("The key from `template list`")) },
  ({ key }) =>
    Effect.gen(function* () {
      const problem = yield* (yield* Template).verify(key)
      if (problem !== undefined) return yield* new Leave({ code: 1, why: `template ${key}: ${problem}` })
      yield* print(`${key} is as it was sealed\n`)
    })
).pipe(Command.withDescription("Check a template's files against the hashes from when it was sealed"))

export const template = Command.make("template").pipe(
  Command.withDescription("Manage the templates, the sealed machines that every run starts from"),
  Command.withSubcommands([list, warm, prune, verify]),
  Command.provide(layer)
)
