/** `exec-sandbox completions`: what a shell needs to complete the command line. */
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Completions from "effect/cli/Completions"
import { print } from "../output.ts"

const name = "exec-sandbox"

/** Flags that are read as text and begin with a path: `-f` may be `-`, and `--upload` has more behind its path. */
const paths: { readonly [flag: string]: "file" | "either" } = { file: "file", upload: "either" }

/** A shell should complete them as paths all the same. */
const withFiles = (command: Completions.CommandDescriptor): Completions.CommandDescriptor => ({
  ...command,
  flags: command.flags.map((flag) => {
    const pathType = paths[flag.name]
    return pathType === undefined ? flag : { ...flag, type: { _tag: "Path", pathType } }
  }),
  subcommands: command.subcommands.map(withFiles)
})

/** The flags that may be given again, which their descriptions say. */
const repeatable = ({ flags, subcommands }: Completions.CommandDescriptor): ReadonlyArray<string> => [
  ...flags.filter(({ description }) => description?.endsWith("may be repeated")).map(({ name }) => name),
  ...subcommands.flatMap(repeatable)
]

/** Effect's scripts offer each flag once; takes the conditions for that away from some. */
const again = (script: string, flags: ReadonlyArray<string>): string => {
  const name = `(?:${[...new Set(flags)].join("|")})`
  const contains = `not __fish_contains_opt(?: -s \\w)? ${name}`
  return script
    .replace(new RegExp(`\\[\\[ -n "\\$_used_\\d+" \\]\\] \\|\\| (_filtered_flags\\+=" --${name}[ "])`, "g"), "$1")
    .replace(new RegExp(`'\\(--${name}(?: -\\w)?\\)-`, "g"), "'*-")
    .replace(new RegExp(`; and begin; ${contains}; or [^']*? end'`, "g"), "'")
    .replace(new RegExp(`; and ${contains}'`, "g"), "'")
}

/** The command that knows the whole command line, which `root` gives. */
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
      // The script's own comment tells of Effect's flag, in whose place this command stands.
      return print(script.replaceAll(`${name} --completions`, `${name} completions`))
    }
  ).pipe(
    Command.withDescription("Print a completion script for a shell"),
    Command.withExamples([
      { command: 'eval "$(exec-sandbox completions bash)"', description: "Complete in this bash" },
      { command: "exec-sandbox completions fish | source", description: "Complete in this fish" }
    ])
  )
