/** `--package`: packages in addition to the image. */
import * as Flag from "effect/cli/Flag"
import * as Option from "effect/Option"
import { Ecosystem, type PackageError, type Packages } from "../Packages.ts"
import { Leave } from "./ending.ts"

type Wanted = readonly [ecosystem: Ecosystem, spec: string]

/** Splits `ECOSYSTEM:SPEC` at the first colon; the library checks the spec. */
export const parsePackage = (text: string): Option.Option<Wanted> => {
  const at = text.indexOf(":")
  const ecosystem = Ecosystem.literals.find((it) => it === text.slice(0, at))
  return ecosystem === undefined || at === text.length - 1
    ? Option.none()
    : Option.some([ecosystem, text.slice(at + 1)])
}

/** `--package`, which may be repeated. */
export const packages = Flag.String("package").pipe(
  Flag.withMetavar("ECOSYSTEM:SPEC"),
  Flag.withDescription(
    "Install a package: python:pandas==2.2.3, javascript:lodash@4.17.21, debian:graphviz=2.42.4-3; may be repeated"
  ),
  Flag.filterMap(parsePackage, () => `ECOSYSTEM:SPEC, with one of ${Ecosystem.literals.join(", ")}`),
  Flag.atLeast(0),
  Flag.map((wanted): Packages => {
    const of = (ecosystem: Ecosystem) => wanted.filter(([it]) => it === ecosystem).map(([, spec]) => spec)
    return { python: of("python"), javascript: of("javascript"), debian: of("debian") }
  })
)

/** `--floating`. */
export const floating = Flag.Boolean("floating").pipe(
  Flag.withoutNegation,
  Flag.withDescription(
    "Allow --package without an exact version: python:pandas, python:pandas>=2, javascript:lodash@^4, debian:graphviz"
  ),
  Flag.withDefault(false)
)

/** The ending of a command that only makes a template, when a package fails. */
export const ending = (error: PackageError): Leave =>
  new Leave({ code: { Refused: 126, NotFound: 127, Conflict: 2 }[error.reason._tag], why: error.message })
