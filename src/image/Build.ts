/**
 * Builds an image on this host, four files out of Debian's packages, Node, the kernel, the agent and the interpreters.
 *
 * There are two layers, because developers change one of them often: the *base* (everything that is fetched) is cached
 * under its own key; the agent and the interpreters are added to it in seconds. `images/build.sh` does what needs Debian's
 * tools and file ownership, this file does the rest.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { createHash } from "node:crypto"
import { constants } from "node:fs"
import { copyFile, link, mkdir, readdir, readFile, rename, rm, utimes, writeFile } from "node:fs/promises"
import { delimiter, join } from "node:path"
import { fail, HostUnsupported, type SandboxError } from "../SandboxError.ts"
import { type Arch, type ArchiveEntry, cpio, dropSymbols, loadOrder, moduleName, unpackKernel } from "./BootFiles.ts"
import { type CommandFailed, run, searchPath } from "../internal/Command.ts"
import { Mirror, variables } from "../internal/DebianMirror.ts"
import { missingBuildTools } from "../host/BuildTools.ts"
import { hashFile } from "../internal/hashFile.ts"
import { epoch, fileNames, imageId, type Manifest, type Part, parts } from "./Manifest.ts"
import { imagesDirectory, inputFiles, type Pin, type Recipe } from "./Recipe.ts"
import { io, type IoFailed } from "../internal/io.ts"
import { report } from "../internal/Progress.ts"

/** The virtual size, in bytes, of the disk that sessions write to; the file itself is below 2 MB. */
const scratchBytes = 8 * 1024 ** 3

/** Loaded at boot, before the root is mounted. */
const bootModules = [
  "virtio_mmio",
  "virtio_pci",
  "virtio_blk",
  "virtio_console",
  "virtio_rng",
  "erofs",
  "ext4",
  "overlay"
]
/** Loaded when a session gets a network. */
const laterModules = ["dummy", "tun", "nf_tables", "nf_nat", "nf_conntrack", "nft_chain_nat", "nft_redir"]

const languages = ["python", "javascript", "typescript", "bash"]

/** File system identities are fixed: the same content makes the same bytes. */
const rootUuid = "7a9f1c52-6e0b-4d57-9a53-0b5c2e1f7d01"
const scratchUuid = "7a9f1c52-6e0b-4d57-9a53-0b5c2e1f7d02"

const debianArch: Arch = process.arch === "arm64" ? "arm64" : "amd64"

/** The build found something that it cannot use. */
export class BuildFailed extends Schema.TaggedError<BuildFailed>()("BuildFailed", { problem: Schema.String }) {
  override get message(): string {
    return this.problem
  }
}

/** Why a step of a build can fail. */
type StepFailed = BuildFailed | CommandFailed | IoFailed

const step = (message: string) => report({ stage: "image", message })

const crossCompiler = { amd64: "x86_64-linux-gnu-gcc", arm64: "aarch64-linux-gnu-gcc" }

/** Fails with `HostUnsupported`, which names every missing package at once. */
export const checkTools = (arch: Arch): Effect.Effect<void, SandboxError> =>
  Effect.suspend(() => {
    const pull = "fetch a built image with `exec-sandbox image pull URL --sha256 HASH`"
    const requirement = "building an image"
    if (process.platform !== "linux")
      return Effect.fail(
        fail(new HostUnsupported({ requirement, found: process.platform, needed: "Linux", fix: pull }))
      )
    const { packages, tools } = missingBuildTools(arch, debianArch, searchPath().split(delimiter))
    if (tools.length === 0) return Effect.void
    const found = `no ${tools.join(", ")}`
    const fix = `run: apt-get install -y ${packages.join(" ")} (or ${pull})`
    return Effect.fail(fail(new HostUnsupported({ requirement, found, needed: "these programs", fix })))
  })

/** Runs `images/build.sh` as root or under fakeroot, so that files in the image have the right owners. */
const script = (
  args: ReadonlyArray<string>,
  env: Readonly<Record<string, string>> = {}
): Effect.Effect<void, CommandFailed> => {
  const command = ["bash", join(imagesDirectory, "build.sh"), ...args]
  const [file = "bash", ...rest] = process.geteuid?.() === 0 ? command : ["fakeroot", "--", ...command]
  return Effect.asVoid(
    run(file, rest, {
      env,
      onLine: (line) => (line.startsWith("step: ") ? step(line.slice(6)) : Effect.void)
    })
  )
}

