/**
 * Installs packages with npm where every directory's code finds them, as root in a machine that becomes a template. Argument: an
 * order as JSON, whose step is `fetch`, with a network, or `install`, without one. Output: the answer as JSON.
 *
 * While there is a network, nothing of a package may be found by PATH or by Node's search for modules: the links that make it found
 * belong to the second step. `--ignore-scripts` holds in both.
 */
"use strict"
const { spawnSync } = require("node:child_process")
const fs = require("node:fs")
const path = require("node:path")

const order = JSON.parse(process.argv[1])
const prefix = "/usr/local/lib/exec-sandbox-packages"
const cache = "/tmp/.exec-sandbox-npm"
const npmProgram = fs.realpathSync("/usr/bin/npm")
/** Programs of the image only. */
const environment = { ...process.env, PATH: "/usr/sbin:/usr/bin:/sbin:/bin", NODE_DISABLE_COMPILE_CACHE: "1" }

const answer = (status, fields) => {
  fs.writeSync(1, JSON.stringify({ status, ...fields }))
  process.exit(0)
}

/** npm's codes for a package, or a version of it, that the registry does not have. */
const absent = new Set(["E404", "ETARGET", "ENOVERSIONS", "EINVALIDTAGNAME"])
const conflicts = new Set(["ERESOLVE", "EBADPLATFORM", "EBADENGINE", "EINVALIDPACKAGENAME", "EUNSUPPORTEDPROTOCOL"])
/** What npm's code for a registry's answer means: after a refusal another try is useless. */
const trouble = (code) => (code === "E401" || code === "E403" ? "refused" : "registry")
const ours = new Set(["ENOSPC", "EACCES", "EPERM", "EROFS", "ENOMEM", "EMFILE"])

/** Asks the registry about each package: npm does not say clearly which one it did not find. */
const lookUp = async (problem) => {
  const configured = spawnSync(process.execPath, [npmProgram, "config", "get", "registry"], {
    encoding: "utf8",
    env: environment
  }).stdout.trim()
  for (const { name, spec } of order.packages) {
    const scope = name.startsWith("@")
      ? process.env[`npm_config_${name.slice(0, name.indexOf("/"))}:registry`]
      : undefined
    const registry = (scope ?? configured).replace(/\/*$/, "/")
    let page
    try {
      page = await fetch(registry + name.replace("/", "%2f"), { signal: AbortSignal.timeout(30_000) })
      if (page.status === 404) answer("not-found", { name, available: [] })
      if (!page.ok) answer(trouble(`E${page.status}`), { problem: `the registry answers ${page.status}` })
      page = await page.json()
    } catch (error) {
      answer("registry", { problem: `the registry cannot be reached: ${error.cause?.code ?? error.message}` })
    }
    const versions = Object.keys(page.versions ?? {})
    const version = spec.slice(name.length + 1)
    const exact = /^\d+\.\d+\.\d+/.test(version) && !version.includes(" ")
    const known = versions.includes(version.replace(/\+.*$/, "")) || version in (page["dist-tags"] ?? {})
    if ((exact || order.packages.length === 1) && !known) {
      answer("not-found", { name, available: versions.toReversed().slice(0, 10) })
    }
  }
  answer("conflict", { problem })
}

/** Makes the packages found: Node looks for them in every directory above the code's, and programs are in PATH. */
const link = () => {
  fs.rmSync("/node_modules", { force: true })
  fs.symlinkSync(path.join(prefix, "node_modules"), "/node_modules")
  const programs = path.join(prefix, "node_modules/.bin")
  for (const name of fs.existsSync(programs) ? fs.readdirSync(programs) : []) {
    fs.rmSync(path.join("/usr/local/bin", name), { force: true })
    fs.symlinkSync(path.join(programs, name), path.join("/usr/local/bin", name))
  }
}
if (order.step === "install") {
  link()
  answer("installed", { resolved: [], modules: [] })
}

fs.mkdirSync(prefix, { recursive: true })
fs.writeFileSync(path.join(prefix, "package.json"), '{"private":true}')
const options = [
  "--prefix",
  prefix,
  "--cache",
  cache,
  "--json",
  "--ignore-scripts",
  "--no-audit",
  "--no-fund",
  "--save-exact"
]
options.push(
  "--fetch-retries=2",
  "--fetch-retry-factor=2",
  "--fetch-retry-mintimeout=1000",
  "--fetch-retry-maxtimeout=5000",
  "--fetch-timeout=60000"
)
// For these few seconds compiling to machine code takes more time than it saves, above all under emulation: a sixth of the total.
const plain = ["--no-opt", "--no-maglev", "--no-sparkplug", npmProgram]
const npm = spawnSync(process.execPath, [...plain, "install", ...options, ...order.packages.map(({ spec }) => spec)], {
  encoding: "utf8",
  cwd: prefix,
  env: environment,
  maxBuffer: 64 * 1024 * 1024,
  stdio: ["ignore", "pipe", "inherit"]
})
fs.rmSync(cache, { recursive: true, force: true })
fs.rmSync(path.join(process.env.HOME ?? "/root", ".npm"), { recursive: true, force: true })

if (npm.status === 0) {
  const lock = JSON.parse(fs.readFileSync(path.join(prefix, "package-lock.json"), "utf8"))
  const resolved = Object.entries(lock.packages)
    .filter(([place]) => place !== "" && fs.existsSync(path.join(prefix, place)))
    .map(([place, { integrity = null, version }]) => {
      return { name: place.slice(place.lastIndexOf("node_modules/") + "node_modules/".length), version, integrity }
    })
  answer("installed", { resolved, modules: order.packages.map(({ name }) => name) })
}
let error = {}
try {
  error = JSON.parse(npm.stdout).error ?? {}
} catch {}
const problem = `${error.code ?? `npm ended with ${npm.status ?? npm.signal}`}: ${error.summary ?? ""}`.slice(0, 2000)
if (absent.has(error.code)) lookUp(problem)
else if (conflicts.has(error.code)) answer("conflict", { problem })
else if (error.code === undefined || ours.has(error.code)) answer("failed", { problem })
else answer(trouble(error.code), { problem })
