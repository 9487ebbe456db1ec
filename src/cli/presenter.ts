/** Prints requested help to stdout, and errors in a command line to stderr. */
import * as CliConfig from "effect/cli/CliConfig"
import * as CliOutput from "effect/cli/CliOutput"
import * as GlobalFlag from "effect/cli/GlobalFlag"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { write } from "./output.ts"

const presenter: CliOutput.Presenter = {
  present: (event) => {
    const stream =
      event._tag !== "Version" && !(event._tag === "Help" && event.reason === "Requested")
        ? process.stderr
        : process.stdout
    const format = CliOutput.defaultFormatter({ colors: stream.isTTY && stream.hasColors() })
    const text = (): string => {
      switch (event._tag) {
        case "Version":
          return `${event.name} ${event.version}`
        case "Help":
          return format.formatHelpDoc(event.helpDoc)
        case "InvalidInvocation": {
          const command = event.commandPath.join(" ")
          const errors = event.errors.map((error) => `${command}: ${format.formatCliError(error)}`).join("\n")
          // After a missing argument the whole help is useful; after a misspelt one it would hide the error.
          return event.errors.some((error) => error._tag === "MissingArgument")
            ? `${format.formatHelpDoc(event.helpDoc)}\n${errors}`
            : `${errors}\n\nSee: ${command} --help`
        }
      }
    }
    return Effect.ignore(write(stream, `${text()}\n`))
  }
}

/** Presents help and errors, and gives every command the flags `--help` and `--version`. */
export const layer: Layer.Layer<never> = Layer.merge(
  CliOutput.layerPresenter(presenter),
  CliConfig.layer({ builtIns: [GlobalFlag.Help, GlobalFlag.Version] })
)
