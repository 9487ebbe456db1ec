/** Earlier runs: one JSON value per line, with the conditions of the run. */
import * as Schema from "effect/Schema"
import { execFileSync } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"

const Text = Schema.NullOr(Schema.String)

/** A run: the conditions, and every sample. */
export const Run = Schema.Struct({
  conditions: Schema.Struct({
    at: Schema.String,
    /** The commit of the checkout, with `+` when it had changes; `null` in an installed package. */
    commit: Text,
    version: Schema.String,
    short: Schema.Boolean,
    seconds: Schema.Finite,
    host: Schema.String,
    cpu: Text,
    cores: Schema.Finite,
    memoryMiB: Schema.Finite,
    /** Load average of one minute before the run and after it, which shows what else the host did. */
    load: Schema.Tuple([Schema.Finite, Schema.Finite]),
    kernel: Schema.String,
    node: Schema.String,
    qemu: Schema.String,
    accelerator: Schema.String
  }),
  measurements: Schema.Array(
    Schema.Struct({
      suite: Schema.String,
      name: Schema.String,
      samples: Schema.Array(Schema.Finite),
      floor: Schema.optionalKey(Schema.String),
      unit: Schema.optionalKey(Schema.String)
    })
  )
})
export type Run = typeof Run.Type

const decode = Schema.decodeUnknownOption(Schema.fromJsonString(Run))

/** The runs in a history file, oldest first; lines that are not runs are skipped. */
export const read = (file: string): ReadonlyArray<Run> => {
  const text = fs.existsSync(file) ? fs.readFileSync(file, "utf8") : ""
  return text.split("\n").flatMap((line) => {
    const run = decode(line)
    return run._tag === "Some" ? [run.value] : []
  })
}

/** Appends a run. */
export const append = (file: string, run: Run): void => {
  fs.mkdirSync(path.dirname(file), { recursive: true })
  fs.appendFileSync(file, `${JSON.stringify(run)}\n`)
}

/** Finds a run: `which` is a file from `--results`, a commit, or `last` for the last run in conditions `like` these. */
export const find = (which: string, history: ReadonlyArray<Run>, like: Run["conditions"]): Run | undefined => {
  if (fs.existsSync(which)) {
    const run = decode(fs.readFileSync(which, "utf8"))
    return run._tag === "Some" ? run.value : read(which).at(-1)
  }
  return history.findLast(({ conditions }) =>
    which === "last"
      ? conditions.host === like.host &&
        conditions.accelerator === like.accelerator &&
        conditions.qemu === like.qemu &&
        conditions.short === like.short
      : conditions.commit?.startsWith(which)
  )
}

/** The checkout's commit; `null` where there is none. */
export const commit = (directory: string): string | null => {
  const git = (...args: ReadonlyArray<string>): string =>
    execFileSync("git", ["-C", directory, ...args], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).trim()
  try {
    return `${git("rev-parse", "--short", "HEAD")}${git("status", "--porcelain", "-uno") === "" ? "" : "+"}`
  } catch {
    return null
  }
}

/** The conditions of a run that the operating system knows. */
export const hostConditions = () => ({
  host: os.hostname(),
  cpu: os.cpus()[0]?.model ?? null,
  cores: os.cpus().length,
  memoryMiB: Math.round(os.totalmem() / 2 ** 20),
  kernel: os.release(),
  node: process.version
})
