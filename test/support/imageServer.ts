/** Images with made-up content, and a web server that a store pulls them from. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { execFileSync } from "node:child_process"
import { createHash, randomBytes } from "node:crypto"
import { once } from "node:events"
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs"
import { createServer, type IncomingMessage, type ServerResponse } from "node:http"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { Image } from "../../src/Image.ts"
import { fileNames, imageId, type Manifest, parts } from "../../src/image/Manifest.ts"
import type { SandboxError } from "../../src/SandboxError.ts"

export const temporary = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "image-"))),
  (path) => Effect.sync(() => rmSync(path, { recursive: true, force: true }))
)

const sha256 = (content: Buffer): string => createHash("sha256").update(content).digest("hex")

export const qcow2 = (backingOffset = 0n): Buffer => {
  const header = Buffer.alloc(104)
  header.write("QFI\xfb", 0, "latin1")
  header.writeBigUInt64BE(backingOffset, 8)
  return header
}

/** The tar file of an image with made-up content: half a megabyte. */
export const makeArchive = (
  change: { readonly scratch?: Buffer; readonly prepare?: (directory: string) => void } = {}
) =>
  Effect.gen(function* () {
    const directory = join(yield* temporary, "image")
    mkdirSync(directory)
    const content = {
      kernel: randomBytes(100_000),
      initrd: randomBytes(50_000),
      root: randomBytes(350_000),
      scratch: change.scratch ?? qcow2()
    }
    for (const part of parts) writeFileSync(join(directory, fileNames[part]), content[part])
    const fileOf = (bytes: Buffer) => ({ size: bytes.length, sha256: sha256(bytes) })
    const named = {
      format: 1 as const,
      arch: "amd64" as const,
      languages: ["python"],
      files: {
        kernel: fileOf(content.kernel),
        initrd: fileOf(content.initrd),
        root: fileOf(content.root),
        scratch: fileOf(content.scratch)
      }
    }
    const manifest: Manifest = {
      ...named,
      id: imageId(named),
      created: "2026-01-01T00:00:00.000Z",
      inputs: "0".repeat(32),
      system: "0".repeat(32),
      kernelVersion: "6.12",
      agentSha256: "0".repeat(64),
      packages: [],
      npm: []
    }
    writeFileSync(join(directory, "manifest.json"), JSON.stringify(manifest))
    change.prepare?.(directory)
    const archive = execFileSync("tar", ["-cf", "-", "-C", directory, "manifest.json", ...Object.values(fileNames)], {
      maxBuffer: 1e8
    })
    return { id: manifest.id, archive, sha256: sha256(archive) }
  })

/** A web server for one test; `answer` gets the number of the request, from 1. Records each request's Range. */
export const serve = (answer: (request: IncomingMessage, response: ServerResponse, count: number) => void) =>
  Effect.gen(function* () {
    const ranges: Array<string | undefined> = []
    const server = createServer((request, response) => {
      ranges.push(request.headers.range)
      answer(request, response, ranges.length)
    })
    yield* Effect.acquireRelease(
      Effect.promise(() => once(server.listen(0, "127.0.0.1"), "listening")),
      () => Effect.sync(() => server.close().closeAllConnections())
    )
    const address = server.address()
    if (address === null || typeof address === "string") throw new Error("no port")
    return { url: `http://127.0.0.1:${address.port}/image.tar`, ranges }
  })

/**
 * Sends `content` as a correct server does, from the requested offset. With `limit` it breaks the connection after that many bytes,
 * once the client has written some to its `file`: when a connection breaks, `fetch` discards what was received but not yet read.
 */
export const send = (
  content: Buffer,
  request: IncomingMessage,
  response: ServerResponse,
  limit = Infinity,
  file = ""
): void => {
  const from = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? "")?.[1] ?? 0)
  const rest = content.subarray(from)
  response.writeHead(from > 0 ? 206 : 200, {
    "content-length": rest.length,
    ...(from > 0 ? { "content-range": `bytes ${from}-${content.length - 1}/${content.length}` } : {})
  })
  if (rest.length <= limit) return void response.end(rest)
  response.write(rest.subarray(0, limit))
  const look = setInterval(() => {
    if (!response.destroyed && (statSync(file, { throwIfNoEntry: false })?.size ?? 0) <= from) return
    clearInterval(look)
    response.destroy()
  }, 5)
}

/** The file of an incomplete download. */
export const partial = (cache: string, sha256: string): string => join(cache, "downloads", `${sha256}.part`)

/** Runs a test with an empty store. */
export const withStore = <A, E>(
  test: (cache: string, images: Image["Service"]) => Effect.Effect<A, E, Scope.Scope>
): Effect.Effect<A, E, Scope.Scope> =>
  Effect.gen(function* () {
    const cache = join(yield* temporary, "cache")
    return yield* Effect.flatMap(Image, (images) => test(cache, images)).pipe(Effect.provide(Image.layerAt(cache)))
  })

export const problemOf = (error: SandboxError): string =>
  error.reason._tag === "ImageUnavailable" ? error.reason.problem : error.reason._tag

/** Everything in the store: downloads, work in progress, images. */
export const leftovers = (cache: string): ReadonlyArray<string> =>
  ["downloads", "tmp", "images", "current"].flatMap((name) =>
    existsSync(join(cache, name)) ? readdirSync(join(cache, name)).map((it) => `${name}/${it}`) : []
  )
