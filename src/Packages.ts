/**
 * Packages: what a session has in addition to the image. They are installed once, by the ecosystem's own tool in a separate VM,
 * which is sealed as a template; every later session with the same packages starts from it as fast as from any other.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Schema from "effect/Schema"
import { ecosystems, exactProblem, floatingProblem, parse, type Parsed } from "./packages/Spec.ts"
import { popular as popularNames } from "./packages/popular.ts"

/**
 * Where packages come from: `python` is pip's index, `javascript` npm's registry, `debian` the mirror of Debian that this host's
 * apt uses.
 *
 * @since 0.1.0
 * @category models
 */
export const Ecosystem = Schema.Literals(ecosystems)
/**
 * @since 0.1.0
 * @category models
 */
export type Ecosystem = typeof Ecosystem.Type

const mostSpecs = 100

const specs = Schema.Array(Schema.String).check(
  Schema.makeFilter((it: ReadonlyArray<string>) => it.length <= mostSpecs, {
    expected: `at most ${mostSpecs} packages`
  })
)

const moduleNames = Schema.Array(
  Schema.String.check(
    Schema.makeFilter((it: string) => /^[A-Za-z0-9_@][A-Za-z0-9_.@/~-]{0,213}$/.test(it), {
      expected: "a module's name"
    })
  )
)

/**
 * The packages of a session.
 *
 * - `python`: `name==version`, extras allowed (`"uvicorn[standard]==0.34.0"`). Only wheels are installed: nothing is built.
 * - `javascript`: `name@version`, scopes allowed (`"@types/node@24.0.0"`). No package's scripts are run.
 * - `debian`: `name=version`, as apt writes it (`"graphviz=2.42.4-3"`), of the image's release of Debian. Recommended
 *   packages, manuals and translations are not installed. The packages' scripts run as root, without a network;
 *   no service is started, and no program keeps a setuid or setgid bit.
 * - `floating`: also allows specs without an exact version (`"pandas"`, `"pandas>=2,<3"`, `"lodash@^4"`, `"graphviz"`). They
 *   are resolved when the template is made, and stay so until it is pruned.
 * - `imports`: modules that are imported before the template is sealed, so that importing them later is fast; one that cannot
 *   be imported is an error. Absent: the modules of these packages that can be imported. Empty: none.
 *
 * At most 100 of each, each name once.
 *
 * @since 0.1.0
 * @category models
 */
export const Packages = Schema.Struct({
  python: Schema.optionalKey(specs),
  javascript: Schema.optionalKey(specs),
  debian: Schema.optionalKey(specs),
  floating: Schema.optionalKey(Schema.Boolean),
  imports: Schema.optionalKey(
    Schema.Struct({ python: Schema.optionalKey(moduleNames), javascript: Schema.optionalKey(moduleNames) })
  )
}).check(
  Schema.makeFilter(({ debian = [], floating, javascript = [], python = [] }) => {
    const problem = floating === true ? floatingProblem : exactProblem
    return problem("python", python) ?? problem("javascript", javascript) ?? problem("debian", debian) ?? true
  })
)
/**
 * @since 0.1.0
 * @category models
 */
export type Packages = typeof Packages.Type

/**
 * A package that a policy decides about: its `name` (as its ecosystem compares names), and its `spec` as requested.
 *
 * @since 0.1.0
 * @category models
 */
export interface Wanted {
  readonly ecosystem: Ecosystem
  readonly name: string
  readonly spec: string
}

/**
 * Which packages may be requested. It does not apply to their dependencies.
 *
 * - `All`: every package (the default).
 * - `List`: the names of each ecosystem.
 * - `Predicate`: those for which `allow` returns true; `name` is the policy's name in errors.
 *
 * @since 0.1.0
 * @category models
 */
export type PackagePolicy =
  | { readonly _tag: "All" }
  | {
      readonly _tag: "List"
      readonly name: string
      readonly python: ReadonlyArray<string>
      readonly javascript: ReadonlyArray<string>
      readonly debian: ReadonlyArray<string>
    }
  | { readonly _tag: "Predicate"; readonly name: string; readonly allow: (wanted: Wanted) => boolean }

/** Every package may be requested. @since 0.1.0 @category policies */
export const all: PackagePolicy = { _tag: "All" }

/** Only packages of these names, in any version. @since 0.1.0 @category policies */
export const only = (names: {
  readonly python?: ReadonlyArray<string>
  readonly javascript?: ReadonlyArray<string>
  readonly debian?: ReadonlyArray<string>
}): PackagePolicy => ({
  _tag: "List",
  name: "list",
  python: names.python ?? [],
  javascript: names.javascript ?? [],
  debian: names.debian ?? []
})

