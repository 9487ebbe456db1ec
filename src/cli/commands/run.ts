/** `exec-sandbox run`: one execution in a VM of its own, with live output. */
import * as Argument from "effect/cli/Argument"
import * as CliError from "effect/cli/CliError"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import { identity } from "effect/Function"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import * as Execution from "../../Execution.ts"
import * as Sandbox from "../../Sandbox.ts"
import { expose, exposeAll } from "../expose.ts"
import * as flags from "../flags.ts"
import { readCode, readStdin } from "../input.ts"
import { ofFailure, ofResult } from "../json.ts"
import { printJson, write } from "../output.ts"
import { floating, packages } from "../packages.ts"
import { type Drawer, withProgress } from "../progress.ts"
import { secret, secretsOf } from "../secrets.ts"
import { type Problem, sourceOf } from "../source.ts"
import { traced } from "../trace.ts"
import * as transfer from "../transfer.ts"

const usage = ({ message, missing }: Pick<Problem, "message" | "missing">) =>
  new CliError.ShowHelp({
    commandPath: ["exec-sandbox", "run"],
    errors: [missing ? new CliError.MissingArgument({ argument: "code" }) : new CliError.ValidationError({ message })]
  })

/** Prints the output as it is written. */
const live = <R>(events: Stream.Stream<Execution.Event, Execution.Failure, R>, drawer: Drawer) =>
  Stream.runForEach(events, (event) => {
    if (event._tag === "Done") return Effect.void
    const stream = event._tag === "Stdout" ? process.stdout : process.stderr
    return Effect.andThen(drawer.clear, write(stream, event.bytes))
  })

/** Prints everything at the end, as one JSON value. */
const asJson = <R>(run: Effect.Effect<Execution.Result, Execution.Failure, R>) =>
  Effect.flatMap(run, (result) => printJson(ofResult(result)))

export const run = Command.make(
  "run",
  {
    code: Argument.String("code").pipe(
      Argument.withDescription('The code itself, or "-" for stdin'),
      Argument.optional
    ),
    language: Flag.Literals("language", Execution.Language.literals).pipe(
      Flag.withAlias("l"),
      Flag.withDescription("Language of the code (default: by the file's extension, else python)"),
      Flag.optional
    ),
    file: Flag.String("file").pipe(
      Flag.withAlias("f"),
      Flag.withMetavar("FILE"),
      Flag.withDescription('Run a file; "-" is stdin'),
      Flag.optional
    ),
    time: flags.time,
    memory: flags.memory,
    env: flags.env,
    network: flags.network,
    allow: flags.allow,
    secret,
    stdin: Flag.Boolean("stdin").pipe(
      Flag.withAlias("i"),
      Flag.withoutNegation,
      Flag.withDescription(
        "Read this command's stdin to its end, then give it to the code; without -i the code's stdin is empty"
      ),
      Flag.withDefault(false)
    ),
    expose,
    package: packages,
    floating,
    upload: transfer.upload,
    download: transfer.download,
    changes: Flag.Boolean("changes").pipe(
      Flag.withoutNegation,
      Flag.withDescription("With --json: also list the files that the code changed, with patches"),
      Flag.withDefault(false)
    ),
    json: flags.json,
    trace: Flag.Boolean("trace").pipe(
      Flag.withoutNegation,
      Flag.withDescription("Print to stderr where the time went, as a tree"),
      Flag.withDefault(false)
    ),
    quiet: flags.quiet
  },
  Effect.fn("cli.run")(function* (given) {
    const { allow, changes, code, download, env, expose, file, json, language, memory, network, quiet, stdin } = given
    const { floating, package: wanted, secret, time, trace, upload } = given
    const source = sourceOf(Option.getOrUndefined(code), Option.getOrUndefined(file), Option.getOrUndefined(language))
    if (source._tag === "Problem") return yield* usage(source)
    if (changes && !json) return yield* usage({ message: "--changes needs --json", missing: false })
    if (stdin && source._tag === "Stdin") {
      return yield* usage({ message: "Stdin is already the code; it cannot also be the code's stdin", missing: false })
    }
    yield* withProgress(
      quiet,
      Effect.fnUntraced(function* (drawer) {
        const waiting = drawer.show({ stage: "stdin", message: "waiting for its end; use `< /dev/null` for no input" })
        const request: Execution.Request = {
          language: source.language,
          code: yield* readCode(source, waiting),
          ...(stdin && { stdin: yield* readStdin(waiting) }),
          env,
          ...(changes && { changes }),
          limits: {
            ...(Option.isSome(time) && { timeMs: time.value }),
            ...(Option.isSome(memory) && { memoryMiB: memory.value })
          }
        }
        yield* drawer.clear
        const secrets = yield* secretsOf(secret)
        const options = { network: flags.policyOf(network, allow), packages: { ...wanted, floating }, secrets }
        const alone = json ? asJson(Sandbox.run(request, options)) : live(Sandbox.stream(request, options), drawer)
        const inSession = Effect.gen(function* () {
          const session = yield* Sandbox.session({ ...options, limits: request.limits ?? {} })
          const run = json ? asJson(session.exec(request)) : live(session.stream(request), drawer)
          yield* drawer.clear
          yield* exposeAll(session, expose, quiet)
          yield* transfer.between(session, upload, download, run)
        }).pipe(Effect.scoped)
        yield* (upload.length + download.length + expose.length === 0 ? alone : inSession).pipe(
          Effect.provide(Sandbox.layer),
          trace ? traced : identity,
          Effect.tapError((error) => (json && error._tag !== "Leave" ? printJson(ofFailure(error)) : Effect.void))
        )
      })
    )
  })
).pipe(
  Command.withDescription(
    "Run code in a VM of its own. " +
      "The exit code is the program's own; 124: time limit, 125: the sandbox failed, 126: permission denied, " +
      "127: unsupported command, 137: memory limit, 128+n: signal n, 2: usage."
  ),
  Command.withShortDescription("Run code in a VM of its own"),
  Command.withExamples([
    { command: "exec-sandbox run 'print(1 + 1)'", description: "Python" },
    { command: "exec-sandbox run -l bash 'uname -a' -t 5", description: "bash, for at most five seconds" },
    { command: "exec-sandbox run -f fetch.py --allow api.example.com", description: "With access to one host" },
    {
      command: "exec-sandbox run -f pr.py --allow api.github.com --secret GITHUB_TOKEN@api.github.com",
      description: "With a token that it can use but not see"
    },
    { command: "exec-sandbox run -f script.ts --json", description: "A file, with the receipt and output as JSON" }
  ])
)
