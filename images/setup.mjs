// Sets up a fresh checkout: system packages, npm packages, the guest's image. Every step does nothing when there is nothing to
// do, so this can run each time before anything else. It needs Node 20 or newer and no npm package:
// it installs the Node that the project itself runs on.
//
//   node images/setup.mjs                     set up
//   node images/setup.mjs --then quickstart   … and run a piece of Python in a VM
//   node images/setup.mjs --then test [ARGS]  … and run all tests (ARGS go to vitest, and then it runs alone)
import { spawn } from "node:child_process"
import { createHash } from "node:crypto"
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs"
import { delimiter, dirname, join } from "node:path"
import { fileURLToPath } from "node:url"
import { hasProgram, missingTools } from "./tools.mjs"

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const isRoot = process.geteuid?.() === 0
const searchPath = [process.env.PATH ?? "", "/usr/local/sbin", "/usr/sbin", "/sbin"].join(delimiter)
/** The project's own Node; npm may have started this program with another. */
const node = join(root, "node_modules", ".bin", "node")

/** How long each step took, in ms. */
const times = []

const timed = async (name, work) => {
  const start = performance.now()
  const result = await work()
  times.push([name, performance.now() - start])
  return result
}

const say = (line) => process.stdout.write(`${line}\n`)

const give = (line, code = 1) => {
  process.stderr.write(`${line}\n`)
  process.exit(code)
}

const directories = searchPath.split(delimiter)

/** Ctrl-C reaches the child too: it cleans up, and we end after it. */
const stay = () => {}

/**
 * Runs a program. `stdout`: "show", "keep" (only returned), or a function that is called with each line; `stderr`: "show" or
 * "keep". Returns { code, output }; a signal counts as 128.
 */
const run = (command, args, { cwd = root, env = {}, stdout = "show", stderr = "show" } = {}) =>
  new Promise((resolve) => {
    const child = spawn(command, args, {
      cwd,
      env: { ...process.env, PATH: searchPath, ...env },
      stdio: ["ignore", stdout === "show" ? "inherit" : "pipe", stderr === "show" ? "inherit" : "pipe"]
    })
    for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, stay)
    let output = ""
    let rest = ""
    child.stdout?.setEncoding("utf8").on("data", (chunk) => {
      output += chunk
      if (typeof stdout !== "function") return
      const lines = (rest + chunk).split("\n")
      rest = lines.pop() ?? ""
      lines.forEach(stdout)
    })
    child.stderr?.setEncoding("utf8").on("data", (chunk) => {
      output += chunk
    })
    const end = (code, text) => {
      for (const signal of ["SIGINT", "SIGTERM"]) process.off(signal, stay)
      resolve({ code, output: text })
    }
    child.on("error", (error) => end(127, error.message))
    child.on("close", (code) => end(code ?? 128, output))
  })

const must = async (what, command, args, options) => {
  const { code, output } = await run(command, args, options)
  if (code !== 0)
    give(`${what} failed (${command} ended with ${code})${output === "" ? "" : `:\n${output.slice(-4000)}`}`, code)
  return output
}

// ---- system packages ---------------------------------------------------------------------------------------------------

const arch = process.arch === "arm64" ? "arm64" : "amd64"
const qemu = { amd64: ["qemu-system-x86_64", "qemu-system-x86"], arm64: ["qemu-system-aarch64", "qemu-system-arm"] }[
  arch
]

/** Debian's packages that are missing to build an image and to run it. */
const missingPackages = () => {
  const tools = missingTools({ arch, host: arch, root: isRoot, directories })
  return [...(hasProgram(qemu[0], directories) ? [] : [qemu[1]]), ...tools.map((it) => it.package)]
}

/** Runs apt-get without questions; waits at most five minutes for another program that uses it. */
const apt = async (args) => {
  for (let tries = 30; ; tries--) {
    const result = await run(
      "apt-get",
      ["-y", "-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3", ...args],
      {
        env: { DEBIAN_FRONTEND: "noninteractive", LC_ALL: "C.UTF-8", NEEDRESTART_SUSPEND: "1" },
        stdout: (line) => line.startsWith("Setting up ") && say(`  ${line}`),
        stderr: "keep"
      }
    )
    // The timeout above covers dpkg's lock only, not the one of the package lists.
    if (result.code === 0 || tries === 0 || !/Could not get lock/.test(result.output)) return result
    if (tries === 30) say("  another program is using apt: waiting for it")
    await new Promise((resolve) => setTimeout(resolve, 10_000))
  }
}

