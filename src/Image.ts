/**
 * Images: what a guest boots from, and where this host keeps them.
 *
 * An image is four files for one CPU architecture (kernel, initramfs, root file system, empty scratch disk) and a manifest.
 * Its name is a hash over their content. They are in `<cache>/images/<id>/` and never change: an image is prepared elsewhere
 * and renamed into place, so a process that dies meanwhile leaves nothing that could be mistaken for an image.
 * `<cache>/current/` says which image belongs to this version's sources; when the agent or an interpreter changes, none
 * does any more, and `ensure` builds another.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Match from "effect/Match"
import * as Option from "effect/Option"
import type * as Schema from "effect/Schema"
import { mkdir, rm } from "node:fs/promises"
import { dirname, join } from "node:path"
import { cacheDirectory } from "./host/CacheDirectory.ts"
import { type CommandFailed, run } from "./internal/Command.ts"
import { download, type DownloadFailed } from "./image/Download.ts"
import { hashFile } from "./internal/hashFile.ts"
import { BuildFailed, buildImage, checkTools } from "./image/Build.ts"
import { fileNames, Manifest } from "./image/Manifest.ts"
import { readRecipe } from "./image/Recipe.ts"
import * as Store from "./image/Store.ts"
import { io, type IoFailed } from "./internal/io.ts"
import type { LockFailed } from "./internal/Lock.ts"
import { report } from "./internal/Progress.ts"
import { fail, ImageUnavailable, InvalidInput, type SandboxError } from "./SandboxError.ts"

export {
  /**
   * What an image says about itself: its files with sizes (bytes) and SHA-256, its architecture, kernel and languages, and
   * where everything came from.
   *
   * @since 0.1.0
   * @category models
   */
  Manifest
}

/**
 * A guest's CPU architecture, by Debian's names.
 *
 * @since 0.1.0
 * @category models
 */
export type Arch = Manifest["arch"]

/**
 * An image in the store. `files` are the absolute paths of its parts.
 *
 * @since 0.1.0
 * @category models
 */
export type Stored = Store.Stored

/**
 * The image store of this host. All methods fail with `SandboxError`: `ImageUnavailable` when there is no usable image and
 * none could be built or fetched, `HostUnsupported` when this host lacks what a build needs (the fix names the packages), `InvalidInput`.
 * Long ones report their progress through the `Progress` reference. All can be interrupted at any time.
 *
 * @since 0.1.0
 * @category services
 */
export class Image extends Context.Service<
  Image,
  {
    /** The image of this version for an architecture, if it exists and is intact by sizes and times (see `verify`). A few ms. */
    readonly find: (arch: Arch) => Effect.Effect<Option.Option<Stored>, SandboxError>
    /** `find`, else `build`; all processes share one build. */
    readonly ensure: (arch: Arch) => Effect.Effect<Stored, SandboxError>
    /**
     * Builds the image of this version. What was fetched for an earlier build is used again, unless `fresh` is true: then the
     * newest packages of the Debian suite are fetched.
     */
    readonly build: (options: { readonly arch: Arch; readonly fresh?: boolean }) => Effect.Effect<Stored, SandboxError>
    /**
     * Fetches an image that `export` wrote from an HTTP(S) address and makes it this version's image for its architecture.
     * `sha256`: 64 hex digits, of the whole file. An interrupted transfer is continued, also by a later call.
     */
    readonly pull: (options: { readonly url: string; readonly sha256: string }) => Effect.Effect<Stored, SandboxError>
    /** Writes one image as a tar file, for `pull` elsewhere. Returns the file's SHA-256 (hex). */
    readonly export: (id: string, path: string) => Effect.Effect<string, SandboxError>
    /** All complete images, of any version, newest first. */
    readonly list: Effect.Effect<ReadonlyArray<Stored>>
    /** Removes an image. VMs that run from it keep running. */
    readonly remove: (id: string) => Effect.Effect<void, SandboxError>
    /** Compares every byte of an image with its manifest; returns the problem found, or nothing. About a second. */
    readonly verify: (id: string) => Effect.Effect<string | undefined, SandboxError>
  }
>()("exec-sandbox/Image") {
  /** The store in the cache directory (`EXEC_SANDBOX_CACHE_DIR`, else the user's). */
  static readonly layer: Layer.Layer<Image> = Layer.effect(
    this,
    Effect.flatMap(cacheDirectory, (it) => make(it))
  )

  /** The store in a given directory. */
  static readonly layerAt = (directory: string): Layer.Layer<Image> => Layer.effect(this, make(directory))
}

/** Why work on an image can fail. */
type Failure = BuildFailed | CommandFailed | DownloadFailed | IoFailed | LockFailed | SandboxError | Schema.SchemaError

/** Turns a failure into the error that callers see. */
const explain = (image: string, cache: string, failure: Failure): SandboxError => {
  const unavailable = (problem: string, fix: string) =>
    fail(new ImageUnavailable({ image, problem, fix, cause: failure }))
  const full = () =>
    unavailable(`no space left for ${cache}`, "free about 1 GB, or set EXEC_SANDBOX_CACHE_DIR to a larger disk")
  const damaged = ({ message }: Error) => unavailable(message, "fix that, then try again")
  return Match.valueTags(failure, {
    SandboxError: (error) => error,
    CommandFailed: (error) =>
      error.output.includes("No space left on device")
        ? full()
        : unavailable(error.message, "fix that, then build again"),
    IoFailed: (error) => (["ENOSPC", "EDQUOT"].includes(error.code) ? full() : damaged(error)),
    DownloadFailed: ({ message, temporary }) =>
      unavailable(message, temporary ? "call again: it continues" : "check the address and the hash"),
    LockFailed: ({ message }) => unavailable(message, "make the cache directory writable"),
    BuildFailed: damaged,
    SchemaError: damaged
  })
}

