/**
 * The manifest of an image, and the computation of its name.
 */
import * as Schema from "effect/Schema"
import { createHash } from "node:crypto"

/** The files of an image and their names in its directory. */
export const fileNames = {
  kernel: "kernel",
  initrd: "initrd",
  root: "root.erofs",
  scratch: "scratch.qcow2"
} as const

/** A part of an image. */
export type Part = keyof typeof fileNames

/** The parts in their fixed order. */
export const parts: ReadonlyArray<Part> = ["kernel", "initrd", "root", "scratch"]

/** The modification time of all files of an image (seconds since 1970), so that a later write shows. */
export const epoch = 1_700_000_000

const Sha256 = Schema.String.check(Schema.isPattern(/^[0-9a-f]{64}$/))
const Key = Schema.String.check(Schema.isPattern(/^[0-9a-f]{32}$/))
const File = Schema.Struct({ size: Schema.Int, sha256: Sha256 })

/**
 * `manifest.json` of an image.
 *
 * `id` is computed from the files' hashes, the architecture and the languages, not from `created` (ISO 8601) and the
 * provenance (`packages`, `npm`), which are for people and audits. `inputs` is the key of the sources that it was built
 * from, `system` that of its root file system alone. Sizes are bytes.
 */
export const Manifest = Schema.Struct({
  format: Schema.Literal(1),
  id: Key,
  arch: Schema.Literals(["amd64", "arm64"]),
  created: Schema.String,
  inputs: Key,
  system: Key,
  kernelVersion: Schema.String,
  languages: Schema.Array(Schema.String),
  agentSha256: Sha256,
  files: Schema.Struct({ kernel: File, initrd: File, root: File, scratch: File }),
  packages: Schema.Array(Schema.Struct({ name: Schema.String, version: Schema.String, sha256: Sha256 })),
  npm: Schema.Array(Schema.Struct({ name: Schema.String, version: Schema.String, integrity: Schema.String }))
})

/** See the schema. */
export type Manifest = typeof Manifest.Type

/** `manifest.json` as text. */
export const ManifestJson = Schema.fromJsonString(Manifest)

/** The name of an image with this content: 32 hex digits. */
export const imageId = (content: Pick<Manifest, "format" | "arch" | "languages" | "files">): string =>
  createHash("sha256")
    .update(
      JSON.stringify([
        content.format,
        content.arch,
        content.languages,
        parts.map((part) => [fileNames[part], content.files[part].size, content.files[part].sha256])
      ])
    )
    .digest("hex")
    .slice(0, 32)
