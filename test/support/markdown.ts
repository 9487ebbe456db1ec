/** The Markdown files of this checkout: their programs, commands, links and the paths that they name. */
import * as fs from "node:fs"
import * as path from "node:path"
import { fileURLToPath } from "node:url"

/** The checkout. */
export const root = fileURLToPath(new URL("../..", import.meta.url))

const ignored = new Set(["node_modules", "dist", "results"])

const walk = (directory: string): ReadonlyArray<string> =>
  fs.readdirSync(path.join(root, directory), { withFileTypes: true }).flatMap((entry) => {
    if (entry.name.startsWith(".") || ignored.has(entry.name)) return []
    const name = path.join(directory, entry.name)
    return entry.isDirectory() ? walk(name) : [name]
  })

/** Every file of the checkout, relative to it. */
export const files = walk("")

export interface Document {
  /** Relative to the checkout. */
  readonly name: string
  readonly text: string
}

/** Every Markdown file except the changelog, which describes past versions. */
export const documents: ReadonlyArray<Document> = files
  .filter((name) => name.endsWith(".md") && name !== "CHANGELOG.md")
  .map((name) => ({ name, text: fs.readFileSync(path.join(root, name), "utf8") }))

/** The fenced blocks of a language. */
export const blocks = ({ text }: Document, language: string): ReadonlyArray<string> =>
  [...text.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, "gms"))].map((match) => match[1] ?? "")

/** The text without fenced blocks. */
export const prose = ({ text }: Document): string => text.replaceAll(/^```.*?^```/gms, "")

/** A program of a document, as a file in a directory of the tests, where its imports resolve as theirs do. */
export interface Program {
  readonly document: string
  readonly file: string
  readonly code: string
}

export const programs: ReadonlyArray<Program> = documents
  .flatMap((document) => blocks(document, "ts").map((code) => ({ document: document.name, code })))
  .map(({ code, document }, index) => ({
    document,
    file: `program${index}.ts`,
    code: code
      .replaceAll('"exec-sandbox"', '"../../src/index.ts"')
      .replaceAll('"exec-sandbox/testing"', '"../../src/Testing.ts"')
  }))

/** Makes a directory in that of the tests and writes all programs into it; the caller removes it. */
export const writePrograms = (): string => {
  const directory = fs.mkdtempSync(path.join(root, "test", ".docs-"))
  for (const { code, file } of programs) fs.writeFileSync(path.join(directory, file), code)
  return directory
}

/** The file of the program that exports that name. */
export const fileOf = (name: string): string => {
  const found = programs.find(({ code }) => code.includes(`export const ${name} `))
  if (found === undefined) throw new Error(`no program in any document exports ${name}`)
  return found.file
}