/** Only packages for which `allow` is true. @since 0.1.0 @category policies */
export const when = (allow: (wanted: Wanted) => boolean): PackagePolicy => ({
  _tag: "Predicate",
  name: "predicate",
  allow
})

/**
 * Only packages that are in wide use: a list in this library, selected by hand, with some hundred names for each ecosystem.
 *
 * @since 0.1.0
 * @category policies
 */
export const popular: PackagePolicy = { _tag: "List", name: "popular", ...popularNames }

/**
 * The policy for every session and template of a `Template` layer. Default `all`.
 *
 * @since 0.1.0
 * @category references
 */
export const Policy = Context.Reference<PackagePolicy>("exec-sandbox/Packages/Policy", { defaultValue: () => all })

/**
 * Why packages are not available.
 *
 * - `Refused`: the policy does not allow it; `rule` is the policy's name, `grant` says what would allow it.
 * - `NotFound`: the registry does not have the package, or not this version for this guest; `available` are versions that it
 *   has, newest first, at most ten.
 * - `Conflict`: they cannot be installed together, or not be imported; `problem` says why.
 *
 * @since 0.1.0
 * @category errors
 */
export const Reason = Schema.Union([
  Schema.TaggedStruct("Refused", { rule: Schema.String, grant: Schema.String }),
  Schema.TaggedStruct("NotFound", { available: Schema.Array(Schema.String) }),
  Schema.TaggedStruct("Conflict", { problem: Schema.String })
])
/**
 * @since 0.1.0
 * @category errors
 */
export type Reason = typeof Reason.Type

/**
 * A package is not available. `spec` is what was requested. Making a template fails with it; `Sandbox.session` and `run` turn
 * it into `PermissionDenied`, `UnsupportedCommand` or `InvalidInput`.
 *
 * @since 0.1.0
 * @category errors
 */
export class PackageError extends Schema.TaggedError<PackageError>()("PackageError", {
  ecosystem: Ecosystem,
  spec: Schema.String,
  reason: Reason
}) {
  override get message(): string {
    const what = `${this.ecosystem} package ${JSON.stringify(this.spec)}`
    switch (this.reason._tag) {
      case "Refused":
        return `permission denied: ${what} (${this.reason.rule}); ${this.reason.grant}`
      case "NotFound": {
        const { available } = this.reason
        return `unsupported: there is no ${what}${available.length === 0 ? "" : `; there is ${available.join(", ")}`}`
      }
      case "Conflict":
        return `${what}: ${this.reason.problem}`
    }
  }
}

/**
 * One package of a template: the `version` that was installed, and the hash by which its ecosystem knows the file (`sha256=…`
 * of a wheel or a Debian package, npm's `sha512-…`), `null` where the tool did not report it.
 *
 * @since 0.1.0
 * @category models
 */
export const Resolved = Schema.Struct({
  ecosystem: Ecosystem,
  name: Schema.String,
  version: Schema.String,
  integrity: Schema.NullOr(Schema.String)
})
/**
 * @since 0.1.0
 * @category models
 */
export type Resolved = typeof Resolved.Type

/**
 * What a template contains: the specs that were `asked` for (as `ecosystem:spec`), all packages that they `resolved` to with
 * their dependencies, and the modules that were `imported`.
 *
 * @since 0.1.0
 * @category models
 */
export const Lock = Schema.Struct({
  asked: Schema.Array(Schema.String),
  resolved: Schema.Array(Resolved),
  imported: Schema.Array(Schema.String)
})
/**
 * @since 0.1.0
 * @category models
 */
export type Lock = typeof Lock.Type

/** All requested packages in a fixed order, so that the same packages give the same list. */
export const parsed = (packages: Packages): ReadonlyArray<Parsed & { readonly ecosystem: Ecosystem }> =>
  Ecosystem.literals.flatMap((ecosystem) =>
    (packages[ecosystem] ?? [])
      .map((spec) => {
        const { name, spec: short } = parse(ecosystem, spec)
        return { ecosystem, name, spec: short }
      })
      .sort((a, b) => (a.name < b.name ? -1 : 1))
  )

/** The first package that a policy does not allow. */
export const refused = (policy: PackagePolicy, packages: Packages): PackageError | undefined => {
  if (policy._tag === "All") return undefined
  const allows =
    policy._tag === "Predicate"
      ? policy.allow
      : ({ ecosystem, name }: Wanted) => policy[ecosystem].some((it) => parse(ecosystem, it).name === name)
  const wanted = parsed(packages).find((it) => !allows(it))
  if (wanted === undefined) return undefined
  const { ecosystem, name, spec } = wanted
  const grant = `a package policy that allows ${name} would allow it`
  return new PackageError({
    ecosystem,
    spec,
    reason: { _tag: "Refused", rule: `package policy ${policy.name}`, grant }
  })
}
