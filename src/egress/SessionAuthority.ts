/**
 * The certificate authority of one session: its guest trusts the certificates that the border shows. Its key never leaves this
 * process's memory.
 *
 * Certificates (RFC 5280) are only written, never parsed, and all have one form, so a library is not needed.
 */
import { createHash, generateKeyPairSync, type KeyObject, randomBytes, sign } from "node:crypto"

/** A certificate in PEM, and its key. */
export interface Identity {
  readonly cert: string
  readonly key: KeyObject
}

export interface SessionAuthority {
  /** The authority's own certificate, as PEM. */
  readonly certificate: string
  /** The certificate for a server's name; it is valid for at least another day. */
  readonly identity: (name: string) => Identity
}

const der = (tag: number, ...parts: ReadonlyArray<Buffer>): Buffer => {
  const body = Buffer.concat(parts)
  const digits = body.length.toString(16)
  const size = Buffer.from(digits.padStart(digits.length + (digits.length % 2), "0"), "hex")
  const length = body.length < 128 ? size : Buffer.concat([Buffer.from([0x80 | size.length]), size])
  return Buffer.concat([Buffer.from([tag]), length, body])
}

const sequence = (...parts: ReadonlyArray<Buffer>): Buffer => der(0x30, ...parts)
const octets = (...parts: ReadonlyArray<Buffer>): Buffer => der(0x04, ...parts)
const oid = (hex: string): Buffer => der(0x06, Buffer.from(hex, "hex"))
const yes = der(0x01, Buffer.from([0xff]))

/** UTCTime up to 2049, and GeneralizedTime after it. */
const time = (ms: number): Buffer => {
  const digits = new Date(ms).toISOString().replace(/[-:T]|\.\d+/g, "")
  return ms < Date.UTC(2050) ? der(0x17, Buffer.from(digits.slice(2))) : der(0x18, Buffer.from(digits))
}

const commonName = (text: string): Buffer => sequence(der(0x31, sequence(oid("550403"), der(0x0c, Buffer.from(text)))))

const ecdsaWithSha256 = sequence(oid("2a8648ce3d040302"))

const extension = (id: string, critical: boolean, value: Buffer): Buffer =>
  sequence(oid(id), ...(critical ? [yes] : []), octets(value))

const spki = (key: KeyObject): Buffer => key.export({ type: "spki", format: "der" })

/** The identifier of a key: some bytes of its hash. */
const keyId = (key: KeyObject): Buffer => createHash("sha256").update(spki(key)).digest().subarray(0, 20)

/** Bits of KeyUsage. */
const signsCertificates = Buffer.from([1, 0x06])
const signsHandshakes = Buffer.from([7, 0x80])

const keyUsage = (bits: Buffer): Buffer => extension("551d0f", true, der(0x03, bits))

const pair = () => generateKeyPairSync("ec", { namedCurve: "prime256v1" })

const issue = (
  issuer: { readonly name: string; readonly key: KeyObject; readonly publicKey: KeyObject },
  subject: { readonly name: string; readonly publicKey: KeyObject },
  [from, to]: readonly [from: number, to: number],
  extensions: ReadonlyArray<Buffer>
): string => {
  const serial = randomBytes(16)
  // DER wants a positive number without leading zeros.
  serial[0] = ((serial[0] ?? 0) & 0x7f) | 0x40
  const signed = sequence(
    der(0xa0, der(0x02, Buffer.from([2]))),
    der(0x02, serial),
    ecdsaWithSha256,
    commonName(issuer.name),
    sequence(time(from), time(to)),
    commonName(subject.name),
    spki(subject.publicKey),
    der(
      0xa3,
      sequence(
        ...extensions,
        extension("551d0e", false, octets(keyId(subject.publicKey))),
        extension("551d23", false, sequence(der(0x80, keyId(issuer.publicKey))))
      )
    )
  )
  const signature = sign("sha256", signed, issuer.key)
  const whole = sequence(signed, ecdsaWithSha256, der(0x03, Buffer.from([0]), signature))
  const lines = whole.toString("base64").match(/.{1,64}/g) ?? []
  return `-----BEGIN CERTIFICATE-----\n${lines.join("\n")}\n-----END CERTIFICATE-----\n`
}

const day = 24 * 60 * 60 * 1000
const authorityDays = 90
const serverDays = 3

/** The most servers' certificates that are kept. */
const maxKept = 256

/**
 * Makes an authority. `now` is in ms since 1970; certificates are valid from a day before it, for guests whose clock is
 * behind. The authority's own is valid for 90 days.
 */
export const make = (now: () => number): SessionAuthority => {
  const mine = pair()
  // Names must differ, because a guest may have several in its list of authorities.
  const name = `exec-sandbox session ${randomBytes(8).toString("hex")}`
  const issuer = { name, key: mine.privateKey, publicKey: mine.publicKey }
  const servers = pair()
  const kept = new Map<string, { readonly cert: string; readonly until: number }>()
  const span = (days: number): readonly [number, number] => [now() - day, now() + days * day]
  return {
    certificate: issue(issuer, issuer, span(authorityDays), [
      extension("551d13", true, sequence(yes, der(0x02, Buffer.from([0])))),
      keyUsage(signsCertificates)
    ]),
    identity: (server) => {
      const known = kept.get(server)
      if (known !== undefined && known.until > now() + day) return { cert: known.cert, key: servers.privateKey }
      const validity = span(serverDays)
      // A common name has at most 64 characters; what counts is the alternative name.
      const subject = { name: server.length <= 64 ? server : "server", publicKey: servers.publicKey }
      const cert = issue(issuer, subject, validity, [
        extension("551d13", true, sequence()),
        keyUsage(signsHandshakes),
        extension("551d25", false, sequence(oid("2b06010505070301"))),
        extension("551d11", false, sequence(der(0x82, Buffer.from(server))))
      ])
      kept.delete(server)
      kept.set(server, { cert, until: validity[1] })
      if (kept.size > maxKept) for (const oldest of kept.keys()) if (kept.delete(oldest)) break
      return { cert, key: servers.privateKey }
    }
  }
}
