/**
 * Damaged templates, concurrent builds and a full disk: the template is built again or the error is typed; a half-written one is
 * never used.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import { execFile, execFileSync } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"
import { Host } from "../src/Host.ts"
import { Image } from "../src/Image.ts"
import type { StartPath } from "../src/Receipt.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { Template } from "../src/Template.ts"
import { qemus } from "./support/processes.ts"

const directory = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-templates-"))),
  (it) => Effect.sync(() => fs.rmSync(it, { recursive: true }))
)

/** The real services, with their templates in `home`. */
const layerAt = (home: string) =>
  Sandbox.layerTemplate.pipe(
    Layer.provideMerge(Template.layer),
    Layer.provide(Image.layer),
    Layer.provide(
      Layer.effect(
        Host,
        Effect.map(Host, (host) => Host.of({ ...host, cacheDirectory: home }))
      ).pipe(Layer.provide(Host.layer))
    )
  )

const product = { language: "python", code: "print(6 * 7)" } as const
/** Runs code with the templates in `home`, and returns how its VM was obtained. */
const startPath = (home: string) =>
  Effect.gen(function* () {
    const result = yield* Sandbox.use((sandbox) => sandbox.run(product))
    assert.strictEqual(result.stdout, "42\n")
    return result.receipt.startPath
  }).pipe(Effect.provide(layerAt(home)))

const onlyTemplate = (home: string): string => {
  const names = fs.readdirSync(path.join(home, "templates")).filter((name) => !name.startsWith("."))
  assert.strictEqual(names.length, 1)
  return path.join(home, "templates", names[0] ?? "")
}

/** What unfinished builds and removals have left behind in the store. */
const leftovers = (home: string): ReadonlyArray<string> => {
  const store = path.join(home, "templates")
  return fs.existsSync(store) ? fs.readdirSync(store).filter((name) => /^\.(building|removed)/.test(name)) : []
}

/** Why the restore was missed. */
const missed = (from: StartPath): string | undefined => from.missed.find((it) => it.kind === "restore")?.reason

