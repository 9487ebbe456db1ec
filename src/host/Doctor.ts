/** The rows of `doctor` about the host: each says what was found and, where it could be better, what to do. */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { readFileSync, statfsSync } from "node:fs"
import { availableParallelism, freemem, totalmem, userInfo } from "node:os"
import type { Architecture, Check, Launcher, Qemu } from "./Model.ts"
import type { SandboxError } from "../SandboxError.ts"
import { buildTools, missingBuildTools } from "./BuildTools.ts"
import { ensureCacheDirectory } from "./CacheDirectory.ts"
import { systemDirectories } from "../internal/Command.ts"
import { statOrNull } from "../internal/Files.ts"
import { packageDirectory } from "../internal/packageDirectory.ts"
import { kvmDevice } from "./State.ts"
import { installBuildTools } from "./Install.ts"
import { ensureRunDirectory } from "./RunDirectory.ts"

const decodePackage = Schema.decodeUnknownOption(Schema.fromJsonString(Schema.Struct({ version: Schema.String })))

/** The version of exec-sandbox. */
export const packageVersion: Effect.Effect<string> = Effect.sync(() => {
  try {
    const text = readFileSync(new URL("package.json", packageDirectory), "utf8")
    return Option.match(decodePackage(text), { onNone: () => "unknown", onSome: ({ version }) => version })
  } catch {
    return "unknown"
  }
})

interface Inspected {
  readonly arch: Architecture
  readonly cache: string
  readonly run: string
  readonly uid: number
  readonly launcher: Launcher
  readonly search: ReadonlyArray<string>
  readonly qemu: Effect.Effect<Qemu, SandboxError>
}

const check = (name: string, status: Check["status"], detail: string, fix: string | null = null): Check => ({
  name,
  status,
  detail,
  fix
})

const fixOf = (error: SandboxError): string | null => ("fix" in error.reason ? error.reason.fix : null)

/** One row: `effect`'s, or `failed` with its error. */
const attempt = (name: string, effect: Effect.Effect<Check, SandboxError>): Effect.Effect<Check> =>
  Effect.catch(effect, (error) => Effect.succeed(check(name, "failed", error.message, fixOf(error))))

/** All rows, the most important first. Never fails. */
export const inspectHost = Effect.fnUntraced(function* (host: Inspected) {
  const cache = yield* attempt("cache directory", cacheRow(host))
  const run = yield* attempt(
    "run directory",
    Effect.as(ensureRunDirectory(host.run, host.uid), check("run directory", "ok", host.run))
  )
  const qemu = yield* Effect.match(host.qemu, { onFailure: qemuMissing, onSuccess: (found) => qemuRows(found, host) })
  return [
    ...qemu,
    userRow(host),
    parentDeathRow(host.launcher),
    cgroupRow(),
    cache,
    run,
    imageToolsRow(host.arch, host.search),
    memoryRow(),
    check("cpus", "ok", `${availableParallelism()} usable`)
  ]
})

/** An unusable directory is reported in its own row. */
const qemuMissing = (error: SandboxError): ReadonlyArray<Check> =>
  error.reason._tag === "HostUnsupported" && error.reason.requirement.endsWith("directory")
    ? [check("qemu", "failed", "not tried: it needs the directories below", null)]
    : [check("qemu", "failed", error.message, fixOf(error))]

const qemuRows = (qemu: Qemu, host: Inspected): ReadonlyArray<Check> => {
  const missed = qemu.missedAccelerators.map(({ name, reason }) => `${name} is not used: ${reason}`).join("; ")
  return [
    check("qemu", "ok", `${qemu.version} at ${qemu.path}`),
    check(
      "accelerator",
      qemu.accelerator === "tcg" ? "warning" : "ok",
      missed === "" ? qemu.accelerator : `${qemu.accelerator} (${missed})`,
      qemu.accelerator === "tcg" ? acceleratorFix(host.launcher) : null
    ),
    qemu.accelerator === "tcg"
      ? check("boundary", "warning", "emulated: TCG is not a security boundary by QEMU's own policy")
      : check("boundary", "ok", `hardware: the guest runs under ${qemu.accelerator}`),
    qemu.seccomp
      ? check("seccomp", "ok", "QEMU filters its own system calls as strictly as it can")
      : check("seccomp", "warning", "QEMU runs without a system call filter: this binary or kernel does not support it")
  ]
}

