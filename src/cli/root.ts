/** The whole command line. */
import * as Command from "effect/cli/Command"
import { bench } from "./commands/bench.ts"
import { completions } from "./commands/completions.ts"
import { doctor } from "./commands/doctor.ts"
import { image } from "./commands/image.ts"
import { run } from "./commands/run.ts"
import { shell } from "./commands/shell.ts"
import { snapshot } from "./commands/snapshot.ts"
import { template } from "./commands/template.ts"

export const root = Command.make("exec-sandbox").pipe(
  Command.withDescription("Run untrusted code in throw-away microVMs on this machine"),
  Command.withSubcommands([
    run,
    shell,
    doctor,
    image,
    template,
    snapshot,
    bench,
    completions((): Command.Command.Any => root)
  ]),
  Command.withExamples([
    { command: "exec-sandbox run 'print(1 + 1)'", description: "Run Python" },
    { command: "exec-sandbox run -f script.ts -t 5", description: "Run a file, for at most five seconds" },
    { command: "exec-sandbox doctor", description: "See what this host can do" }
  ])
)
