/** Which tools this host lacks to build an image, by the table in `images/tools.mjs`. */
import { isAbsolute } from "node:path"
import { missingTools, neededTools } from "../../images/tools.mjs"
import type { Architecture } from "./Model.ts"

const isRoot = (): boolean => process.geteuid?.() === 0

type Tool = ReturnType<typeof neededTools>[number]

/** A tool's name in messages: the program, or the package of a file. */
const nameOf = (tool: Tool): string => tool.brings.find((it) => !isAbsolute(it)) ?? tool.package

/** All tools that building an image for `arch` needs on this host. */
export const buildTools = (arch: Architecture, host: Architecture): ReadonlyArray<string> =>
  neededTools({ arch, host, root: isRoot() }).map(nameOf)

/** The tools that are missing, and Debian's packages with them. Programs are looked for in `directories`. */
export const missingBuildTools = (
  arch: Architecture,
  host: Architecture,
  directories: ReadonlyArray<string>
): { readonly tools: ReadonlyArray<string>; readonly packages: ReadonlyArray<string> } => {
  const missing = missingTools({ arch, host, root: isRoot(), directories })
  return { tools: missing.map(nameOf), packages: missing.map((it) => it.package) }
}
