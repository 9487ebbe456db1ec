/** Setup, doctor and the build agree about every tool that is missing to build an image. */
import { afterEach, assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { spawnSync } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { missingTools, neededTools } from "../../images/tools.mjs"
import { imageToolsRow } from "../../src/host/Doctor.ts"
import { Image } from "../../src/Image.ts"
import { checkTools } from "../../src/image/Build.ts"
import { pretend, restore } from "../support/installed.mjs"

const host = process.arch === "arm64" ? "arm64" : "amd64"
const other = host === "arm64" ? "amd64" : "arm64"
const qemu = host === "arm64" ? "qemu-system-aarch64" : "qemu-system-x86_64"
const search = ["/nonexistent/bin"]
const setup = fileURLToPath(new URL("../../images/setup.mjs", import.meta.url))
const installed = new URL("../support/installed.mjs", import.meta.url).href

const nameOf = ([first = ""]: ReadonlyArray<string>, name: string): string => (first.startsWith("/") ? name : first)

const packagesIn = (text: string, before: RegExp): ReadonlyArray<string> =>
  (before.exec(text)?.[1] ?? "").split(" ").filter((name) => name !== "")

/** The packages that setup asks for. Without apt-get it installs nothing itself. */
const bySetup = (present: ReadonlyArray<string>, hidden: ReadonlyArray<string>, uid: number) => {
  const env = { PATH: "", PRESENT: JSON.stringify(present), HIDDEN: JSON.stringify([...hidden, "apt-get"]) }
  const ended = spawnSync(process.execPath, ["--import", installed, setup], {
    env: { ...env, AS_UID: String(uid) },
    encoding: "utf8"
  })
  assert.strictEqual(ended.status, 1, ended.stderr)
  return packagesIn(ended.stderr, /^Install what these Debian packages contain, then run this again: (.*)$/m)
}

/** The packages that the build asks for. */
const byBuild = (arch: "amd64" | "arm64") =>
  Effect.map(Effect.result(checkTools(arch)), (it) =>
    it._tag === "Success" || it.failure.reason._tag !== "HostUnsupported"
      ? []
      : packagesIn(it.failure.reason.fix, /^run: apt-get install -y (.*?) \(or /)
  )

describe.runIf(process.platform === "linux")("the tools that build an image", () => {
  afterEach(restore)

  for (const [user, uid] of [["root", 0] as const, ["another user", 1000] as const]) {
    const rows = neededTools({ arch: host, host, root: uid === 0 })
    const all = rows.flatMap(({ brings }) => brings)

    it.effect(`for ${user}: setup, doctor and the build report one that is missing`, () =>
      Effect.gen(function* () {
        for (const { brings, package: name } of rows) {
          pretend(all, brings, uid)
          const { detail, status } = imageToolsRow(host, search)
          assert.strictEqual(status, "warning", name)
          assert.include(detail, `missing ${nameOf(brings, name)}; `)
          assert.deepStrictEqual(yield* byBuild(host), [name])
          // For another user, setup differs only by fakeroot.
          if (uid === 0 || name === "fakeroot") assert.deepStrictEqual(bySetup([...all, qemu], brings, uid), [name])
        }
      })
    )

    it.effect(`for ${user}: with all present, doctor has no warning and the build starts`, () =>
      Effect.gen(function* () {
        pretend(all, [], uid)
        const { detail, status } = imageToolsRow(host, search)
        assert.deepStrictEqual(
          [status, detail],
          ["ok", `${rows.map((it) => nameOf(it.brings, it.package)).join(", ")}: all present`]
        )
        assert.deepStrictEqual(yield* byBuild(host), [])
        // Setup also looks for QEMU; it asks for nothing else, so it found all the tools.
        assert.strictEqual(bySetup(all, [qemu], uid).length, 1)
      })
    )

    it.effect(
      `for ${user}: with none present, the error names all at once, including those for another architecture`,
      () =>
        Effect.gen(function* () {
          const there = { root: uid === 0, host, arch: other } as const
          const cross = neededTools(there).flatMap(({ brings }) => brings)
          pretend([], [...all, ...cross], uid)
          const packages = yield* byBuild(other)
          assert.includeMembers([...packages], ["mmdebstrap", "erofs-utils", "qemu-utils", "golang-go"])
          assert.include(packages, other === "arm64" ? "gcc-aarch64-linux-gnu" : "gcc-x86-64-linux-gnu")
          assert.notInclude(packages, "gcc")
          assert.strictEqual(packages.includes("fakeroot"), uid !== 0)
          assert.deepStrictEqual(yield* byBuild(host), bySetup([qemu], all, uid))
        })
    )
  }

  it.live("are named by a build that cannot take its lock because flock is missing", () =>
    Effect.gen(function* () {
      const cache = mkdtempSync(join(tmpdir(), "tools-"))
      const path = process.env["PATH"]
      process.env["PATH"] = "/nonexistent"
      yield* Effect.addFinalizer(() =>
        Effect.sync(() => {
          process.env["PATH"] = path
          rmSync(cache, { recursive: true })
        })
      )
      const build = Effect.flatMap(Image, (images) => images.build({ arch: host }))
      const { reason } = yield* Effect.flip(Effect.provide(build, Image.layerAt(cache)))
      assert.strictEqual(reason._tag, "HostUnsupported")
      assert.include(reason.message, "flock")
    })
  )

  it("are programs in absolute directories of PATH, or files", () => {
    const build = { arch: host, host, root: true } as const
    const names = missingTools({ ...build, directories: ["usr/bin", "", "."] }).map((it) => it.package)
    assert.include(names, "bash")
    assert.notInclude(
      missingTools({ ...build, directories: ["/usr/bin", "/bin"] }).map((it) => it.package),
      "bash"
    )
  })
})
