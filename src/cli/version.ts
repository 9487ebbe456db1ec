/** The version of this package, read from package.json only when it is needed. */
import { readFileSync } from "node:fs"

/** For example `0.1.0`. */
export const version = (): string => {
  const text = readFileSync(new URL("../../package.json", import.meta.url), "utf8")
  return (JSON.parse(text) as { readonly version: string }).version
}
