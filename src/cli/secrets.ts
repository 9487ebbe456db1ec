/** `--secret`: values that the code can use but not see. No argument has the value, because every process could read it there. */
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import { readFile } from "node:fs/promises"
import { variable } from "../internal/Environment.ts"
import type { Secrets } from "../Secrets.ts"
import { Leave } from "./ending.ts"

/** A requested secret; `from` is a variable of this process, or a file if it contains a slash. */
export interface Wanted {
  readonly name: string
  readonly from: string
  readonly hosts: ReadonlyArray<string>
  /** The header that the secret is put in; `authorization` when absent, `*` for every header. */
  readonly header?: string
}

/** Splits `NAME[=FROM]@HOST,…[:HEADER]` at the last `@`; the library checks the hosts and the header. */
export const parseSecret = (text: string): Option.Option<Wanted> => {
  const [, name, from, hosts, header] = /^([A-Za-z_]\w*)(?:=(.+))?@([^@]+?)(?::([A-Za-z][\w-]*|\*))?$/s.exec(text) ?? []
  if (name === undefined || hosts === undefined) return Option.none()
  return Option.some({ name, from: from ?? name, hosts: hosts.split(","), ...(header !== undefined && { header }) })
}

/** `--secret`, which may be repeated. */
export const secret = Flag.String("secret").pipe(
  Flag.withMetavar("NAME[=FROM]@HOST[,HOST][:HEADER]"),
  Flag.withDescription(
    "Set the variable NAME to a placeholder, which the secret replaces in the header Authorization, or HEADER, of HTTPS requests to HOST (also --allow HOST). " +
      "The secret is read from the variable FROM of this command, or from a file if FROM contains a slash; may be repeated"
  ),
  Flag.filterMap(parseSecret, () => "NAME@HOST, NAME=VARIABLE@HOST or NAME=./FILE@HOST"),
  Flag.atLeast(0)
)

const read = ({ from, name }: Wanted): Effect.Effect<string, Leave> => {
  const missing = (why: string) => Effect.fail(new Leave({ code: 2, why: `--secret ${name}: ${why}` }))
  if (from.includes("/")) {
    return Effect.tryPromise(() => readFile(from, "utf8")).pipe(
      Effect.map((text) => text.replace(/\r?\n$/, "")),
      Effect.catch(() => missing("its file cannot be read"))
    )
  }
  return variable(from).pipe(
    Effect.filterOrElse(
      (value) => value !== undefined,
      () => missing("its environment variable is not set")
    )
  )
}

/** Reads the values of the secrets. */
export const secretsOf = (wanted: ReadonlyArray<Wanted>): Effect.Effect<Secrets, Leave> =>
  Effect.map(
    Effect.forEach(wanted, (it) =>
      Effect.map(read(it), (value) => {
        const { header, hosts, name } = it
        return [name, { value: Redacted.make(value), hosts, ...(header !== undefined && { header }) }] as const
      })
    ),
    (all) => Object.fromEntries(all)
  )
