/** Opens and closes the files that QEMU inherits as descriptors. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as fs from "node:fs"
import * as path from "node:path"
import { temporaryName } from "../internal/Temporary.ts"
import { BootFailed, fail, type SandboxError } from "../SandboxError.ts"
import type { Remains, TemplateFiles } from "../Vm.ts"

const problemOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

/** A file for QEMU: a path to open, with flags, or a descriptor that is open already and stays open. */
export type Opening = readonly [path: string, flags: string] | number

/** Copies an empty overlay, opens the copy and unlinks it. */
const privateOverlay = (source: string): number => {
  const copy = path.join(path.dirname(source), temporaryName("clone"))
  try {
    fs.copyFileSync(source, copy, fs.constants.COPYFILE_FICLONE)
    return fs.openSync(copy, "r+")
  } finally {
    fs.rmSync(copy, { force: true })
  }
}

const launchFailed = (error: unknown): SandboxError =>
  fail(new BootFailed({ stage: "launch", problem: problemOf(error), console: "" }))

/** Opens all of the files, or none if one fails. */
const openAll = (openers: ReadonlyArray<() => number>): ReadonlyArray<number> => {
  const opened: Array<number> = []
  try {
    for (const open of openers) opened.push(open())
    return opened
  } catch (error) {
    closeAll(opened)
    throw error
  }
}

/** Opens the files that a clone keeps open, its own and its template's; closed with the scope. */
export const openParts = (template: TemplateFiles): Effect.Effect<Omit<Remains, "shape">, SandboxError, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.try({
      try: () => {
        const paths = [template.disk, template.ram, template.state]
        const [overlay = -1, disk = -1, ram = -1, state = -1] = openAll([
          () => privateOverlay(template.overlay),
          ...paths.map((path) => () => fs.openSync(path, "r"))
        ])
        return { overlay, disk, ram, state }
      },
      catch: launchFailed
    }),
    (opened) => Effect.sync(() => closeAll(Object.values(opened)))
  )

/** Opens files, runs `use` and closes what it opened; QEMU has its own descriptors by then. */
export const withOpen = <A, E, R>(
  openings: ReadonlyArray<Opening>,
  use: (files: ReadonlyArray<number>) => Effect.Effect<A, E, R>
): Effect.Effect<A, E | SandboxError, R> =>
  Effect.acquireUseRelease(
    Effect.try({
      try: () => {
        const paths = openings.filter((it) => typeof it !== "number")
        const opened = openAll(paths.map((it) => () => fs.openSync(...it)))
        let next = 0
        return { opened, files: openings.map((it) => (typeof it === "number" ? it : (opened[next++] ?? -1))) }
      },
      catch: launchFailed
    }),
    ({ files }) => use(files),
    ({ opened }) => Effect.sync(() => closeAll(opened))
  )

const closeAll = (opened: ReadonlyArray<number>): void => {
  for (const fd of opened) fs.closeSync(fd)
}