/** Fetches a pinned npm package with the host's npm, and so from its configured registry, and unpacks it. */
const fetchPackage = (pin: Pin, directory: string): Effect.Effect<string, StepFailed> =>
  Effect.gen(function* () {
    yield* io(() => mkdir(directory, { recursive: true }))
    yield* run("npm", ["pack", "--silent", "--prefer-offline", "--ignore-scripts", `${pin.name}@${pin.version}`], {
      cwd: directory
    })
    const archive = (yield* io(() => readdir(directory))).find((name) => name.endsWith(".tgz"))
    if (archive === undefined) return yield* new BuildFailed({ problem: `npm pack gave no archive for ${pin.name}` })
    const content = yield* io(() => readFile(join(directory, archive)))
    const found = `sha512-${createHash("sha512").update(content).digest("base64")}`
    if (found !== pin.integrity) {
      return yield* new BuildFailed({
        problem: `${pin.name}@${pin.version} from the npm registry has ${found}, images/pins.json says ${pin.integrity}`
      })
    }
    yield* run("tar", ["-xzf", join(directory, archive), "-C", directory, "--no-same-owner"])
    return join(directory, "package")
  })

/** The folder that build.sh takes Node and npm from. */
const fetchNode = (recipe: Recipe, work: string): Effect.Effect<string, StepFailed> =>
  Effect.gen(function* () {
    const [node, npm] = yield* Effect.all(
      [fetchPackage(recipe.node, join(work, "npm-node")), fetchPackage(recipe.npm, join(work, "npm-npm"))],
      { concurrency: 2 }
    )
    const directory = join(work, "node")
    yield* io(async () => {
      await mkdir(directory)
      await writeFile(join(directory, "node"), dropSymbols(await readFile(join(node, "bin", "node"))), { mode: 0o755 })
      await rename(join(node, "LICENSE"), join(directory, "LICENSE"))
      await rename(npm, join(directory, "npm"))
    })
    return directory
  })

