/** Decides where the code of `run` comes from and what language it is; reads nothing. */
import type { Language } from "../Execution.ts"

const languages: { readonly [extension: string]: Language } = {
  ".py": "python",
  ".js": "javascript",
  ".mjs": "javascript",
  ".cjs": "javascript",
  ".ts": "typescript",
  ".mts": "typescript",
  ".sh": "bash",
  ".bash": "bash"
}

/** The file name extensions with a known language. */
const extensions: ReadonlyArray<string> = Object.keys(languages)

/** The language of a file, by its extension. */
export const languageOf = (file: string): Language | undefined => {
  const extension = /[^/]*(\.[^./]+)$/.exec(file)?.[1]?.toLowerCase()
  return extension !== undefined && Object.hasOwn(languages, extension) ? languages[extension] : undefined
}

/** Whether text given as code is probably the name of a script: one word without characters that only code has. */
export const looksLikeFile = (text: string): boolean =>
  !/[\s()[\]{};='"`<>|&$*!\\]/.test(text) && (text.includes("/") || languageOf(text) !== undefined)

/** The code to run: from the command line, from stdin or from a file. */
export type Source =
  | { readonly _tag: "Code"; readonly code: string; readonly language: Language }
  | { readonly _tag: "Stdin"; readonly language: Language }
  | { readonly _tag: "File"; readonly file: string; readonly language: Language }

/** Why the command line names nothing to run; `missing` when it has no code at all. */
export type Problem = { readonly _tag: "Problem"; readonly message: string; readonly missing: boolean }

const problem = (message: string, missing = false): Problem => ({ _tag: "Problem", message, missing })

/** Finds the source that the command line names; `-` is stdin. */
export const sourceOf = (
  code: string | undefined,
  file: string | undefined,
  language: Language | undefined
): Source | Problem => {
  if (code !== undefined && file !== undefined) return problem("Give either code or -f FILE, not both")
  const named = file ?? (code === "-" ? "-" : undefined)
  if (named === "-") return { _tag: "Stdin", language: language ?? "python" }
  if (named !== undefined) {
    const known = language ?? languageOf(named)
    return known === undefined
      ? problem(`No language is known for the file ${JSON.stringify(named)}; use -l, or one of ${extensions.join(" ")}`)
      : { _tag: "File", file: named, language: known }
  }
  if (code === undefined || code.trim() === "") return problem("There is no code to run", true)
  if (looksLikeFile(code)) {
    return problem(
      `${JSON.stringify(code)} looks like a file; use -f ${code} to run it, or end it with ";" if it is code`
    )
  }
  return { _tag: "Code", code, language: language ?? "python" }
}
