/** A `Host` in a directory of its own, with a shell script as its QEMU. */
import * as ConfigProvider from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import type { Scope } from "effect/Scope"
import * as fs from "node:fs"
import * as path from "node:path"
import { Host, Report } from "../../src/Host.ts"
import { findQemu } from "../../src/host/QemuProbe.ts"
import type { HostUnsupported, SandboxError } from "../../src/SandboxError.ts"

export const searchPath = "/usr/local/bin:/usr/bin:/bin"
export const greeting = JSON.stringify({
  QMP: { version: { qemu: { major: 9, minor: 1, micro: 2 } }, capabilities: [] }
})

/** A temporary directory that QEMU's unprivileged user can reach. */
export const directory: Effect.Effect<string, never, Scope> = Effect.acquireRelease(
  Effect.sync(() => {
    const made = fs.mkdtempSync("/tmp/exec-sandbox-host-")
    fs.chmodSync(made, 0o755)
    return made
  }),
  (made) => Effect.sync(() => fs.rmSync(made, { recursive: true, force: true }))
)

interface Fake {
  readonly path: string
  /** The argument lines of all launches so far. */
  readonly launches: () => ReadonlyArray<string>
}

/** A shell script in place of QEMU: prints `version`, or runs `body`, which by default greets and quits on request. */
export const fakeQemu = (
  home: string,
  version: string,
  body = `echo '${greeting}'; read -r a; read -r b; exit 0`,
  name = process.arch === "arm64" ? "qemu-system-aarch64" : "qemu-system-x86_64"
): Fake => {
  const log = path.join(home, "launches")
  fs.writeFileSync(log, "")
  fs.chmodSync(log, 0o666)
  const script = path.join(home, name)
  fs.writeFileSync(
    script,
    `#!/bin/sh\necho "$*" >> ${log}\nif [ "$1" = --version ]; then echo "${version}"; exit 0; fi\n${body}\n`
  )
  fs.chmodSync(script, 0o755)
  return { path: script, launches: () => fs.readFileSync(log, "utf8").split("\n").slice(0, -1) }
}

/** A new `Host`, as in a new process. */
export const hostWith = (env: Record<string, string>) =>
  Effect.provide(
    Host.use(Effect.succeed),
    Layer.provide(Layer.fresh(Host.layer), ConfigProvider.layer(ConfigProvider.fromEnv({ env })))
  )

export const environmentOf = (home: string): Record<string, string> => ({
  PATH: searchPath,
  HOME: home,
  EXEC_SANDBOX_CACHE_DIR: path.join(home, "cache"),
  EXEC_SANDBOX_RUN_DIR: path.join(home, "run")
})

export const askQemu = (env: Record<string, string>) => Effect.flatMap(hostWith(env), (host) => host.qemu(host.arch))

export const unsupported = (effect: Effect.Effect<unknown, SandboxError>): Effect.Effect<HostUnsupported, unknown> =>
  Effect.flatMap(Effect.flip(effect), ({ reason }) =>
    reason._tag === "HostUnsupported" ? Effect.succeed(reason) : Effect.fail(`another reason: ${reason._tag}`)
  )

export const findPath = (guest: "amd64" | "arm64", override: string) =>
  Effect.match(findQemu({ guest, arch: "amd64", override, search: [] }), {
    onFailure: () => null,
    onSuccess: (found) => found.path
  })

export const mode = (file: string): number => fs.statSync(file).mode & 0o777

export const cacheOf = (env: Record<string, string>) =>
  Effect.map(hostWith({ PATH: "/nowhere", HOME: "/h", ...env }), (host) => host.cacheDirectory)

export const statuses = (report: Report) => Object.fromEntries(report.checks.map(({ name, status }) => [name, status]))

export const isGone = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
  } catch {
    return true
  }
  // A zombie counts as dead: in some containers no process collects it.
  return process.platform === "linux" && / Z /.test(fs.readFileSync(`/proc/${pid}/stat`, "latin1"))
}

export const eventually = (condition: () => boolean) =>
  Effect.sync(condition).pipe(
    Effect.repeat({ until: (met) => met, schedule: Schedule.spaced("10 millis") }),
    Effect.timeout("8 seconds")
  )
