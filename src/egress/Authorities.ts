/**
 * Whom the host trusts beside everybody's certificate authorities: a network that looks into TLS has one of its own, and
 * without it a guest could reach nothing there. They are handed to guests that have a network.
 */
import * as fs from "node:fs"
import * as tls from "node:tls"

/** Bytes of PEM that a guest is given at the most. */
const maxBytes = 64 * 1024

/** Where programs are told about authorities. */
const variables = ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"] as const

const blocks = /-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----/g
const bare = (pem: string): string => pem.replace(/-----[A-Z ]+-----|\s/g, "")

const known = new Map<string, { readonly stamp: string; readonly pems: ReadonlyArray<string> }>()

const extrasOf = (file: string, common: () => ReadonlySet<string>): ReadonlyArray<string> => {
  try {
    const { mtimeMs, size } = fs.statSync(file)
    const stamp = `${mtimeMs} ${size}`
    const before = known.get(file)
    if (before?.stamp === stamp) return before.pems
    const everybodys = common()
    const pems = [...fs.readFileSync(file, "latin1").matchAll(blocks)]
      .map(([pem]) => pem)
      .filter((pem) => !everybodys.has(bare(pem)))
    known.set(file, { stamp, pems })
    return pems
  } catch {
    // Who named a file that cannot be read has no authority from it, as with every program that reads the variable.
    return []
  }
}

type Environment = { readonly [name: string]: string | undefined }

/** All of them, each as PEM. */
export const extras = (env: Environment = process.env): ReadonlyArray<string> => {
  let everybodys: ReadonlySet<string> | undefined
  const common = () => (everybodys ??= new Set(tls.rootCertificates.map(bare)))
  const files = new Set(variables.map((name) => env[name] ?? "").filter((file) => file !== ""))
  return [...new Set([...files].flatMap((file) => extrasOf(file, common)))]
}

/** The authorities as PEM, empty when there are none; at most 64 KiB of them. */
export const authorities = (env?: Environment): string => {
  // A list's own additions are at its end, behind those of the distribution: they come first.
  let text = ""
  for (const pem of extras(env).toReversed()) if (text.length + pem.length < maxBytes) text += `${pem}\n`
  return text
}

/** What tells a guest's programs about authorities, where the system's own list is not enough for them. */
const environment = {
  NODE_EXTRA_CA_CERTS: "/run/exec-sandbox-authorities.pem",
  SSL_CERT_FILE: "/etc/ssl/certs/ca-certificates.crt",
  REQUESTS_CA_BUNDLE: "/etc/ssl/certs/ca-certificates.crt"
}

/** What a guest with a network is given of the host's trust, and of `own`, an authority of its session. */
export const grant = (own = ""): { readonly authorities: string; readonly env: Readonly<Record<string, string>> } => {
  const text = own + authorities()
  return { authorities: text, env: text === "" ? {} : environment }
}
