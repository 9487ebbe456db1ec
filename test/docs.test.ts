/** What the Markdown files say is so: programs compile, commands, flags, links and paths exist. */
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import * as Completions from "effect/cli/Completions"
import * as Effect from "effect/Effect"
import { execFile } from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import { promisify } from "node:util"
import { root as cli } from "../src/cli/root.ts"
import {
  blocks,
  type Document,
  documents,
  fileOf,
  files,
  programs,
  prose,
  root,
  writePrograms
} from "./support/markdown.ts"

const commandLine = Completions.fromCommand(cli)

const exists = (name: string): boolean =>
  fs.existsSync(path.join(root, name)) || files.some((file) => file.startsWith(`${name}/`))

/** How GitHub makes a heading's anchor. */
const anchorOf = (heading: string): string =>
  heading
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\s_-]/gu, "")
    .trim()
    .replaceAll(/\s/g, "-")

const anchors = (name: string): ReadonlyArray<string> => {
  const document = documents.find((it) => it.name === name)
  return document === undefined
    ? []
    : [...prose(document).matchAll(/^#+ (.*)$/gm)].map(([, text]) => anchorOf(text ?? ""))
}

/** The links of a document that do not lead to a file, or to a heading of it. */
const broken = (document: Document): ReadonlyArray<string> =>
  [...prose(document).matchAll(/\]\(([^)\s]+)\)/g)].flatMap(([, target = ""]) => {
    if (/^\w+:/.test(target)) return []
    const [file = "", anchor] = target.split("#", 2)
    const name = file === "" ? document.name : path.join(path.dirname(document.name), file)
    return exists(name) && (anchor === undefined || anchors(name).includes(anchor)) ? [] : [target]
  })

/** Paths from the checkout's top; of one with a wildcard, the directory before it. */
const paths = ({ text }: Document): ReadonlyArray<string> =>
  [...text.matchAll(/(?<![\w./@-])(?:src|test|bench|images)\/[\w./-]*[<*{]?/g)].map(([match]) =>
    (/[<*{]$/.test(match) ? path.dirname(match) : match).replace(/[./]+$/, "")
  )

/** Names of source files without a directory, in backticks. */
const bareNames = (document: Document): ReadonlyArray<string> =>
  [...prose(document).matchAll(/`([\w.-]+\.(?:ts|mjs|cjs|go|py|c|sh))`/g)].map(([, name = ""]) => name)

/** The commands of a document's shell blocks, without comments. */
const commands = (document: Document): ReadonlyArray<string> =>
  blocks(document, "sh").flatMap((block) =>
    block
      .split("\n")
      .map((line) => line.replace(/\s+# .*$/, "").trim())
      .filter((line) => line !== "" && !line.startsWith("#"))
  )

const perDocument = (check: (document: Document) => ReadonlyArray<string>) =>
  assert.deepStrictEqual(
    documents.flatMap((document) => check(document).map((problem) => `${document.name}: ${problem}`)),
    []
  )

describe("the Markdown files", () => {
  it("README.md is short", () => {
    const readme = documents.find(({ name }) => name === "README.md")
    assert.isAtMost(readme?.text.trimEnd().split("\n").length ?? Number.NaN, 200)
  })

  it("links lead to a file and a heading", () => perDocument(broken))

  it("paths that are named exist", () => perDocument((document) => paths(document).filter((name) => !exists(name))))

  it("files that are named without a directory exist", () => {
    const names = new Set(files.map((name) => path.basename(name)))
    perDocument((document) => bareNames(document).filter((name) => !names.has(name)))
  })

  it("every room and public module is on the map", () => {
    const map = documents.find(({ name }) => name === "src/README.md")?.text ?? ""
    const places = new Set(
      files.filter((name) => /^src\/.*\.ts$/.test(name)).map((name) => name.split("/", 2).join("/"))
    )
    assert.deepStrictEqual(
      [...places].filter((name) => !map.includes(`\`${name}\``)),
      []
    )
  })

  it("npm scripts that are named exist", () => {
    const { scripts } = JSON.parse(fs.readFileSync(path.join(root, "package.json"), "utf8")) as { scripts: object }
    perDocument(({ text }) =>
      [...text.matchAll(/\bnpm run (?:-s )?([\w:]+)/g)]
        .map(([, name = ""]) => name)
        .filter((name) => !(name in scripts))
    )
  })

  it("system packages that README.md names are those that the set-up installs", () => {
    const setUp = files
      .filter((name) => /^images\/[\w-]+\.mjs$/.test(name))
      .map((name) => fs.readFileSync(path.join(root, name), "utf8"))
      .join("")
    const [line = ""] =
      /^qemu-system-x86 .*$/m.exec(documents.find(({ name }) => name === "README.md")?.text ?? "") ?? []
    assert.deepStrictEqual(
      line.split(" ").filter((name) => !setUp.includes(`"${name}"`)),
      []
    )
    assert.isAbove(line.split(" ").length, 10)
  })

  it("commands of ours exist, with their flags", () => {
    let seen = 0
    perDocument((document) =>
      commands(document).flatMap((line) => {
        const [, args] = /^(?:exec-sandbox|npm run -s cli --) (.*)$/.exec(line) ?? []
        if (args === undefined) return []
        seen++
        // What is quoted is code, which has flags of its own.
        const words = args.replaceAll(/'[^']*'/g, "''").split(/\s+/)
        let command: Completions.CommandDescriptor | undefined = commandLine
        while (command !== undefined && command.subcommands.length > 0) {
          const name = words.shift()
          command = command.subcommands.find((it) => it.name === name)
        }
        if (command === undefined) return [`${line}: no such command`]
        const { flags } = command
        const known = (word: string): boolean =>
          flags.some(({ aliases, name }) => word === `--${name}` || aliases.some((it) => word === `-${it}`))
        return words.filter((word) => /^--?[a-z]/.test(word) && !known(word)).map((word) => `${line}: ${word}`)
      })
    )
    assert.isAbove(seen, 15)
  })

  describe("programs", () => {
    let directory = ""
    beforeAll(() => {
      directory = writePrograms()
    })
    afterAll(() => fs.rmSync(directory, { recursive: true }))

    it("have correct types", { timeout: 60_000 }, async () => {
      const config = {
        extends: "../../tsconfig.json",
        compilerOptions: { incremental: false, tsBuildInfoFile: null },
        include: [],
        files: programs.map(({ file }) => file)
      }
      fs.writeFileSync(path.join(directory, "tsconfig.json"), JSON.stringify(config))
      const tsc = path.join(root, "node_modules", ".bin", "tsc")
      const said = await promisify(execFile)(tsc, ["-p", directory]).then(
        () => "",
        (error: { readonly stdout: string }) => error.stdout
      )
      assert.strictEqual(
        programs.reduce((text, { document, file }) => text.replaceAll(file, `${file} (${document})`), said),
        ""
      )
    })

    it("over the test kit give what they say", async () => {
      const kit = (await import(path.join(directory, fileOf("printed")))) as {
        readonly [name: string]: Effect.Effect<string>
      }
      const said = [kit.printed, kit.full, kit.asked].map((it) => it ?? Effect.succeed("missing"))
      assert.deepStrictEqual(await Effect.runPromise(Effect.all(said)), [
        "it printed 42",
        "the host is full; later",
        "at http://localhost:8080/name"
      ])
    })
  })
})
