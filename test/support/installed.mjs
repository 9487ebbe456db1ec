/**
 * Makes `node:fs` report which tools of an image build this host has: all but those that are hidden. Loaded by
 * `--import` into another process, it takes them from the variables PRESENT and HIDDEN (JSON) there, and the user from AS_UID.
 */
import fs from "node:fs"
import { syncBuiltinESMExports } from "node:module"
import { basename } from "node:path"

const real = { accessSync: fs.accessSync, statSync: fs.statSync, geteuid: process.geteuid }

const isOneOf = (path, tools) => tools.includes(path) || tools.includes(basename(path))

const missing = (path) => Object.assign(new Error(`ENOENT: ${path}`), { code: "ENOENT" })

/** From now on `hidden` programs (by name) and files (by path) are missing, the other `tools` are there, and the user is `uid`. */
export const pretend = (tools, hidden, uid) => {
  const accessSync = (path, mode) => {
    if (isOneOf(path, hidden)) throw missing(path)
    if (!isOneOf(path, tools)) real.accessSync(path, mode)
  }
  const statSync = (path, options) => {
    if (isOneOf(path, hidden)) throw missing(path)
    return real.statSync(isOneOf(path, tools) ? process.execPath : path, options)
  }
  Object.assign(fs, { accessSync, statSync })
  Object.assign(process, { geteuid: () => uid })
  syncBuiltinESMExports()
}

/** Ends the pretence. */
export const restore = () => {
  Object.assign(fs, { accessSync: real.accessSync, statSync: real.statSync })
  Object.assign(process, { geteuid: real.geteuid })
  syncBuiltinESMExports()
}

const { AS_UID, PRESENT, HIDDEN } = process.env
if (HIDDEN !== undefined) pretend(JSON.parse(PRESENT ?? "[]"), JSON.parse(HIDDEN), Number(AS_UID))
