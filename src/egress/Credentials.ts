/**
 * Credentials that this host has for its registries. A guest gets none of them: the border replaces placeholders in requests.
 * Where that is not possible, the error of a failed installation says that there are credentials.
 */

type Env = { readonly [name: string]: string | undefined }

/** A credential that the border can put in: its `value`, and the guest's settings with `standIn` in its place. */
export interface Credential {
  readonly value: string
  readonly settings: (standIn: string) => Readonly<Record<string, string>>
}

/** The credential for one registry. `Withheld`: one that the border cannot put in. */
export type Found = Credential | "Withheld" | undefined

/** npm's settings with credentials, for one registry (`//host/path/:_authToken`) or, in old files, for all. */
const npmSecret = /^(?:(\/\/.+):)?(_authToken|_auth|_password|certfile|keyfile)$/i

/** npm's syntax for an environment variable in a setting. */
const expanded = (text: string, env: Env): string =>
  text.replaceAll(/\$\{([^}]+)\}/g, (all, name: string) => env[name] ?? all)

const ended = (text: string): string => text.replace(/\/*$/, "/")

/** The credential in npm's settings for a registry. */
export const inNpm = (settings: ReadonlyMap<string, string>, env: Env): ((url: URL) => Found) => {
  const all = [...settings]
  for (const [name, value = ""] of Object.entries(env)) {
    const setting = /^npm_config_(.+)$/i.exec(name)?.[1]
    if (setting !== undefined) all.push([setting, value])
  }
  const known = all.flatMap(([name, value]) => {
    const [found, place = "", kind = ""] = npmSecret.exec(name) ?? []
    return found === undefined
      ? []
      : [{ name, place, token: kind.toLowerCase() === "_authtoken", value: expanded(value, env) }]
  })
  return (url) => {
    const { host, password, pathname, username } = url
    const mine = known.filter(({ place }) => ended(`//${host}${pathname}`).startsWith(ended(place)))
    const [one] = mine
    // Only a token for this registry is put in; anything else stays on the host.
    if (one?.token === true && one.place !== "" && mine.every(({ token }) => token)) {
      const { name, value } = mine.at(-1) ?? one
      return { value, settings: (standIn) => ({ [`npm_config_${name}`]: standIn }) }
    }
    return one !== undefined || username !== "" || password !== "" ? "Withheld" : undefined
  }
}

/** Decodes percent-encoding; a percent sign that does not start one stays. */
export const unquoted = (text: string): string =>
  text.replaceAll(/(?:%[0-9a-f]{2})+/gi, (all) => Buffer.from(all.replaceAll("%", ""), "hex").toString())

/** The credential in an index's URL, or in the host's netrc. */
export const inPip = (netrc: string): ((url: URL) => Found) => {
  const machines = new Set([...netrc.matchAll(/(?:^|\s)machine\s+(\S+)/g)].map(([, host]) => host))
  return ({ hostname, password, username }) => {
    // A name without a password is itself the secret.
    if (password !== "") return { value: unquoted(password), settings: () => ({}) }
    return username !== "" || machines.has(hostname) ? "Withheld" : undefined
  }
}
