/** The syntax of package specs in each ecosystem. */

/** The ecosystems, in the order in which their packages are installed. */
export const ecosystems = ["python", "javascript", "debian"] as const
type Ecosystem = (typeof ecosystems)[number]

/** A package: its name as the ecosystem compares names, and the spec in its shortest form. */
export interface Parsed {
  readonly name: string
  readonly spec: string
}

const longest = 214

const pythonName = "[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
const pythonVersion = "\\d[0-9A-Za-z.!_-]*(?:\\+[0-9A-Za-z._-]+)?"
const clause = `(?:==|!=|<=|>=|<|>|~=)\\s*${pythonVersion}(?:\\.\\*)?`
const extras = `(?:\\[\\s*${pythonName}(?:\\s*,\\s*${pythonName})*\\s*\\])?`

const npmName = "(?:@[A-Za-z0-9~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*"
const npmVersion = "\\d+\\.\\d+\\.\\d+(?:-[0-9A-Za-z.-]+)?(?:\\+[0-9A-Za-z.-]+)?"

const debianName = "[a-z0-9][a-z0-9+.-]*[a-z0-9+]"
const debianVersion = "(?:\\d+:)?\\d[0-9A-Za-z.+~-]*"

const forms = {
  python: {
    exact: new RegExp(`^(${pythonName})(${extras})==${pythonVersion}$`),
    floating: new RegExp(`^(${pythonName})(${extras})(?:\\s*${clause}(?:\\s*,\\s*${clause})*)?$`),
    example: '"pandas==2.2.3"'
  },
  javascript: {
    exact: new RegExp(`^(${npmName})()@${npmVersion}$`),
    // A range or a tag; neither an address nor a path can be written with these characters.
    floating: new RegExp(`^(${npmName})()(?:@[0-9A-Za-z^~<>=*][0-9A-Za-z.^~<>=|* +-]*)?$`),
    example: '"lodash@4.17.21" or "@types/node@24.0.0"'
  },
  debian: {
    exact: new RegExp(`^(${debianName})()=${debianVersion}$`),
    floating: new RegExp(`^(${debianName})()(?:=${debianVersion})?$`),
    example: '"graphviz=2.42.4-3"'
  }
} as const

/** Parses a valid spec, or a name alone. */
export const parse = (ecosystem: Ecosystem, text: string): Parsed => {
  const [, name = text] = forms[ecosystem].floating.exec(text) ?? []
  if (ecosystem !== "python") return { name, spec: text.trim() }
  return { name: name.toLowerCase().replaceAll(/[-_.]+/g, "-"), spec: text.replaceAll(/\s+/g, "") }
}

const check =
  (form: "exact" | "floating") =>
  (ecosystem: Ecosystem, specs: ReadonlyArray<string>): string | undefined => {
    const { example, [form]: pattern } = forms[ecosystem]
    const seen = new Set<string>()
    for (const spec of specs) {
      const shown = JSON.stringify(spec.slice(0, 80))
      if (spec.length > longest || !pattern.test(spec)) {
        return form === "exact"
          ? `${ecosystem} packages with exact versions, such as ${example}, not ${shown}; floating: true allows others`
          : `${ecosystem} packages by name and version, such as ${example}, not ${shown}`
      }
      const { name } = parse(ecosystem, spec)
      if (seen.has(name)) return `each package once, not ${shown} in addition to another ${name}`
      seen.add(name)
    }
    return undefined
  }

/** What is wrong with specs that must have exact versions; nothing when they are valid. */
export const exactProblem = check("exact")
/** The same for specs that may have any version. */
export const floatingProblem = check("floating")
