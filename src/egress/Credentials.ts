/**
 * Credentials that this host has for its registries. A guest is not given any: at the border they are put in where a request
 * has a placeholder, and where that cannot be done, whoever fails for want of them is told that they were there.
 */

type Env = { readonly [name: string]: string | undefined }

/** A credential that can be put in at the border: its `value`, and the guest's settings with `standIn` in its place. */
export interface Credential {
  readonly value: string
  readonly settings: (standIn: string) => Readonly<Record<string, string>>
}

/** What there is for one registry. `Withheld`: something that cannot be put in. */
export type Found = Credential | "Withheld" | undefined

/** npm's settings that are credentials, for one registry (`//host/path/:_authToken`) or, from old days, for any. */
const npmSecret = /^(?:(\/\/.+):)?(_authToken|_auth|_password|certfile|keyfile)$/i

/** npm's own way to have a variable of the environment in a setting. */
const expanded = (text: string, env: Env): string =>
  text.replaceAll(/\$\{([^}]+)\}/g, (all, name: string) => env[name] ?? all)

const ended = (text: string): string => text.replace(/\/*$/, "/")

/** What npm's settings hold for a registry. */
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
    // A token of the registry itself is the usual way; whatever else there is stays here.
    if (one?.token === true && one.place !== "" && mine.every(({ token }) => token)) {
      const { name, value } = mine.at(-1) ?? one
      return { value, settings: (standIn) => ({ [`npm_config_${name}`]: standIn }) }
    }
    return one !== undefined || username !== "" || password !== "" ? "Withheld" : undefined
  }
}

/** What is written in a URL; a percent sign that begins nothing is one. */
export const unquoted = (text: string): string =>
  text.replaceAll(/(?:%[0-9a-f]{2})+/gi, (all) => Buffer.from(all.replaceAll("%", ""), "hex").toString())

/** What an index's URL holds, or the host's netrc. */
export const inPip = (netrc: string): ((url: URL) => Found) => {
  const machines = new Set([...netrc.matchAll(/(?:^|\s)machine\s+(\S+)/g)].map(([, host]) => host))
  return ({ hostname, password, username }) => {
    // Where only a name is given, the name is the secret.
    if (password !== "") return { value: unquoted(password), settings: () => ({}) }
    return username !== "" || machines.has(hostname) ? "Withheld" : undefined
  }
}
