/**
 * The certificate authorities that the host trusts in addition to the public ones: a network that inspects TLS has its own,
 * and without it a guest could reach nothing there. Guests with a network get them.
 */
import * as fs from "node:fs"
import * as tls from "node:tls"

/** The most bytes of PEM that a guest gets. */
const maxBytes = 64 * 1024

/** The variables that name files of authorities. */
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
    const publicOnes = common()
    const pems = [...fs.readFileSync(file, "latin1").matchAll(blocks)]
      .map(([pem]) => pem)
      .filter((pem) => !publicOnes.has(bare(pem)))
    known.set(file, { stamp, pems })
    return pems
  } catch {
    // A file that cannot be read adds nothing, as in every program that reads the variable.
    return []
  }
}

type Environment = { readonly [name: string]: string | undefined }

/** The additional authorities, each as PEM. */
export const extras = (env: Environment = process.env): ReadonlyArray<string> => {
  let publicOnes: ReadonlySet<string> | undefined
  const common = () => (publicOnes ??= new Set(tls.rootCertificates.map(bare)))
  const files = new Set(variables.map((name) => env[name] ?? "").filter((file) => file !== ""))
  return [...new Set([...files].flatMap((file) => extrasOf(file, common)))]
}

/** The additional authorities as one PEM text of at most 64 KiB; empty when there are none. */
export const authorities = (env?: Environment): string => {
  // Local additions are at the end of a list, after the distribution's, and matter most: start there.
  let text = ""
  for (const pem of extras(env).toReversed()) if (text.length + pem.length < maxBytes) text += `${pem}\n`
  return text
}

/** The variables for those of the guest's programs that do not read the system's list. */
const environment = {
  NODE_EXTRA_CA_CERTS: "/run/exec-sandbox-authorities.pem",
  SSL_CERT_FILE: "/etc/ssl/certs/ca-certificates.crt",
  REQUESTS_CA_BUNDLE: "/etc/ssl/certs/ca-certificates.crt"
}

/** The authorities for a guest with a network, `own` (its session's) first, and the variables that name them. */
export const grant = (own = ""): { readonly authorities: string; readonly env: Readonly<Record<string, string>> } => {
  const text = own + authorities()
  return { authorities: text, env: text === "" ? {} : environment }
}