const findModules = async (directory: string): Promise<Map<string, string>> => {
  const paths = await readdir(directory, { recursive: true })
  const modules = paths.filter((path) => /\.ko(\.xz)?$/.test(path))
  return new Map(
    modules.map((path) => [moduleName(path.replace(/^.*\//, "").replace(/\.ko(\.xz)?$/, "")), join(directory, path)])
  )
}

const list = (modules: ReadonlyArray<string>): string => modules.map((name) => `${name}.ko\n`).join("")

/** Unpacks the kernel and the needed modules from its package. Returns the kernel's version. */
const unpackLinux = (arch: Arch, work: string, out: string): Effect.Effect<string, StepFailed> =>
  Effect.gen(function* () {
    const unpacked = join(work, "linux")
    yield* run("dpkg-deb", ["-x", join(out, "linux.deb"), unpacked])
    const boot = yield* io(() => readdir(join(unpacked, "boot")))
    const kernel = boot.find((name) => name.startsWith("vmlinuz-"))
    if (kernel === undefined) return yield* new BuildFailed({ problem: "the kernel's package has no vmlinuz" })
    const packed = yield* io(() => readFile(join(unpacked, "boot", kernel)))
    const unpackedKernel = yield* Effect.try({
      try: () => unpackKernel(packed, arch),
      catch: (error) => new BuildFailed({ problem: error instanceof Error ? error.message : String(error) })
    })
    yield* io(() => writeFile(join(out, "kernel"), unpackedKernel))

    const modules = yield* io(() => findModules(join(unpacked, "usr", "lib", "modules")))
    const contents = new Map<string, Buffer>()
    // Modules contain their dependencies, so each round reads the modules that the last one found missing.
    let missing: Array<string>
    do {
      missing = []
      const read = (name: string): Buffer | undefined => {
        const content = contents.get(name)
        if (content === undefined && modules.has(name)) missing.push(name)
        return content
      }
      loadOrder([...bootModules, ...laterModules], read)
      yield* Effect.forEach(
        missing,
        (name) =>
          Effect.gen(function* () {
            const path = modules.get(name) ?? ""
            if (path.endsWith(".xz")) yield* run("xz", ["--decompress", "--force", path])
            contents.set(name, yield* io(() => readFile(path.replace(/\.xz$/, ""))))
          }),
        { concurrency: 2, discard: true }
      )
    } while (missing.length > 0)

    const first = loadOrder(bootModules, (name) => contents.get(name))
    const later = loadOrder(laterModules, (name) => contents.get(name)).filter((name) => !first.includes(name))
    const directory = join(out, "modules")
    yield* io(async () => {
      await mkdir(directory)
      for (const [name, content] of contents) await writeFile(join(directory, `${name}.ko`), content)
      await writeFile(join(directory, "load.order"), list(first))
      await writeFile(join(directory, "load.later"), list(later))
      await rm(join(out, "linux.deb"))
    })
    return kernel.slice("vmlinuz-".length)
  })

/** `base.json`: written last, so a base that has it is complete; the hashes show later damage. */
const Base = Schema.fromJsonString(
  Schema.Struct({
    kernelVersion: Schema.String,
    sha256: Schema.Struct({ "base.tar": Schema.String, kernel: Schema.String, "scratch.qcow2": Schema.String })
  })
)

/** The kernel's version; fails unless the base exists and is intact. */
const checkBase = (directory: string): Effect.Effect<string, BuildFailed | IoFailed | Schema.SchemaError> =>
  Effect.gen(function* () {
    const text = yield* io(() => readFile(join(directory, "base.json"), "utf8"))
    const base = yield* Schema.decodeEffect(Base)(text)
    for (const [name, sha256] of Object.entries(base.sha256)) {
      const found = yield* io(() => hashFile(join(directory, name)))
      if (found.sha256 !== sha256) return yield* new BuildFailed({ problem: `${name} of the base is damaged` })
    }
    return base.kernelVersion
  })

interface ReadyBase {
  readonly directory: string
  readonly kernelVersion: string
}

/** Everything that is fetched, in `<cache>/bases/<arch>-<key>`; built when it is missing or damaged. */
const ensureBase = (
  recipe: Recipe,
  cache: string,
  work: string,
  fresh: boolean
): Effect.Effect<ReadyBase, StepFailed | Schema.SchemaError> =>
  Effect.gen(function* () {
    const directory = join(cache, "bases", `${recipe.arch}-${recipe.keys.base}`)
    const present = fresh ? Option.none<string>() : yield* Effect.option(checkBase(directory))
    if (Option.isSome(present)) return { directory, kernelVersion: present.value }
    const out = join(work, "base")
    yield* io(() => mkdir(out))
    yield* step("fetching Node")
    const node = yield* fetchNode(recipe, work)
    const mirror = variables(yield* yield* Mirror)
    yield* script(["base", recipe.arch, recipe.suite, debianArch, recipe.packages.join(","), node, out], mirror)
    const kernelVersion = yield* unpackLinux(recipe.arch, work, out)
    yield* script(["scratch", String(scratchBytes), String(epoch), scratchUuid, out])
    const hash = (name: string) =>
      Effect.map(
        io(() => hashFile(join(out, name))),
        (it) => it.sha256
      )
    const text = yield* Schema.encodeEffect(Base)({
      kernelVersion,
      sha256: {
        "base.tar": yield* hash("base.tar"),
        kernel: yield* hash("kernel"),
        "scratch.qcow2": yield* hash("scratch.qcow2")
      }
    })
    yield* io(async () => {
      await writeFile(join(out, "base.json"), text)
      await mkdir(join(cache, "bases"), { recursive: true })
      // A base takes 400 MB: only the newest of each architecture is kept.
      for (const name of await readdir(join(cache, "bases"))) {
        if (name.startsWith(`${recipe.arch}-`)) await rm(join(cache, "bases", name), { recursive: true, force: true })
      }
      await rename(out, directory)
    })
    return { directory, kernelVersion }
  })

/** Compiles the agent to a static program. */
const buildAgent = (arch: Arch, work: string): Effect.Effect<string, CommandFailed> => {
  const path = join(work, "agent")
  return Effect.as(
    run("go", ["build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", path, "."], {
      cwd: join(imagesDirectory, "agent"),
      env: { CGO_ENABLED: "0", GOOS: "linux", GOARCH: arch }
    }),
    path
  )
}

/** Compiler flags for a program without a C library or start-up code. */
const freestanding = [
  "-static",
  "-nostdlib",
  "-ffreestanding",
  "-fno-stack-protector",
  "-fno-tree-loop-distribute-patterns",
  "-fno-pie",
  "-no-pie",
  "-Wl,--build-id=none"
]

/**
 * The interpreters' folder: scripts as they are, `native.c` as Node's addon, `launch.c` as a program, any other C file as a
 * shared object.
 */
const buildInterpreters = (recipe: Recipe, work: string): Effect.Effect<string, StepFailed> =>
  Effect.gen(function* () {
    const from = join(imagesDirectory, "interpreters")
    const to = join(work, "interpreters")
    yield* io(() => mkdir(to))
    const files = yield* io(() => inputFiles(from))
    const headers = files.includes("native.c")
      ? yield* fetchPackage(recipe.headers, join(work, "npm-headers"))
      : undefined
    const compiler = recipe.arch === debianArch ? "gcc" : crossCompiler[recipe.arch]
    for (const file of files) {
      if (!file.endsWith(".c")) {
        yield* io(async () => {
          await mkdir(join(to, file, ".."), { recursive: true })
          await copyFile(join(from, file), join(to, file))
        })
        continue
      }
      if (file === "launch.c") {
        yield* run(compiler, ["-O2", ...freestanding, "-s", "-o", join(to, "launch"), file], { cwd: from })
        continue
      }
      const object = file === "native.c" ? "native.node" : file.replace(/\.c$/, ".so")
      const include = headers === undefined ? [] : [`-I${join(headers, "include")}`]
      yield* run(compiler, ["-O2", "-shared", "-fPIC", "-s", ...include, "-o", join(to, object), file], { cwd: from })
    }
    return to
  })

const packInitrd = (agent: string, base: string, path: string): Effect.Effect<void, IoFailed> =>
  io(async () => {
    const modules = (await readdir(join(base, "modules"))).sort()
    const entries: Array<ArchiveEntry> = [
      // A kernel without a console starts its first process without descriptors, and then Go cannot start without /dev/null.
      { path: "dev/console", mode: 0o600, content: Buffer.alloc(0), device: [5, 1] },
      { path: "dev/null", mode: 0o666, content: Buffer.alloc(0), device: [1, 3] },
      { path: "init", mode: 0o755, content: await readFile(agent) }
    ]
    for (const name of modules) {
      entries.push({ path: `modules/${name}`, mode: 0o644, content: await readFile(join(base, "modules", name)) })
    }
    await writeFile(path, cpio(entries, epoch))
  })

const readPackages = async (base: string): Promise<Manifest["packages"]> =>
  (await readFile(join(base, "packages.tsv"), "utf8"))
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => {
      const [name = "", version = "", sha256 = ""] = line.split("\t")
      return { name, version, sha256 }
    })

/** The inputs of a build. */
export interface BuildOptions {
  readonly recipe: Recipe
  /** The cache directory; bases are kept there. */
  readonly cache: string
  /** An empty directory on the same file system, which nothing else uses. */
  readonly work: string
  /** Fetch everything again, with the newest packages of the suite. */
  readonly fresh: boolean
  /** The directory of an intact image with the same root file system, which is then linked. */
  readonly sameSystem: string | undefined
}

/**
 * Builds an image in `work/image`: the files and nothing else. Fails with `HostUnsupported` when tools are missing, with
 * `CommandFailed` when one of them fails, with `IoFailed` when a file cannot be read or written, and with `BuildFailed` or a
 * `SchemaError` when a file is not what it should be.
 */
export const buildImage = (
  options: BuildOptions
): Effect.Effect<{ directory: string; manifest: Manifest }, StepFailed | Schema.SchemaError | SandboxError> =>
  Effect.gen(function* () {
    const { recipe, cache, work } = options
    yield* checkTools(recipe.arch)
    const directory = join(work, "image")
    yield* io(() => mkdir(directory))
    const path = (part: Part): string => join(directory, fileNames[part])
    const [base, agent, interpreters] = yield* Effect.all(
      [
        ensureBase(recipe, cache, work, options.fresh),
        buildAgent(recipe.arch, work),
        options.sameSystem === undefined ? buildInterpreters(recipe, work) : Effect.succeed("")
      ],
      { concurrency: 3 }
    )
    if (options.sameSystem === undefined) {
      yield* script(["root", join(base.directory, "base.tar"), interpreters, String(epoch), rootUuid, directory])
    } else {
      const from = join(options.sameSystem, fileNames.root)
      yield* io(() => link(from, path("root")))
    }
    yield* step("packing the initramfs")
    yield* packInitrd(agent, base.directory, path("initrd"))
    yield* io(async () => {
      await copyFile(join(base.directory, "kernel"), path("kernel"), constants.COPYFILE_FICLONE)
      await copyFile(join(base.directory, "scratch.qcow2"), path("scratch"))
      for (const part of parts) await utimes(path(part), epoch, epoch)
    })
    const now = yield* Clock.currentTimeMillis
    const manifest = yield* io(async (): Promise<Manifest> => {
      const [kernel, initrd, root, scratch] = await Promise.all([
        hashFile(path("kernel")),
        hashFile(path("initrd")),
        hashFile(path("root")),
        hashFile(path("scratch"))
      ])
      const content = { format: 1 as const, arch: recipe.arch, languages, files: { kernel, initrd, root, scratch } }
      return {
        ...content,
        id: imageId(content),
        created: new Date(now).toISOString(),
        inputs: recipe.keys.inputs,
        system: recipe.keys.system,
        kernelVersion: base.kernelVersion,
        agentSha256: (await hashFile(agent)).sha256,
        packages: await readPackages(base.directory),
        npm: [recipe.node, recipe.npm]
      }
    })
    return { directory, manifest }
  })