const systemPackages = async () => {
  const missing = missingPackages()
  if (missing.length === 0) return
  const names = missing.join(" ")
  if (process.platform !== "linux") give("An image is built on Linux; see the README for how to pull one.")
  if (!hasProgram("apt-get", directories))
    give(`Install what these Debian packages contain, then run this again: ${names}`)
  const line = `apt-get update && ${isRoot ? "" : "sudo "}apt-get install -y --no-install-recommends ${names}`
  if (!isRoot) give(`System packages are missing. Run this, then run the same command again:\n  sudo ${line}`)
  say(`Installing system packages: ${names}`)
  // An interrupted installation blocks every other one until it is completed.
  if (existsSync("/var/lib/dpkg/updates") && readdirSync("/var/lib/dpkg/updates").length > 0)
    await run("dpkg", ["--configure", "-a"], { stdout: "keep", stderr: "keep" })
  const update = await apt(["update"])
  const install = await apt(["install", "--no-install-recommends", ...missing])
  if (install.code !== 0)
    give(`Could not install system packages (${line}):\n${(update.code === 0 ? "" : update.output) + install.output}`)
  const still = missingPackages()
  if (still.length > 0) give(`Still missing after their installation: ${still.join(", ")}`)
}

// ---- npm packages ------------------------------------------------------------------------------------------------------

/** Written after `npm ci` has succeeded, so that an interrupted one runs again. Contains the hash of its lock file. */
const marker = join(root, "node_modules", ".setup-done")

const npmPackages = async () => {
  const wanted = createHash("sha256")
    .update(readFileSync(join(root, "package-lock.json")))
    .digest("hex")
  const done = existsSync(marker) && readFileSync(marker, "utf8") === wanted && existsSync(node)
  if (done) return
  say("Installing npm packages")
  await must("npm ci", "npm", ["ci", "--no-audit", "--no-fund", "--loglevel=error"])
  if (!existsSync(node))
    give("npm ci did not install Node: install scripts must be allowed (npm config get ignore-scripts)")
  writeFileSync(marker, wanted)
}

// ---- the guest's image -------------------------------------------------------------------------------------------------

const image = async () => {
  let started = false
  const { code } = await run(node, [join(root, "images", "ensure.ts")], {
    stdout: (line) => {
      if (!started) say("Building the guest's image (once, and again when its sources change)")
      started = true
      say(line)
    }
  })
  if (code !== 0) process.exit(code)
}

// ---- and then ----------------------------------------------------------------------------------------------------------

const snippet = `import platform, sys
print(f"Hello from Python {platform.python_version()} on {platform.system()} {platform.release()}, in a microVM of its own.")
print("6 * 7 =", 6 * 7)`

const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`

const quickstart = async () => {
  const output = await timed("Python in a VM", () =>
    must("The quick start", node, ["src/cli/bin.ts", "run", "-l", "python", snippet], { stdout: "keep" })
  )
  say(`Where the time went: ${times.map(([name, ms]) => `${name} ${seconds(ms)}`).join(", ")}`)
  process.stdout.write(output)
}

const test = async (args) => {
  if (args.length === 0) await must("go test", "go", ["test", "./..."], { cwd: join(root, "images", "agent") })
  const { code } = await run(node, [join(root, "node_modules", "vitest", "vitest.mjs"), "run", ...args])
  process.exitCode = code
}

const [option, then, ...rest] = process.argv.slice(2)
if (option !== undefined && (option !== "--then" || !["quickstart", "test"].includes(then ?? "")))
  give("usage: node images/setup.mjs [--then quickstart | --then test [ARGS]]", 2)

await timed("system packages", systemPackages)
await timed("npm packages", npmPackages)
await timed("image", image)
if (then === "quickstart") await quickstart()
if (then === "test") await test(rest)
if (then === undefined) say(`Ready (${seconds(times.reduce((sum, [, ms]) => sum + ms, 0))}).`)