describe("Template", () => {
  it.live(
    "two processes with two fibres each build it once; a damaged one is built again; an interrupted build leaves nothing",
    () =>
      Effect.gen(function* () {
        const home = yield* directory
        const script = path.join(home, "run.ts")
        const source = fileURLToPath(new URL("../src", import.meta.url))
        fs.writeFileSync(
          script,
          `import * as Effect from "effect/Effect"
         import * as Layer from "effect/Layer"
         import { Host } from "${source}/Host.ts"
         import { Image } from "${source}/Image.ts"
         import { Sandbox } from "${source}/Sandbox.ts"
         import { Template } from "${source}/Template.ts"
         const host = Layer.effect(Host, Effect.map(Host, (it) => Host.of({ ...it, cacheDirectory: ${JSON.stringify(home)} }))).pipe(Layer.provide(Host.layer))
         const layer = Sandbox.layerTemplate.pipe(Layer.provide(Template.layer), Layer.provide(Image.layer), Layer.provide(host))
         const run = Sandbox.use((it) => it.run({ language: "python", code: "print(1)" }))
         const both = Effect.all([run, run], { concurrency: 2 }).pipe(Effect.provide(layer))
         const results = await Effect.runPromise(both)
         console.log(JSON.stringify(results.map((it) => it.receipt.startPath.missed.length)))`
        )
        fs.symlinkSync(fileURLToPath(new URL("../node_modules", import.meta.url)), path.join(home, "node_modules"))
        const process_ = Effect.promise(() => promisify(execFile)(process.execPath, [script], { timeout: 200_000 }))
        const outputs = yield* Effect.all([process_, process_], { concurrency: 2 })
        const built = outputs.flatMap(({ stdout }) => JSON.parse(stdout) as ReadonlyArray<number>)
        // A missed path in addition to the pool means that this run had to wait for the build.
        assert.deepStrictEqual(built.toSorted(), [1, 1, 1, 2])
        assert.deepStrictEqual(leftovers(home), [])
        const whole = yield* startPath(home)
        assert.deepStrictEqual([whole.kind, missed(whole)], ["restore", undefined])

        // A state that passes all checks and does not load.
        const state = path.join(onlyTemplate(home), "state")
        fs.writeFileSync(state, Buffer.alloc(fs.statSync(state).size, 0x41))
        const stat = fs.statSync(state, { bigint: true })
        const manifestFile = path.join(onlyTemplate(home), "manifest.json")
        const manifest = JSON.parse(fs.readFileSync(manifestFile, "utf8")) as {
          files: { state: { mtimeNs: string; ctimeNs: string } }
        }
        manifest.files.state.mtimeNs = `${stat.mtimeNs}`
        manifest.files.state.ctimeNs = `${stat.ctimeNs}`
        fs.writeFileSync(manifestFile, JSON.stringify(manifest))
        const second = yield* startPath(home)
        assert.strictEqual(second.kind, "boot")
        assert.match(missed(second) ?? "", /QEMU ended|did not load/)
        assert.strictEqual((yield* startPath(home)).kind, "restore")
        assert.deepStrictEqual(leftovers(home), [])

        // One byte is changed; the size is the same.
        const template = onlyTemplate(home)
        const ram = fs.openSync(path.join(template, "ram"), "r+")
        fs.writeSync(ram, Buffer.from([0x5a]), 0, 1, 4096)
        fs.closeSync(ram)
        const verified = yield* Template.use((it) => it.verify(path.basename(template))).pipe(
          Effect.provide(layerAt(home))
        )
        assert.strictEqual(verified, "ram was changed")
        // It is built again, and the build is interrupted when its QEMU has started.
        const before = new Set(qemus())
        const started = () => qemus().filter((pid) => !before.has(pid))
        const begun = Effect.sync(() => leftovers(home).length > 0 && started().length > 0).pipe(
          Effect.repeat({ until: (it) => it, schedule: Schedule.spaced("50 millis") })
        )
        assert.isTrue(yield* Effect.raceFirst(startPath(home), begun))
        assert.deepStrictEqual(started(), [])
        assert.deepStrictEqual(leftovers(home), [])
      }).pipe(Effect.scoped),
    300_000
  )

  it.live.skipIf(process.getuid?.() !== 0)(
    "a disk that fills up during the build is a typed error that says so",
    () =>
      Effect.gen(function* () {
        const home = yield* directory
        execFileSync("mount", ["-t", "tmpfs", "-o", "size=60m", "tmpfs", home])
        yield* Effect.addFinalizer(() => Effect.sync(() => execFileSync("umount", ["-l", home])))
        const error = yield* Effect.flip(startPath(home))
        assert.strictEqual(error._tag, "SandboxError")
        if (error._tag !== "SandboxError") return
        assert.strictEqual(error.reason._tag, "TemplateUnusable")
        assert.match(error.message, /its disk is full|no space left/i)
        assert.strictEqual(error.retry, "safe")
        assert.deepStrictEqual(leftovers(home), [])
        assert.deepStrictEqual(
          fs.readdirSync(path.join(home, "templates")).filter((name) => !name.startsWith(".")),
          []
        )
      }).pipe(Effect.scoped),
    240_000
  )

  it.live(
    "an image whose root cannot be mounted is a failed boot, with the guest's console output",
    () =>
      Effect.gen(function* () {
        const home = yield* directory
        const root = path.join(home, "root")
        fs.writeFileSync(root, Buffer.alloc(1024 * 1024))
        const images = Layer.effect(
          Image,
          Effect.gen(function* () {
            const image = yield* Image
            return Image.of({
              ...image,
              ensure: (arch) =>
                Effect.map(image.ensure(arch), (it) => ({ ...it, id: "broken", files: { ...it.files, root } }))
            })
          })
        ).pipe(Layer.provide(Image.layer))
        const host = Layer.effect(
          Host,
          Effect.map(Host, (it) => Host.of({ ...it, cacheDirectory: home }))
        ).pipe(Layer.provide(Host.layer))
        const layer = Template.layer.pipe(Layer.provide(images), Layer.provide(host))
        const error = yield* Effect.flip(Template.use((it) => it.warm(512)).pipe(Effect.provide(layer)))
        assert.strictEqual(error.reason._tag, "TemplateUnusable")
        assert.match(error.message, /VM failed at boot: QEMU ended \(exit code 0\).*exec-sandbox: fatal: mounting/s)
        assert.deepStrictEqual(leftovers(home), [])
      }).pipe(Effect.scoped),
    240_000
  )
})
