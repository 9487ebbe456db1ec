/** Turns the arguments of the command line into an effect. */
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as References from "effect/References"
import type { CommandFailure } from "./ending.ts"
import * as presenter from "./presenter.ts"
import { root } from "./root.ts"
import { version } from "./version.ts"

const booleans = new Set(["--json", "--quiet", "-q", "--stdin", "-i", "--trace", "--short"])

/** Gives boolean flags a value, because in `--json CODE` the flag would take a CODE such as `true` as its value. */
const closeBooleans = (args: ReadonlyArray<string>): ReadonlyArray<string> => {
  const end = args.indexOf("--")
  return args.map((arg, i) => {
    if (end !== -1 && i > end) return arg
    return booleans.has(arg) ? `${arg}=true` : arg
  })
}

const valued = new Set(["--memory", "-m", "--env", "-e"])

/** Passes everything after a program's name to that program: `shell ls -l`. */
const passOn = (args: ReadonlyArray<string>): ReadonlyArray<string> => {
  if (args[0] !== "shell") return args
  let at = 1
  for (let arg = args[at]; arg?.startsWith("-") && arg !== "--"; arg = args[at]) at += valued.has(arg) ? 2 : 1
  return at >= args.length || args[at] === "--" ? args : [...args.slice(0, at), "--", ...args.slice(at)]
}

/** Runs the command that these arguments name; `endingOfExit` turns its exit into the ending of the process. */
export const program = (args: ReadonlyArray<string>): Effect.Effect<void, CommandFailure> =>
  Command.runWith(root, { version: version() })(closeBooleans(passOn(args))).pipe(
    Effect.provide(Layer.merge(NodeServices.layer, presenter.layer)),
    Effect.provideService(References.LogToStderr, true)
  )