const acceleratorFix = (launcher: Launcher): string | null => {
  if (process.platform !== "linux") return null
  const kvm = kvmDevice()
  if (kvm === null) {
    return "enable virtualization in the firmware and load the module (modprobe kvm_intel or kvm_amd); on a cloud VM, choose a type with nested virtualization"
  }
  if ((kvm.mode & 0o006) === 0o006) return null
  const byGroup = kvm.gid !== 0 && (kvm.mode & 0o060) === 0o060
  const open = "groupadd -f kvm && chgrp kvm /dev/kvm && chmod 660 /dev/kvm"
  if (process.geteuid?.() === 0) {
    return launcher.uid === null || byGroup ? null : `let a group of its own open the device: ${open}`
  }
  if (byGroup && process.getgroups?.().includes(kvm.gid) === true) return null
  const join = `sudo usermod -aG kvm "$USER"`
  return byGroup
    ? `join the group that may open /dev/kvm (gid ${kvm.gid}) and log in again: ${join}`
    : `let a group of its own open the device, join it and log in again: sudo sh -c '${open}' && ${join}`
}

const userRow = ({ launcher, uid }: Inspected): Check => {
  if (launcher.user !== null) return check("user", "ok", `QEMU runs as ${launcher.user} (uid ${launcher.uid})`)
  return uid === 0
    ? check(
        "user",
        "warning",
        "QEMU runs as root: no other user can be used here",
        "install setpriv (util-linux) or run exec-sandbox as an ordinary user"
      )
    : check(
        "user",
        "ok",
        `QEMU runs as the caller (${userName(uid)}): code that breaks out of it has the caller's rights`
      )
}

const userName = (uid: number): string => {
  try {
    return `${userInfo().username}, uid ${uid}`
  } catch {
    return `uid ${uid}`
  }
}

const parentDeathRow = (launcher: Launcher): Check =>
  launcher.parentDeath
    ? check("parent death", "ok", "the kernel kills QEMU when this process dies")
    : check(
        "parent death",
        "warning",
        "no parent-death signal: after kill -9 of this process a guest runs on until it notices, about ten seconds",
        process.platform === "linux" ? "install setpriv (util-linux)" : null
      )

const cgroupRow = (): Check =>
  check(
    "host cgroup",
    "warning",
    "none: exec-sandbox does not put QEMU in a cgroup of its own, so only the cgroup of this process limits what all VMs use",
    process.platform === "linux"
      ? "limit the whole process: systemd-run --user --scope -p MemoryMax=8G -p TasksMax=1024 -- COMMAND"
      : null
  )

const gib = (bytes: number): string => `${(bytes / 2 ** 30).toFixed(1)} GiB`

const cacheRow = ({ cache, uid }: Inspected): Effect.Effect<Check, SandboxError> =>
  Effect.map(ensureCacheDirectory(cache), () => {
    const free = freeBytes(cache)
    const detail = `${cache}, writable${free === null ? "" : `, ${gib(free)} free`}`
    const owner = statOrNull(cache)?.uid
    if (owner !== undefined && Number(owner) !== uid) {
      return check(
        "cache directory",
        "warning",
        `${detail}, but it belongs to uid ${owner}, which can change what VMs start from`,
        "set EXEC_SANDBOX_CACHE_DIR to a directory of your own"
      )
    }
    // An image, one template and the scratch disks of a few VMs.
    return free !== null && free < 2 * 2 ** 30
      ? check(
          "cache directory",
          "warning",
          `${detail}, less than 2 GiB`,
          "free some space or set EXEC_SANDBOX_CACHE_DIR"
        )
      : check("cache directory", "ok", detail)
  })

const freeBytes = (path: string): number | null => {
  try {
    const { bavail, bsize } = statfsSync(path)
    return bavail * bsize
  } catch {
    return null
  }
}

/** The row about building images: a warning exactly when a build for this host's architecture would be refused. */
export const imageToolsRow = (arch: Architecture, search: ReadonlyArray<string>): Check => {
  if (process.platform !== "linux")
    return check("image tools", "warning", "images are built on Linux; they run here", "pull a prebuilt image")
  const { packages, tools } = missingBuildTools(arch, arch, [...search, ...systemDirectories])
  return tools.length === 0
    ? check("image tools", "ok", `${buildTools(arch, arch).join(", ")}: all present`)
    : check(
        "image tools",
        "warning",
        `missing ${tools.join(", ")}; needed to build images, not to run them`,
        installBuildTools(packages)
      )
}

const memoryRow = (): Check => {
  const limit = process.constrainedMemory()
  const total = limit > 0 ? Math.min(limit, totalmem()) : totalmem()
  const available = Math.min(process.availableMemory(), freemem())
  const detail = `${gib(available)} available of ${gib(total)}`
  // One VM with its emulator, and the page cache of its image.
  return available < 2 ** 30
    ? check("memory", "warning", `${detail}: room for one VM at most`, "end other programs or add memory")
    : check("memory", "ok", detail)
}
