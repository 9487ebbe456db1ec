/** `exec-sandbox completions`: prints the script with which a shell completes the command line. */
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Completions from "effect/cli/Completions"
import { print } from "../output.ts"

const name = "exec-sandbox"

/** Flags that are text but begin with a path: `-f` may be `-`, and `--upload` has more after its path. */
const paths: { readonly [flag: string]: "file" | "either" } = { file: "file", upload: "either" }

/** Makes a shell complete these flags as paths. */
const withFiles = (command: Completions.CommandDescriptor): Completions.CommandDescriptor => ({
  ...command,
  flags: command.flags.map((flag) => {
    const pathType = paths[flag.name]
    return pathType === undefined ? flag : { ...flag, type: { _tag: "Path", pathType } }
  }),
  subcommands: command.subcommands.map(withFiles)
})

/** The flags that may be repeated, by their descriptions. */
const repeatable = ({ flags, subcommands }: Completions.CommandDescriptor): ReadonlyArray<string> => [
  ...flags.filter(({ description }) => description?.endsWith("may be repeated")).map(({ name }) => name),
  ...subcommands.flatMap(repeatable)
]

/** Effect's scripts offer each flag once; this removes the conditions for that from repeatable flags. */
const again = (script: string, flags: ReadonlyArray<string>): string => {
  const name = `(?:${[...new Set(flags)].join("|")})`
  const contains = `not __fish_contains_opt(?: -s \\w)? ${name}`
  return script
    .replace(new RegExp(`\\[\\[ -n "\\$_used_\\d+" \\]\\] \\|\\| (_filtered_flags\\+=" --${name}[ "])`, "g"), "$1")
    .replace(new RegExp(`'\\(--${name}(?: -\\w)?\\)-`, "g"), "'*-")
    .replace(new RegExp(`; and begin; ${contains}; or [^']*? end'`, "g"), "'")
    .replace(new RegExp(`; and ${contains}'`, "g"), "'")
}

/** Makes the command; `root` gives the whole command line. */
export const completions = (root: () => Command.Command.Any) =>
  Command.make(
    "completions",
    {
      shell: Argument.Literals("shell", ["bash", "zsh", "fish"]).pipe(
        Argument.withDescription("The shell to complete in")
      )
    },
    ({ shell }) => {
      const command = withFiles(Completions.fromCommand(root()))
      const script = again(Completions.generate(name, shell, command), repeatable(command))
      // A comment in the script names Effect's own flag, which this command replaces.
      return print(script.replaceAll(`${name} --completions`, `${name} completions`))
    }
  ).pipe(
    Command.withDescription("Print a completion script for a shell"),
    Command.withExamples([
      { command: 'eval "$(exec-sandbox completions bash)"', description: "Complete in this bash" },
      { command: "exec-sandbox completions fish | source", description: "Complete in this fish" }
    ])
  )
