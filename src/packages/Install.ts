/**
 * Installs packages in a machine that is then sealed: with the ecosystem's own tool, and imported after that, so that they are
 * warm in every clone. Only the tools have a network; no code of a package runs while there is one. Debian's scripts run in a
 * second step, without a network.
 */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { createHash } from "node:crypto"
import { readFile } from "node:fs/promises"
import { join } from "node:path"
import { Sub } from "../guest/Frame.ts"
import * as Agent from "../guest/Agent.ts"
import type { Evidence } from "../guest/Evidence.ts"
import { exec, spawn as spawnMethod } from "../guest/Methods.ts"
import { Ecosystem, type Lock, PackageError, type Packages, parsed, type Resolved } from "../Packages.ts"
import { BootFailed, fail, PackagesUnavailable, type SandboxError } from "../SandboxError.ts"
import type { VmLost, VmStream } from "../Vm.ts"
import { imagesDirectory } from "../image/Recipe.ts"
import type { Installer } from "./Network.ts"
import * as PackageNetwork from "./Network.ts"
import { report } from "../internal/Progress.ts"

/** The output of the programs in `images/packages`. */
const Answer = Schema.fromJsonString(
  Schema.Union([
    Schema.Struct({
      status: Schema.Literal("installed"),
      resolved: Schema.Array(
        Schema.Struct({ name: Schema.String, version: Schema.String, integrity: Schema.NullOr(Schema.String) })
      ).check(Schema.isMaxLength(10_000)),
      modules: Schema.Array(Schema.String.check(Schema.isMaxLength(214))).check(Schema.isMaxLength(1000))
    }),
    Schema.Struct({
      status: Schema.Literal("not-found"),
      name: Schema.String,
      available: Schema.Array(Schema.String.check(Schema.isMaxLength(100))).check(Schema.isMaxLength(10))
    }),
    Schema.Struct({ status: Schema.Literals(["registry", "refused", "conflict", "failed"]), problem: Schema.String })
  ])
)
type Answer = typeof Answer.Type
type Installed = Extract<Answer, { readonly status: "installed" }>

const decodeAnswer = Schema.decodeUnknownOption(Answer)

/** How long a tool may take; unpacking a thousand files under emulation is slow. */
const installMs = 1_200_000
/** How long one import may take. */
const importMs = 600_000
/** How long after that the guest may take to report it. */
const graceMs = 30_000
const maxAnswer = 4 * 1024 * 1024
const maxSaid = 2000

/** Most failures of a registry are temporary. */
const again = Schedule.exponential("2 seconds").pipe(Schedule.upTo({ times: 2 }))

/** Raise it when the same packages and programs make something else. */
const format = 1

/** The guest's programs that install, and the user of each. */
const tools = {
  python: { file: "python.py", argv: ["/usr/bin/python3", "-I", "-S", "-c"], user: "user" },
  javascript: { file: "javascript.cjs", argv: ["/usr/bin/node", "-e"], user: "root" },
  debian: { file: "debian.py", argv: ["/usr/bin/python3", "-I", "-S", "-c"], user: "root" }
} as const

/** Modules are imported by the interpreter of the same name. */
const interpreters = ["python", "javascript"] as const
type Interpreter = (typeof interpreters)[number]

const textOf = (ecosystem: Ecosystem) => readFile(join(imagesDirectory, "packages", tools[ecosystem].file), "utf8")

/** The text of the programs. */
const programs: Effect.Effect<Readonly<Record<Ecosystem, string>>, SandboxError> = Effect.tryPromise({
  try: async () => ({
    python: await textOf("python"),
    javascript: await textOf("javascript"),
    debian: await textOf("debian")
  }),
  catch: (error) => broken(`this installation lacks a file: ${error instanceof Error ? error.message : String(error)}`)
})

/** The key of the template with these packages on top of the template `base`. */
export const key = (base: string, packages: Packages): Effect.Effect<string, SandboxError> =>
  Effect.map(programs, (texts) => {
    const asked = parsed(packages).map(({ ecosystem, spec }) => [ecosystem, spec])
    const parts = [format, base, asked, packages.floating === true, packages.imports ?? null, texts]
    return createHash("sha256").update(JSON.stringify(parts)).digest("hex").slice(0, 32)
  })

const broken = (problem: string): SandboxError => fail(new BootFailed({ stage: "boot", problem, console: "" }))

