#!/usr/bin/env node
/** The entry of the CLI. It stays small: `--version` must not load the library, and the rest loads from a compile cache. */
import { enableCompileCache } from "node:module"
import { homedir } from "node:os"
import { join } from "node:path"
import { version } from "./version.ts"

// Node's own default is below /tmp, where another user could have put code for us to load.
const caches = process.env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache")
enableCompileCache(process.env["NODE_COMPILE_CACHE"] ?? join(caches, "node-compile-cache"))

const [first, second] = process.argv.slice(2)
if (first === "--version" && second === undefined) process.stdout.write(`exec-sandbox ${version()}\n`)
else await import("./main.ts")
