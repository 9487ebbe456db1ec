/** The declarations that the build writes are complete: the build strips what is `@internal`, and no other declaration needs it. */
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { execFile } from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"

const root = fileURLToPath(new URL("..", import.meta.url))
const manifest = path.join(root, "package.json")
const { exports } = JSON.parse(fs.readFileSync(manifest, "utf8"))

/** Runs the compiler. What it reports, or nothing. */
const tsc = (...args: ReadonlyArray<string>): Promise<string> =>
  promisify(execFile)(path.join(root, "node_modules", ".bin", "tsc"), args).then(
    ({ stdout }) => stdout,
    (error: { readonly stdout: string }) => error.stdout
  )

const program = `
import * as Effect from "effect/Effect"
import type { Result } from "exec-sandbox/Execution"
import * as Sandbox from "exec-sandbox/Sandbox"
import * as SandboxError from "exec-sandbox/SandboxError"
import * as Testing from "exec-sandbox/testing"

export const said: Effect.Effect<string, SandboxError.SandboxError> = Sandbox.run({ language: "python", code: "1" }).pipe(
  Effect.map((result: Result): string => result.stdout),
  Effect.catchTag("TaskFailed", (error) => Effect.succeed(error.stderr + error.receipt.stopReason)),
  Effect.catchTag("LimitExceeded", (error) => Effect.succeed(error.limit satisfies string)),
  Effect.catchTag(["PermissionDenied", "UnsupportedCommand"], (error) => Effect.succeed(error.message)),
  Effect.provide(Testing.layer({ script: () => Testing.prints("1") }))
)
// @ts-expect-error: stripped, because it is @internal
export type Stripped = typeof SandboxError.resultFields
`

describe("the built declarations", () => {
  let user = ""
  // Below node_modules, where the program finds effect and the types of Node.
  beforeAll(() => {
    const cache = path.join(root, "node_modules", ".cache")
    fs.mkdirSync(cache, { recursive: true })
    user = fs.mkdtempSync(path.join(cache, "declarations-"))
  })
  afterAll(() => fs.rmSync(user, { recursive: true }))

  it("have correct types in a strict program that imports every public module", { timeout: 60_000 }, async () => {
    const installed = path.join(user, "node_modules", "exec-sandbox")
    fs.mkdirSync(installed, { recursive: true })
    fs.copyFileSync(manifest, path.join(installed, "package.json"))
    const build = [
      "-p",
      path.join(root, "tsconfig.build.json"),
      "--emitDeclarationOnly",
      "--noCheck",
      "--sourceMap",
      "false"
    ]
    assert.strictEqual(await tsc(...build, "--outDir", path.join(installed, "dist")), "")

    const everything = Object.keys(exports).map(
      (name, at) => `export * as _${at} from "exec-sandbox${name.slice(1)}"\n`
    )
    fs.writeFileSync(path.join(user, "everything.mts"), everything.join(""))
    fs.writeFileSync(path.join(user, "program.mts"), program)
    const compilerOptions = {
      strict: true,
      exactOptionalPropertyTypes: true,
      noUncheckedIndexedAccess: true,
      // Checks the declarations themselves; those of effect need the types of the DOM.
      skipLibCheck: false,
      skipDefaultLibCheck: true,
      lib: ["ES2024", "DOM"],
      module: "NodeNext",
      target: "ES2024",
      types: ["node"],
      noEmit: true
    }
    const config = { compilerOptions, files: ["everything.mts", "program.mts"] }
    fs.writeFileSync(path.join(user, "tsconfig.json"), JSON.stringify(config))
    assert.strictEqual(await tsc("-p", user), "")
  })
})
