/** The store of images: pull, verify, export and remove. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import { execFileSync, spawn } from "node:child_process"
import { randomBytes } from "node:crypto"
import { once } from "node:events"
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync
} from "node:fs"
import { join } from "node:path"
import { Image } from "../src/Image.ts"
import { epoch, parts } from "../src/image/Manifest.ts"
import { withLock } from "../src/internal/Lock.ts"
import { Progress } from "../src/internal/Progress.ts"
import {
  leftovers,
  makeArchive,
  partial,
  problemOf,
  qcow2,
  send,
  serve,
  temporary,
  withStore
} from "./support/imageServer.ts"

describe("an empty store", () => {
  it.live("has no image, and reading it creates no file", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        assert.isTrue(Option.isNone(yield* images.find("amd64")))
        assert.deepStrictEqual(yield* images.list, [])
        const error = yield* Effect.flip(images.verify("0".repeat(32)))
        assert.strictEqual(problemOf(error), "there is no such image")
        assert.strictEqual(problemOf(yield* Effect.flip(images.remove("../../etc"))), "there is no such image")
        assert.isFalse(existsSync(cache))
      })
    )
  )
})

describe("pull", () => {
  it.live("gives the complete image of this version, and ensure then does nothing", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        const { archive, id, sha256 } = yield* makeArchive()
        const server = yield* serve((request, response) => send(archive, request, response))
        const seen: Array<[number, number | undefined]> = []
        const image = yield* images.pull({ url: server.url, sha256 }).pipe(
          Effect.provideService(Progress, (event) =>
            Effect.sync(() => {
              if (event.done !== undefined) seen.push([event.done, event.total])
            })
          )
        )
        assert.strictEqual(image.id, id)
        assert.deepStrictEqual(seen.at(-1), [archive.length, archive.length])
        assert.strictEqual((yield* images.ensure("amd64")).id, id)
        assert.deepStrictEqual(
          (yield* images.list).map((it) => it.id),
          [id]
        )
        assert.isUndefined(yield* images.verify(id))
        assert.strictEqual(image.files.arch, "amd64")
        for (const part of parts) {
          const file = statSync(image.files[part])
          assert.deepStrictEqual([file.size, file.mtimeMs], [image.manifest.files[part].size, epoch * 1000])
        }
        assert.deepStrictEqual(readdirSync(join(cache, "downloads")), [])
        assert.deepStrictEqual(readdirSync(join(cache, "tmp")), [])
        assert.isTrue(Option.isNone(yield* images.find("arm64")))
      })
    )
  )

  it.live("continues where the connection broke, as often as needed", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        const { archive, id, sha256 } = yield* makeArchive()
        const server = yield* serve((request, response) =>
          send(archive, request, response, 150_000, partial(cache, sha256))
        )
        assert.strictEqual((yield* images.pull({ url: server.url, sha256 })).id, id)
        assert.isAbove(server.ranges.length, 3)
        assert.isUndefined(server.ranges[0])
        for (const range of server.ranges.slice(1)) assert.match(range ?? "", /^bytes=[1-9]\d*-$/)
      })
    )
  )

  it.live("starts again with a server that ignores Range", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        const { archive, id, sha256 } = yield* makeArchive()
        const server = yield* serve((request, response, count) => {
          delete request.headers.range
          send(archive, request, response, count === 1 ? 200_000 : Infinity, partial(cache, sha256))
        })
        assert.strictEqual((yield* images.pull({ url: server.url, sha256 })).id, id)
        assert.strictEqual(server.ranges.length, 2)
      })
    )
  )

  it.live("tries again when a server is busy", () =>
    withStore((_, images) =>
      Effect.gen(function* () {
        const { archive, id, sha256 } = yield* makeArchive()
        const server = yield* serve((request, response, count) =>
          count < 3 ? void response.writeHead(503).end() : send(archive, request, response)
        )
        assert.strictEqual((yield* images.pull({ url: server.url, sha256 })).id, id)
      })
    )
  )

  it.live("gives up on a server that makes no progress, and keeps the part it has", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        const { archive, id, sha256 } = yield* makeArchive()
        let repaired = false
        const server = yield* serve((request, response) =>
          repaired || request.headers.range === undefined
            ? send(archive, request, response, repaired ? Infinity : 100_000, partial(cache, sha256))
            : request.socket.destroy()
        )
        const error = yield* Effect.flip(images.pull({ url: server.url, sha256 }))
        assert.strictEqual(error.reason._tag, "ImageUnavailable")
        assert.strictEqual(error.retry, "safe")
        assert.deepStrictEqual(leftovers(cache), [`downloads/${sha256}.part`])
        repaired = true
        assert.strictEqual((yield* images.pull({ url: server.url, sha256 })).id, id)
        assert.match(server.ranges.at(-1) ?? "", /^bytes=[1-9]/)
      })
    )
  )

  it.live("fails at once on 404", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        const server = yield* serve((_, response) => void response.writeHead(404).end("not here"))
        const error = yield* Effect.flip(images.pull({ url: server.url, sha256: "0".repeat(64) }))
        assert.include(problemOf(error), "the server answered 404")
        assert.strictEqual(server.ranges.length, 1)
        assert.deepStrictEqual(leftovers(cache), [])
      })
    )
  )

  it.live("refuses a file with another hash, and keeps none of it", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        const { archive } = yield* makeArchive()
        const server = yield* serve((request, response) => send(archive, request, response))
        const wanted = "ab".repeat(32)
        const error = yield* Effect.flip(images.pull({ url: server.url, sha256: wanted }))
        assert.include(problemOf(error), `its SHA-256 is not ${wanted}`)
        assert.deepStrictEqual(leftovers(cache), [])
      })
    )
  )

  it.live(
    "downloads from the start when the part left by an earlier call belongs to another file, shorter or longer",
    () =>
      withStore((cache, images) =>
        Effect.gen(function* () {
          const { archive, id, sha256 } = yield* makeArchive()
          const server = yield* serve((request, response) =>
            Number(/\d+/.exec(request.headers.range ?? "0")?.[0]) >= archive.length
              ? void response.writeHead(416, { "content-range": `bytes */${archive.length}` }).end()
              : send(archive, request, response)
          )
          for (const size of [1000, archive.length, archive.length + 1000]) {
            mkdirSync(join(cache, "downloads"), { recursive: true })
            writeFileSync(join(cache, "downloads", `${sha256}.part`), randomBytes(size))
            assert.strictEqual((yield* images.pull({ url: server.url, sha256 })).id, id)
          }
        })
      )
  )

  it.live("refuses an image whose files differ from its manifest", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        const cases = [
          [
            "root.erofs is damaged",
            yield* makeArchive({ prepare: (it) => writeFileSync(join(it, "root.erofs"), "x") })
          ],
          [
            "kernel is not a regular file",
            yield* makeArchive({
              prepare: (it) => {
                rmSync(join(it, "kernel"))
                symlinkSync("/etc/passwd", join(it, "kernel"))
              }
            })
          ],
          ["the scratch disk refers to another file", yield* makeArchive({ scratch: qcow2(104n) })],
          ["the scratch disk is no qcow2 file", yield* makeArchive({ scratch: Buffer.from("short") })]
        ] as const
        for (const [problem, { archive, sha256 }] of cases) {
          const server = yield* serve((request, response) => send(archive, request, response))
          assert.strictEqual(problemOf(yield* Effect.flip(images.pull({ url: server.url, sha256 }))), problem)
          assert.deepStrictEqual(readdirSync(join(cache, "tmp")), [])
          assert.deepStrictEqual(yield* images.list, [])
        }
      })
    )
  )

  it.live("checks its arguments first", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        const url = "http://127.0.0.1:9/image.tar"
        const short = yield* Effect.flip(images.pull({ url, sha256: "abc" }))
        const file = yield* Effect.flip(images.pull({ url: "file:///etc/passwd", sha256: "0".repeat(64) }))
        assert.deepStrictEqual([short.reason._tag, file.reason._tag], ["InvalidInput", "InvalidInput"])
        assert.isFalse(existsSync(cache))
      })
    )
  )

  it.live("when interrupted leaves only the part it has, and the next call continues it", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        const { archive, id, sha256 } = yield* makeArchive()
        const server = yield* serve((request, response, count) => {
          if (count > 1) return send(archive, request, response)
          response.writeHead(200, { "content-length": archive.length })
          response.write(archive.subarray(0, 120_000))
        })
        const part = join(cache, "downloads", `${sha256}.part`)
        const pulling = yield* Effect.forkChild(images.pull({ url: server.url, sha256 }))
        yield* Effect.suspend(() => Effect.succeed(existsSync(part) && statSync(part).size === 120_000)).pipe(
          Effect.tap((there) => (there ? Effect.void : Effect.sleep(5))),
          Effect.repeat({ until: (there) => there })
        )
        yield* Fiber.interrupt(pulling)
        assert.deepStrictEqual(leftovers(cache), [`downloads/${sha256}.part`])
        assert.strictEqual((yield* images.pull({ url: server.url, sha256 })).id, id)
        assert.deepStrictEqual(server.ranges, [undefined, "bytes=120000-"])
      })
    )
  )

  it.live("by two processes, one of which is killed: the other takes over and finishes", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        const { archive, id, sha256 } = yield* makeArchive()
        const server = yield* serve((request, response, count) => {
          if (count > 1) return send(archive, request, response)
          response.writeHead(200, { "content-length": archive.length })
          response.write(archive.subarray(0, 120_000))
        })
        const code = `
          import * as Effect from ${JSON.stringify(import.meta.resolve("effect/Effect"))}
          import { Image } from ${JSON.stringify(new URL("../src/Image.ts", import.meta.url).href)}
          import { Progress } from ${JSON.stringify(new URL("../src/internal/Progress.ts", import.meta.url).href)}
          await Effect.runPromise(Effect.flatMap(Image, (it) => it.pull(${JSON.stringify({ url: server.url, sha256 })})).pipe(
            Effect.provide(Image.layerAt(${JSON.stringify(cache)})),
            Effect.provideService(Progress, (event) => Effect.sync(() => event.done >= 120000 && console.log("on the way")))))`
        const child = spawn(process.execPath, ["--input-type=module", "-e", code], {
          stdio: ["ignore", "pipe", "inherit"]
        })
        yield* Effect.promise(() => once(child.stdout, "data"))
        const pulling = yield* Effect.forkChild(images.pull({ url: server.url, sha256 }), { startImmediately: true })
        child.kill("SIGKILL")
        assert.strictEqual((yield* Fiber.join(pulling)).id, id)
        assert.deepStrictEqual(server.ranges, [undefined, "bytes=120000-"])
        assert.deepStrictEqual(readdirSync(join(cache, "tmp")), [])
      })
    )
  )

  it.live("reports a full disk", (context) =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        mkdirSync(cache, { recursive: true })
        const mounted = yield* Effect.acquireRelease(
          Effect.try(() =>
            execFileSync("mount", ["-t", "tmpfs", "-o", "size=256k", "tmpfs", cache], { stdio: "ignore" })
          ),
          () => Effect.sync(() => execFileSync("umount", ["--lazy", cache]))
        ).pipe(Effect.option)
        if (Option.isNone(mounted)) return context.skip("needs the right to mount")
        const { archive, sha256 } = yield* makeArchive()
        const server = yield* serve((request, response) => send(archive, request, response))
        const error = yield* Effect.flip(images.pull({ url: server.url, sha256 }))
        assert.strictEqual(problemOf(error), `no space left for ${cache}`)
        assert.deepStrictEqual(yield* images.list, [])
      })
    )
  )
})

describe("an image in the store", () => {
  const pulled = Effect.fnUntraced(function* (images: Image["Service"]) {
    const { archive, sha256 } = yield* makeArchive()
    const server = yield* serve((request, response) => send(archive, request, response))
    return yield* images.pull({ url: server.url, sha256 })
  })

  it.live("that was modified is not used", () =>
    withStore((_, images) =>
      Effect.gen(function* () {
        const image = yield* pulled(images)
        const content = readFileSync(image.files.root)
        writeFileSync(image.files.root, content)
        assert.isTrue(Option.isNone(yield* images.find("amd64")))
        assert.deepStrictEqual(yield* images.list, [])
      })
    )
  )

  it.live("that was damaged without a change of size or time is found by verify", () =>
    withStore((_, images) =>
      Effect.gen(function* () {
        const image = yield* pulled(images)
        const content = readFileSync(image.files.root)
        content[1234] = (content[1234] ?? 0) ^ 1
        writeFileSync(image.files.root, content)
        utimesSync(image.files.root, epoch, epoch)
        assert.strictEqual(Option.getOrThrow(yield* images.find("amd64")).id, image.id)
        assert.strictEqual(yield* images.verify(image.id), "root.erofs is damaged")
      })
    )
  )

  it.live("with a damaged manifest counts as missing, and pulling it again repairs it", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        const { archive, sha256 } = yield* makeArchive()
        const server = yield* serve((request, response) => send(archive, request, response))
        const image = yield* images.pull({ url: server.url, sha256 })
        writeFileSync(join(image.directory, "manifest.json"), "{")
        const again = yield* Effect.flatMap(Image, Effect.succeed).pipe(
          Effect.provide(Image.layerAt(cache), { local: true })
        )
        assert.isTrue(Option.isNone(yield* again.find("amd64")))
        assert.strictEqual((yield* again.pull({ url: server.url, sha256 })).id, image.id)
        assert.isUndefined(yield* again.verify(image.id))
      })
    )
  )

  it.live("is gone after remove", () =>
    withStore((cache, images) =>
      Effect.gen(function* () {
        const image = yield* pulled(images)
        yield* images.remove(image.id)
        assert.isTrue(Option.isNone(yield* images.find("amd64")))
        assert.deepStrictEqual(leftovers(cache), [])
      })
    )
  )

  it.live("exported and pulled elsewhere is the same", () =>
    withStore((_, images) =>
      Effect.gen(function* () {
        const image = yield* pulled(images)
        const path = join(yield* temporary, "export.tar")
        const sha256 = yield* images.export(image.id, path)
        const server = yield* serve((request, response) => send(readFileSync(path), request, response))
        const copy = yield* withStore((_, elsewhere) => elsewhere.pull({ url: server.url, sha256 }))
        assert.deepStrictEqual(copy.manifest, image.manifest)
      })
    )
  )
})

it.live("the next build or pull removes the leftovers of a dead process, but not the work of a living one", () =>
  withStore((cache, images) =>
    Effect.gen(function* () {
      for (const name of ["build-amd64", "build-arm64"])
        mkdirSync(join(cache, "tmp", name, "half"), { recursive: true })
      const server = yield* serve((_, response) => void response.writeHead(404).end())
      yield* withLock(
        join(cache, "locks", "build-arm64.lock"),
        Effect.flip(images.pull({ url: server.url, sha256: "0".repeat(64) }))
      )
      assert.deepStrictEqual(readdirSync(join(cache, "tmp")), ["build-arm64"])
    })
  )
)