const make = (cache: string): Effect.Effect<Image["Service"]> =>
  Effect.gen(function* () {
    const store = Store.makeStore(cache)
    const recipes = {
      amd64: yield* Effect.cached(readRecipe("amd64")),
      arm64: yield* Effect.cached(readRecipe("arm64"))
    }

    const typed =
      (image: string) =>
      <A>(effect: Effect.Effect<A, Failure>): Effect.Effect<A, SandboxError> =>
        Effect.mapError(effect, (failure) => explain(image, cache, failure))

    const find = (arch: Arch) => Effect.flatMap(recipes[arch], ({ keys }) => store.current(arch, keys.inputs))

    const buildIn = (work: string, arch: Arch, fresh: boolean): Effect.Effect<Stored, Failure> =>
      Effect.gen(function* () {
        const recipe = yield* recipes[arch]
        yield* store.sweep
        const same = (yield* store.list).find(
          ({ manifest }) => !fresh && manifest.arch === arch && manifest.system === recipe.keys.system
        )
        const intact = same !== undefined && (yield* Store.compare(same)) === undefined ? same.directory : undefined
        const { directory, manifest } = yield* buildImage({ recipe, cache, work, fresh, sameSystem: intact })
        const image = yield* store.install(directory, manifest, recipe.keys.inputs)
        yield* store.removeUnused(image.id)
        yield* report({ stage: "image", message: `image ${image.id} is ready` })
        return image
      })

    /** One build at a time. Where `flock` is missing, the error is the list of missing tools. */
    const exclusively = <A, E>(arch: Arch, work: (directory: string) => Effect.Effect<A, E>) =>
      Effect.catchTag(store.exclusively(`build-${arch}`, work), "LockFailed", (failure) =>
        Effect.andThen(checkTools(arch), Effect.fail(failure))
      )

    const build = (arch: Arch, fresh: boolean) => exclusively(arch, (work) => buildIn(work, arch, fresh))

    const ensure = (arch: Arch): Effect.Effect<Stored, Failure> =>
      Effect.gen(function* () {
        const present = yield* find(arch)
        if (Option.isSome(present)) return present.value
        return yield* exclusively(arch, (work) =>
          Effect.gen(function* () {
            // The process that had the lock before may have built it.
            const made = yield* find(arch)
            return Option.isSome(made) ? made.value : yield* buildIn(work, arch, false)
          })
        )
      })

    const byId = (id: string): Effect.Effect<Stored, SandboxError> =>
      Effect.gen(function* () {
        const image = /^[0-9a-f]{32}$/.test(id) ? yield* store.load(id) : Option.none<Stored>()
        if (Option.isSome(image)) return image.value
        return yield* fail(
          new ImageUnavailable({ image: id, problem: "there is no such image", fix: "see `exec-sandbox image list`" })
        )
      })

    const pull = (url: string, sha256: string): Effect.Effect<Stored, Failure> =>
      store.exclusively(`pull-${sha256}`, (work) =>
        Effect.gen(function* () {
          yield* store.sweep
          const archive = store.downloadPath(sha256)
          yield* io(() => mkdir(dirname(archive), { recursive: true }))
          yield* download(url, archive, sha256, (done, total) =>
            report({ stage: "image", message: "fetching", done, ...(total === undefined ? {} : { total }) })
          )
          yield* report({ stage: "image", message: "unpacking" })
          const directory = join(work, "image")
          yield* io(() => mkdir(directory))
          yield* run("tar", ["-xf", archive, "-C", directory, "--no-same-owner", ...archived])
          const manifest = yield* Store.readManifest(directory)
          const problem = yield* Store.compare(Store.imageAt(directory, manifest))
          if (problem !== undefined) return yield* new BuildFailed({ problem })
          const { keys } = yield* recipes[manifest.arch]
          const image = yield* store.install(directory, manifest, keys.inputs)
          yield* io(() => rm(archive, { force: true }))
          return image
        })
      )

    const exportTo = (id: string, path: string): Effect.Effect<string, Failure> =>
      Effect.gen(function* () {
        const image = yield* byId(id)
        const problem = yield* Store.compare(image)
        if (problem !== undefined) return yield* new BuildFailed({ problem })
        yield* run("tar", ["-cf", path, "-C", image.directory, ...archived])
        return (yield* io(() => hashFile(path))).sha256
      })

    return Image.of({
      find: (arch) => typed(arch)(find(arch)),
      ensure: (arch) => typed(arch)(ensure(arch)).pipe(Effect.withSpan("Image.ensure")),
      build: ({ arch, fresh = false }) => typed(arch)(build(arch, fresh)).pipe(Effect.withSpan("Image.build")),
      pull: ({ url, sha256 }) =>
        Effect.andThen(checkSource(url, sha256), typed(url)(pull(url, sha256))).pipe(Effect.withSpan("Image.pull")),
      export: (id, path) => typed(id)(exportTo(id, path)),
      list: store.list,
      remove: (id) => typed(id)(Effect.andThen(byId(id), store.remove(id))),
      verify: (id) => typed(id)(Effect.flatMap(byId(id), Store.compare))
    })
  })

/** The files in the tar file of an image. */
const archived = ["manifest.json", ...Object.values(fileNames)]

const invalid = (field: string, value: string, expected: string) =>
  Effect.fail(fail(new InvalidInput({ field, problem: JSON.stringify(value), expected })))

const checkSource = (url: string, sha256: string): Effect.Effect<void, SandboxError> => {
  if (!/^[0-9a-f]{64}$/.test(sha256)) return invalid("sha256", sha256, "64 hex digits in lower case")
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol))
    return invalid("url", url, "an http or https address")
  return Effect.void
}
