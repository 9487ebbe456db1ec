/**
 * Looks for secrets in what a server sends: one that repeats a request's headers would show the guest what it must not see.
 *
 * A value is found as it is, percent-encoded, escaped for JSON, and in base64 and base64url wherever it begins; a body is
 * looked at as its content-encoding decodes it, while it passes.
 */
import * as stream from "node:stream"
import * as zlib from "node:zlib"
import { type Bound, inBase64 } from "./Placeholders.ts"

/** Shorter values than this occur by chance. */
export const shortest = 6
/** A piece is held back when it ends with so many bytes of a pattern, because the next one may complete it. */
const suspicious = 4
/** A body that grows more than this when it is decoded is an attack on this host, beyond the first 64 MiB. */
const maxRatio = 200
const freely = 64 * 1024 * 1024

const patternsOf = (value: string): ReadonlyArray<Buffer> => {
  const percent = encodeURIComponent(value)
  const texts = [
    value,
    percent,
    percent.replaceAll(/%../g, (code) => code.toLowerCase()),
    percent.replaceAll("%20", "+"),
    JSON.stringify(value).slice(1, -1),
    ...inBase64(value),
    ...inBase64(value, "base64url")
  ]
  return [...new Set(texts)].map((text) => Buffer.from(text))
}

/** What a stretch of bytes holds: a secret, the possible beginning of one at its end, or neither. */
type Seen = { readonly secret: string } | "maybe" | "clear"

/** Looks at a stream of bytes, piece by piece. */
export type Look = (piece: Uint8Array) => Seen

export interface Watch {
  /** The name of a secret in a text. */
  readonly inText: (text: string) => string | undefined
  readonly look: () => Look
}

/** Watches for these secrets; `undefined` where there is none that can be looked for. */
export const watch = (secrets: ReadonlyArray<Bound>): Watch | undefined => {
  const known = secrets
    .filter(({ value }) => value.length >= shortest)
    .flatMap(({ name, value }) => patternsOf(value).map((pattern) => ({ name, pattern })))
  if (known.length === 0) return undefined
  const longest = Math.max(...known.map(({ pattern }) => pattern.length))
  const find = (bytes: Buffer): string | undefined => known.find(({ pattern }) => bytes.includes(pattern))?.name
  const endsWithin = (bytes: Buffer): boolean =>
    known.some(({ pattern }) => {
      const head = pattern.subarray(0, suspicious)
      const from = Math.max(0, bytes.length - pattern.length + 1)
      for (let at = bytes.indexOf(head, from); at >= 0; at = bytes.indexOf(head, at + 1)) {
        if (bytes.subarray(at).equals(pattern.subarray(0, bytes.length - at))) return true
      }
      return false
    })
  return {
    inText: (text) => find(Buffer.from(text, "latin1")),
    look: () => {
      let before = Buffer.alloc(0)
      return (piece) => {
        const bytes = Buffer.concat([before, piece])
        before = bytes.subarray(Math.max(0, bytes.length - longest + 1))
        const secret = find(bytes)
        return secret !== undefined ? { secret } : endsWithin(bytes) ? "maybe" : "clear"
      }
    }
  }
}

const decoders: Readonly<Record<string, () => stream.Transform>> = {
  gzip: () => zlib.createGunzip(),
  "x-gzip": () => zlib.createGunzip(),
  deflate: () => zlib.createInflate(),
  br: () => zlib.createBrotliDecompress(),
  zstd: () => zlib.createZstdDecompress()
}

/** A content-encoding that cannot be decoded, or that grows without end. */
export class Unreadable extends Error {}

/** A secret was found. */
export class Reflected extends Error {
  readonly secret: string
  constructor(secret: string) {
    super(`the secret ${secret}`)
    this.secret = secret
  }
}

/**
 * Passes a body on unchanged, as long as no secret is in it; then it fails with `Reflected`, before the secret has passed.
 * `encoding` is its Content-Encoding.
 */
export const passing = (look: Look, encoding: string | undefined): stream.Transform => {
  const codings = (encoding ?? "")
    .split(",")
    .map((it) => it.trim().toLowerCase())
    .filter((it) => it !== "" && it !== "identity")
  const [coding] = codings
  const decoder = coding === undefined ? undefined : codings.length === 1 ? decoders[coding]?.() : undefined
  let held: Array<Buffer> = []
  let state: Seen = "clear"
  let bytesIn = 0
  let bytesOut = 0
  const pass = new stream.Transform({
    transform: (piece: Buffer, _, done) => {
      if (coding !== undefined && decoder === undefined) {
        return done(new Unreadable(`a content-encoding that cannot be checked: ${String(encoding).slice(0, 80)}`))
      }
      held.push(piece)
      bytesIn += piece.length
      const checked = (): void => {
        if (typeof state === "object") return done(new Reflected(state.secret))
        if (state === "clear") {
          for (const it of held) pass.push(it)
          held = []
        }
        done()
      }
      if (decoder !== undefined) return void decoder.write(piece, checked)
      state = look(piece)
      checked()
    },
    flush: (done) => {
      const end = (): void => {
        if (typeof state === "object") return done(new Reflected(state.secret))
        for (const it of held) pass.push(it)
        done()
      }
      if (decoder === undefined) return end()
      decoder.once("end", end)
      decoder.end()
    },
    destroy: (error, done) => {
      decoder?.destroy()
      done(error)
    }
  })
  decoder?.on("data", (decoded: Buffer) => {
    bytesOut += decoded.length
    if (bytesOut > freely && bytesOut > bytesIn * maxRatio) {
      pass.destroy(new Unreadable("a compressed response that grows without end"))
    }
    if (typeof state !== "object") state = look(decoded)
  })
  decoder?.on("error", () => pass.destroy(new Unreadable("a content-encoding that cannot be decoded")))
  return pass
}
