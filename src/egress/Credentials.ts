/**
 * Credentials that this host has for its registries. A guest is not given any; so whoever fails for want of them must be told
 * that they were there. Only where they are is looked at, never what they are.
 */

type Env = { readonly [name: string]: string | undefined }

/** npm's settings that are credentials, for one registry (`//host/path/:_authToken`) or, from old days, for any. */
const npmSecret = /^(?:(\/\/.+):)?(_authToken|_auth|_password|certfile|keyfile)$/i

const machines = (netrc: string): ReadonlySet<string> =>
  new Set([...netrc.matchAll(/(?:^|\s)machine\s+(\S+)/g)].map(([, host]) => host ?? ""))

/** Whether npm's settings, by name, hold credentials for a registry. */
export const inNpm = (names: Iterable<string>, env: Env): ((url: URL) => boolean) => {
  const inEnv = Object.keys(env).map((name) => /^npm_config_(.+)$/i.exec(name)?.[1] ?? "")
  const places = [...names, ...inEnv].flatMap((name) => {
    const found = npmSecret.exec(name)
    return found === null ? [] : [found[1] ?? ""]
  })
  return ({ host, password, pathname, username }) =>
    username !== "" ||
    password !== "" ||
    places.some((place) => `//${host}${pathname.replace(/\/*$/, "/")}`.startsWith(place.replace(/\/*$/, "/")))
}

/** Whether an index's URL, or the host's netrc, holds credentials for it. */
export const inPip = (netrc: string): ((url: URL) => boolean) => {
  const known = machines(netrc)
  return ({ hostname, password, username }) => username !== "" || password !== "" || known.has(hostname)
}