/** Runs something to its end, at most `timeMs`: what it wrote to stdout, the end of its stderr, and the evidence. */
const follow = Effect.fnUntraced(function* <M extends typeof exec | typeof spawnMethod>(
  opened: Effect.Effect<VmStream<M>, VmLost, Scope.Scope>,
  timeMs: number
): Effect.fn.Return<{ readonly out: string; readonly said: string; readonly evidence: Evidence }, SandboxError> {
  const out: Array<Uint8Array> = []
  let size = 0
  let said = ""
  const evidence = yield* Effect.flatMap(opened, (stream) =>
    Agent.follow(stream, (it) => {
      if (it._tag === "Data" && it.sub === Sub.stdout) {
        size += it.bytes.length
        if (size <= maxAnswer) out.push(it.bytes)
      } else if (it._tag === "Data") {
        said = `${said}${Buffer.from(it.bytes).toString()}`.slice(-maxSaid)
      }
      return Effect.void
    })
  ).pipe(
    Effect.scoped,
    Effect.catchTag(["VmLost", "Refused", "ChannelViolation"], ({ problem }) =>
      Effect.fail(broken(problem.slice(0, maxSaid)))
    ),
    Effect.timeoutOrElse({
      duration: timeMs + graceMs,
      orElse: () => Effect.fail(broken("the guest does not end what it was told to"))
    })
  )
  return { out: Buffer.concat(out).toString(), said, evidence }
})

/** Runs a program of the guest to its end. */
const spawn = (vm: Installer, argv: ReadonlyArray<string>, user: "user" | "root") =>
  follow(
    vm.open(spawnMethod, { argv, user, timeMs: installMs, fileSizeBytes: 0, outputBytes: maxAnswer }, [
      { sub: Sub.stdin, bytes: new Uint8Array() }
    ]),
    installMs
  )

/** Fetches and installs packages with one ecosystem's tool; Debian's and npm's do it in two steps. */
const installAll = Effect.fnUntraced(function* (
  vm: Installer,
  ecosystem: Ecosystem,
  packages: ReadonlyArray<{ readonly name: string; readonly spec: string }>,
  program: string,
  step: "fetch" | "install",
  retries: Schedule.Schedule<unknown>
): Effect.fn.Return<Installed, SandboxError | PackageError> {
  const { argv, user } = tools[ecosystem]
  const withheld = yield* PackageNetwork.withheld([ecosystem])
  const specOf = (name: string): string => packages.find((it) => it.name === name)?.spec ?? order.specs.join(" ")
  const order = { step, packages, specs: packages.map(({ spec }) => spec), names: packages.map(({ name }) => name) }
  const run = spawn(vm, [...argv, program, JSON.stringify(order)], user)
  const attempt = Effect.gen(function* () {
    const { evidence, out, said } = yield* run
    const answer = Option.getOrUndefined(decodeAnswer(out))
    if (answer?.status === "registry" || answer?.status === "refused") {
      return yield* unavailable(ecosystem, answer.problem, answer.status === "refused", withheld)
    }
    if (answer !== undefined) return answer
    const limit = evidence.limits[0]?.limit
    const why = limit === undefined ? `ended with ${evidence.exitCode ?? evidence.signal}` : `met its ${limit} limit`
    return { status: "failed" as const, problem: `its installer ${why}: ${said.trim()}` }
  })
  const answer: Answer = yield* Effect.retry(attempt, {
    schedule: retries,
    while: ({ reason }) => reason._tag === "PackagesUnavailable" && reason.retry === "safe"
  })
  switch (answer.status) {
    case "installed":
      return answer
    case "not-found":
      // Most registries answer "not found" for a private package without credentials.
      if (withheld !== undefined) {
        return yield* unavailable(ecosystem, `${specOf(answer.name)} is not publicly available`, true, withheld)
      }
      return yield* new PackageError({
        ecosystem,
        spec: specOf(answer.name),
        reason: { _tag: "NotFound", available: answer.available }
      })
    case "conflict":
      return yield* conflict(ecosystem, order.specs.join(" "), answer.problem)
    default:
      return yield* broken(`${ecosystem} packages: ${answer.problem.slice(0, maxSaid)}`)
  }
})

const unavailable = (
  ecosystem: Ecosystem,
  problem: string,
  refused: boolean,
  withheld: string | undefined
): SandboxError =>
  fail(
    new PackagesUnavailable({
      ecosystem,
      refused,
      problem: `${problem.slice(0, maxSaid)}${withheld === undefined ? "" : `; ${withheld}`}`
    })
  )

