/** Flags that several commands share. */
import * as Flag from "effect/cli/Flag"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { Limits } from "../Limits.ts"
import * as NetworkPolicy from "../NetworkPolicy.ts"

const decodeTime = Schema.decodeOption(Limits.fields.timeMs.schema)

/** `--json` */
export const json = Flag.Boolean("json").pipe(
  Flag.withoutNegation,
  Flag.withDescription("Print one JSON value instead of text"),
  Flag.withDefault(false)
)

/** `-q`: hides progress. */
export const quiet = Flag.Boolean("quiet").pipe(
  Flag.withAlias("q"),
  Flag.withoutNegation,
  Flag.withDescription("Show no progress"),
  Flag.withDefault(false)
)

/** `-m`, in MiB. */
export const memory = Flag.Int("memory").pipe(
  Flag.withAlias("m"),
  Flag.withMetavar("MIB"),
  Flag.withDescription("Memory limit in MiB (default 512)"),
  Flag.withSchema(Limits.fields.memoryMiB.schema),
  Flag.optional
)

/** `-t`: the user gives seconds, the value is in ms. */
export const time = Flag.Finite("time").pipe(
  Flag.withAlias("t"),
  Flag.withMetavar("SECONDS"),
  Flag.withDescription("Time limit in seconds (default 30)"),
  Flag.filterMap(
    (seconds) => decodeTime(Math.round(seconds * 1000)),
    () => "seconds, more than 0 and at most a day"
  ),
  Flag.optional
)

/** Splits `NAME=VALUE`; the value may be empty and contain `=`. */
export const parsePair = (text: string): Option.Option<readonly [name: string, value: string]> => {
  const at = text.indexOf("=")
  return at < 1 ? Option.none() : Option.some([text.slice(0, at), text.slice(at + 1)])
}

/** `-e`, which may be repeated. */
export const env = Flag.String("env").pipe(
  Flag.withAlias("e"),
  Flag.withMetavar("NAME=VALUE"),
  Flag.withDescription("Set an environment variable for the code; may be repeated"),
  Flag.filterMap(parsePair, () => "NAME=VALUE"),
  Flag.atLeast(0),
  Flag.map((pairs) => Object.fromEntries(pairs))
)

/** `--network`; without it the code reaches only what `--allow` grants. */
export const network = Flag.Literals("network", ["none", "packages", "all"]).pipe(
  Flag.withDescription("What the code may reach: none (default), the package registries, or all public hosts"),
  Flag.optional
)

/** `--allow`, which may be repeated. */
export const allow = Flag.String("allow").pipe(
  Flag.withMetavar("HOST[:PORT]"),
  Flag.withDescription(
    "Let the code reach a host (ports 443 and 80), *.DOMAIN, a range such as 10.0.0.0/8:5432, or host:PORT on this machine; may be repeated"
  ),
  Flag.withSchema(NetworkPolicy.Rule),
  Flag.atLeast(0)
)

/** The network policy of `--network` and `--allow` together. */
export const policyOf = (
  network: Option.Option<"none" | "packages" | "all">,
  allow: ReadonlyArray<string>
): NetworkPolicy.NetworkPolicy => {
  switch (Option.getOrElse(network, () => "none")) {
    case "all":
      return NetworkPolicy.all(allow)
    case "packages":
      return NetworkPolicy.packages(undefined, allow)
    default:
      return allow.length === 0 ? NetworkPolicy.none : NetworkPolicy.allow(allow)
  }
}

const units: { readonly [unit: string]: number } = { "": 1, K: 1024, M: 1024 ** 2, G: 1024 ** 3, T: 1024 ** 4 }

/** Reads a number of bytes: `1073741824`, `1024M`, `1GiB`; a unit is a power of 1024. */
export const parseBytes = (text: string): Option.Option<number> => {
  const [, digits = "", unit = ""] = /^(\d{1,15})([KMGT]?)(?:iB|B)?$/i.exec(text) ?? []
  const bytes = Number(digits) * (units[unit.toUpperCase()] ?? Number.NaN)
  return digits !== "" && Number.isSafeInteger(bytes) ? Option.some(bytes) : Option.none()
}
