/** Headers of HTTP that are not the request's own, in lower case: no secret is put into them. */

/** Headers for the next hop only, which are not passed on. */
export const hops = new Set([
  "connection",
  "keep-alive",
  "proxy-connection",
  "proxy-authenticate",
  "proxy-authorization",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
  "http2-settings"
])

/** Headers that say where the request goes and where it ends. */
export const framing = new Set(["content-length", "expect", "host"])

/** Whether a header is not the request's own. `name` is in lower case. */
export const reserved = (name: string): boolean => hops.has(name) || framing.has(name)
