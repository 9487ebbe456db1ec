/**
 * Pretends which tools of an image build this host has: all but those that are hidden, whoever asks `node:fs`. Loaded by
 * `--import` into another process, it hides what the variable HIDDEN says there (JSON), for the user of the variable AS_UID.
 */
import { syncBuiltinESMExports } from "node:module"
import fs from "node:fs"
import { basename } from "node:path"

const real = { accessSync: fs.accessSync, statSync: fs.statSync, geteuid: process.geteuid }

const isTool = (path: unknown, of: ReadonlyArray<string>): boolean =>
  typeof path === "string" && (of.includes(path) || of.includes(basename(path)))

const missing = (path: unknown): Error => Object.assign(new Error(`ENOENT: ${path}`), { code: "ENOENT" })

/** From now on these programs (by name) and files (by path) are missing, the other `tools` are there, and the user is `uid`. */
export const pretend = (tools: ReadonlyArray<string>, hidden: ReadonlyArray<string>, uid: number): void => {
  const accessSync = (...args: Parameters<typeof fs.accessSync>): void => {
    if (isTool(args[0], hidden)) throw missing(args[0])
    if (!isTool(args[0], tools)) real.accessSync(...args)
  }
  const statSync = (...args: Parameters<typeof fs.statSync>) => {
    if (isTool(args[0], hidden)) throw missing(args[0])
    return isTool(args[0], tools) ? real.statSync(process.execPath, args[1]) : real.statSync(...args)
  }
  Object.assign(fs, { accessSync, statSync })
  Object.assign(process, { geteuid: () => uid })
  syncBuiltinESMExports()
}

/** Ends the pretence. */
export const restore = (): void => {
  Object.assign(fs, { accessSync: real.accessSync, statSync: real.statSync })
  Object.assign(process, { geteuid: real.geteuid })
  syncBuiltinESMExports()
}

const { AS_UID, PRESENT, HIDDEN } = process.env
if (HIDDEN !== undefined) pretend(JSON.parse(PRESENT ?? "[]"), JSON.parse(HIDDEN), Number(AS_UID))
