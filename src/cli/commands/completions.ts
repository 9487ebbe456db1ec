/** `exec-sandbox completions`: what a shell needs to complete the command line. */
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Completions from "effect/cli/Completions"
import { print } from "../output.ts"

const name = "exec-sandbox"

/** `-f` is read as text, because `-` is no path; a shell should complete it as a file all the same. */
const withFiles = (command: Completions.CommandDescriptor): Completions.CommandDescriptor => ({
  ...command,
  flags: command.flags.map((flag) =>
    flag.name === "file" ? { ...flag, type: { _tag: "Path", pathType: "file" } } : flag
  ),
  subcommands: command.subcommands.map(withFiles)
})

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
      const script = Completions.generate(name, shell, withFiles(Completions.fromCommand(root())))
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