const conflict = (ecosystem: Ecosystem, spec: string, problem: string): PackageError =>
  new PackageError({ ecosystem, spec, reason: { _tag: "Conflict", problem: problem.slice(0, maxSaid) } })

/** Code that imports a module without leaving a name, and code that ends the interpreter. */
const importing = {
  python: (module: string) => `__import__("importlib").import_module(${JSON.stringify(module)}) and None`,
  javascript: (module: string) => `void (await import(${JSON.stringify(module)}))`
} as const
const ending = {
  python: `__import__("os").kill(__import__("os").getpid(), 9)`,
  javascript: `process.kill(process.pid, "SIGKILL")`
} as const

/** Executes code in an interpreter. */
const execute = (vm: Installer, language: Interpreter, text: string) => {
  const code = Buffer.from(text)
  return follow(
    vm.open(exec, { language, codeBytes: code.length, stdinBytes: 0, timeMs: importMs, outputBytes: 0 }, [
      { sub: Sub.code, bytes: code }
    ]),
    importMs
  )
}

/**
 * Imports modules in the ecosystem's interpreter and returns those that succeeded. A failed import may leave anything behind,
 * so the other modules are imported again in a new interpreter.
 */
const importAll = Effect.fnUntraced(function* (
  vm: Installer,
  ecosystem: Interpreter,
  modules: ReadonlyArray<string>,
  must: boolean
): Effect.fn.Return<ReadonlyArray<string>, SandboxError | PackageError> {
  let left = modules
  for (let at = 0; at < left.length;) {
    const module = left[at] ?? ""
    const { evidence, said } = yield* execute(vm, ecosystem, importing[ecosystem](module))
    if (evidence.exitCode === 0 && evidence.state === "kept") {
      at++
      continue
    }
    if (must) return yield* conflict(ecosystem, module, `it cannot be imported: ${said.trim()}`)
    if (evidence.state === "kept") yield* execute(vm, ecosystem, ending[ecosystem])
    left = left.filter((it) => it !== module)
    at = 0
  }
  return left
})

/** Installs and imports packages, with all the machine's memory, and returns what there is then. The machine's network is closed by then. */
export const install = Effect.fn("Packages.install")(function* (
  vm: Installer,
  packages: Packages,
  memoryMiB: number,
  retries: Schedule.Schedule<unknown> = again
): Effect.fn.Return<Lock, SandboxError | PackageError> {
  const texts = yield* programs
  const all = parsed(packages)
  const resolved: Array<Resolved> = []
  const modules: Record<Ecosystem, ReadonlyArray<string>> = { python: [], javascript: [], debian: [] }
  const shown = all.map(({ spec }) => spec).join(" ")
  yield* report({ stage: "template", message: `installing ${shown.length > 200 ? `${all.length} packages` : shown}` })
  const wantedOf = (ecosystem: Ecosystem) => all.filter((it) => it.ecosystem === ecosystem)
  const used = Ecosystem.literals.filter((it) => wantedOf(it).length > 0)
  yield* PackageNetwork.during(
    vm,
    used,
    memoryMiB,
    Effect.gen(function* () {
      for (const ecosystem of used) {
        const installed = yield* installAll(vm, ecosystem, wantedOf(ecosystem), texts[ecosystem], "fetch", retries)
        modules[ecosystem] = installed.modules
        resolved.push(
          ...installed.resolved.map(({ integrity, name, version }) => ({ ecosystem, name, version, integrity }))
        )
      }
    })
  )
  // npm's links come last: scripts of Debian's packages, which run as root, do not find programs of npm's packages either.
  for (const ecosystem of ["debian", "javascript"] as const) {
    if (used.includes(ecosystem))
      yield* installAll(vm, ecosystem, wantedOf(ecosystem), texts[ecosystem], "install", retries)
  }
  const imported: Array<string> = []
  for (const ecosystem of interpreters) {
    const asked = packages.imports?.[ecosystem]
    const given = asked ?? (packages.imports === undefined ? modules[ecosystem] : [])
    if (given.length > 0) yield* report({ stage: "template", message: `importing ${given.join(" ").slice(0, 200)}` })
    imported.push(...(yield* importAll(vm, ecosystem, given, asked !== undefined)))
  }
  return { asked: all.map(({ ecosystem, spec }) => `${ecosystem}:${spec}`), resolved, imported }
})
