/** Where the code of `run` comes from: the pure part. */
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

/** The file name extensions that tell a language. */
const extensions: ReadonlyArray<string> = Object.keys(languages)

/** The language a file name's extension stands for. */
export const languageOf = (file: string): Language | undefined => {
  const extension = /[^/]*(\.[^./]+)$/.exec(file)?.[1]?.toLowerCase()
  return extension !== undefined && Object.hasOwn(languages, extension) ? languages[extension] : undefined
}

/** Whether text given as code is more likely the name of a script: one word, without anything that only code has. */
export const looksLikeFile = (text: string): boolean =>
  !/[\s()[\]{};='"`<>|&$*!\\]/.test(text) && (text.includes("/") || languageOf(text) !== undefined)

/** What is to be run: code from the command line, or a file, where `-` is stdin. */
export type Source =
  | { readonly _tag: "Code"; readonly code: string; readonly language: Language }
  | { readonly _tag: "Stdin"; readonly language: Language }
  | { readonly _tag: "File"; readonly file: string; readonly language: Language }

/** Why the command line names nothing that can be run; `missing` when it says nothing at all. */
export type Problem = { readonly _tag: "Problem"; readonly message: string; readonly missing: boolean }

const problem = (message: string, missing = false): Problem => ({ _tag: "Problem", message, missing })

/** Decides what the command line asks to run. */
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
