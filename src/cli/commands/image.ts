/** `exec-sandbox image`: builds, downloads, lists and removes the images that guests boot from. */
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { Host } from "../../Host.ts"
import { Image, type Stored } from "../../Image.ts"
import * as flags from "../flags.ts"
import { print, printJson, size, table } from "../output.ts"
import { withProgress } from "../progress.ts"
import { layer } from "../services.ts"

/** The size of an image on disk, in bytes. */
const bytes = ({ manifest }: Stored): number => Object.values(manifest.files).reduce((sum, file) => sum + file.size, 0)

const row = (image: Stored): ReadonlyArray<string> => [
  image.id,
  image.manifest.arch,
  size(bytes(image)),
  `Linux ${image.manifest.kernelVersion}`,
  image.manifest.languages.join(" "),
  image.manifest.created
]

/** An image as data, without the long lists of its packages. */
const summary = (image: Stored, current: boolean): object => {
  const { npm: _, packages: __, ...manifest } = image.manifest
  return { ...manifest, bytes: bytes(image), directory: image.directory, current }
}

const build = Command.make(
  "build",
  {
    arch: Flag.Literals("arch", ["amd64", "arm64"]).pipe(
      Flag.withDescription("The guest's architecture (default: this host's)"),
      Flag.optional
    ),
    quiet: flags.quiet
  },
  ({ arch, quiet }) =>
    Effect.gen(function* () {
      const image = yield* Image
      const host = yield* Host
      const built = yield* withProgress(quiet, () => image.build({ arch: Option.getOrElse(arch, () => host.arch) }))
      yield* print(table([row(built)]))
    })
).pipe(Command.withDescription("Build this version's image from Debian packages"))

const pull = Command.make(
  "pull",
  {
    url: Argument.String("url").pipe(Argument.withDescription("HTTP or HTTPS URL of an exported image")),
    sha256: Flag.String("sha256").pipe(
      Flag.withMetavar("HEX"),
      Flag.withDescription("SHA-256 of the whole file, 64 hex digits")
    ),
    quiet: flags.quiet
  },
  ({ quiet, sha256, url }) =>
    Effect.gen(function* () {
      const image = yield* Image
      const pulled = yield* withProgress(quiet, () => image.pull({ url, sha256 }))
      yield* print(table([row(pulled)]))
    })
).pipe(Command.withDescription("Download a prebuilt image"))

const list = Command.make("list", { json: flags.json }, ({ json }) =>
  Effect.gen(function* () {
    const image = yield* Image
    const current = new Set<string>()
    for (const arch of ["amd64", "arm64"] as const) {
      for (const found of Option.toArray(yield* image.find(arch))) current.add(found.id)
    }
    const images = yield* image.list
    if (!json) {
      const mark = (id: string): string => (current.has(id) ? "current" : "")
      return yield* print(table(images.map((it) => row(it).concat(mark(it.id)))))
    }
    yield* printJson(images.map((it) => summary(it, current.has(it.id))))
  })
).pipe(Command.withDescription("List the images on this host, newest first"))

const remove = Command.make(
  "remove",
  { id: Argument.String("id").pipe(Argument.withDescription("The id from `image list`")) },
  ({ id }) =>
    Effect.gen(function* () {
      yield* (yield* Image).remove(id)
      yield* print(`removed  ${id}\n`)
    })
).pipe(Command.withDescription("Remove an image; VMs that run from it keep running"))

export const image = Command.make("image").pipe(
  Command.withDescription("Manage the images that guests boot from"),
  Command.withSubcommands([build, pull, list, remove]),
  Command.provide(layer)
)
