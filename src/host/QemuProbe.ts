/** Finds a QEMU binary and launches it to learn what it can do on this host. */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { realpathSync } from "node:fs"
import { basename, isAbsolute, resolve } from "node:path"
import type { Architecture, Launcher, Qemu } from "./Model.ts"
import { fail, HostUnsupported, type SandboxError } from "../SandboxError.ts"
import { type Ended, run } from "../internal/BoundedProcess.ts"
import { findExecutable, fingerprint, isExecutable } from "../internal/Files.ts"
import { readRecord, writeRecord } from "./Record.ts"
import { hostState, kvmDevice, programState } from "./State.ts"
import { installQemu } from "./Install.ts"

const floor = { major: 7, minor: 2 }
const needed = `>= ${floor.major}.${floor.minor}`

/** The strictest filter that QEMU offers. */
const sandbox = ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]

/** A machine without devices that never starts its CPU. */
const paused = "-nodefaults -no-user-config -display none -S -monitor none -qmp stdio"

/** A binary as it was found. `native`: the guest's architecture is the host's. */
export interface Found {
  readonly path: string
  readonly native: boolean
}

const unsupported = (fields: { requirement: string; found: string | null; needed: string; fix: string }) =>
  fail(new HostUnsupported(fields))

/** The guest architecture in a binary's name; `null` when it has none. */
const architectureOf = (path: string): Architecture | null => {
  const name = basename(path)
  if (name.includes("aarch64")) return "arm64"
  return /x86_64|i386/.test(name) ? "amd64" : null
}

/** The binary for `guest`: `override` when it fits, else by its usual name on the search path. */
export const findQemu = (options: {
  readonly guest: Architecture
  readonly arch: Architecture
  readonly override: string | undefined
  readonly search: ReadonlyArray<string>
}): Effect.Effect<Found, SandboxError> =>
  Effect.suspend(() => {
    const { arch, guest, override, search } = options
    if (process.platform !== "linux" && process.platform !== "darwin") {
      return Effect.fail(
        unsupported({
          requirement: "operating system",
          found: process.platform,
          needed: "Linux or macOS",
          fix: "on Windows, run it inside WSL 2"
        })
      )
    }
    const chosen = override !== undefined && (architectureOf(override) ?? arch) === guest ? resolve(override) : null
    const name = guest === "arm64" ? "qemu-system-aarch64" : "qemu-system-x86_64"
    const homebrew = process.platform === "darwin" ? ["/opt/homebrew/bin", "/usr/local/bin"] : []
    const found = chosen ?? findExecutable(name, [...search, ...homebrew])
    if (found === null || !isExecutable(found)) {
      return Effect.fail(
        unsupported({
          requirement: "QEMU",
          found: null,
          needed,
          fix:
            chosen === null
              ? installQemu(guest)
              : `EXEC_SANDBOX_QEMU names ${chosen}, which is not an executable file: correct or unset it`
        })
      )
    }
    const native = process.arch === (guest === "arm64" ? "arm64" : "x64")
    return Effect.try({
      try: () => ({ path: realpathSync(found), native }),
      catch: () => unsupported({ requirement: "QEMU", found: null, needed, fix: installQemu(guest) })
    })
  })

/** The key of the record for this binary, user, launcher and host state. */
export const qemuKey = (found: Found, guest: Architecture, launcher: Launcher): string =>
  fingerprint(["qemu", guest, ...hostState(), ...programState(found.path), launcher.argv])

const Learnt = Schema.Struct({
  version: Schema.String.check(Schema.isPattern(/^\d+\.\d+\.\d+$/)),
  accelerator: Schema.Literals(["kvm", "hvf", "tcg"]),
  missedAccelerators: Schema.Array(Schema.Struct({ name: Schema.String, reason: Schema.String })),
  seccomp: Schema.Boolean
})
type Learnt = typeof Learnt.Type

const decodeLearnt = Schema.decodeUnknownOption(Schema.fromJsonString(Learnt))

const decodeGreeting = Schema.decodeUnknownOption(
  Schema.fromJsonString(
    Schema.Struct({
      QMP: Schema.Struct({
        version: Schema.Struct({
          qemu: Schema.Struct({ major: Schema.Int, minor: Schema.Int, micro: Schema.Int })
        })
      })
    })
  )
)

interface ProbeOptions {
  readonly found: Found
  readonly guest: Architecture
  readonly launcher: Launcher
  readonly search: ReadonlyArray<string>
}

/** What the binary can do: from its record unless `fresh`, else by launching it a few times. */
export const probeQemu = Effect.fnUntraced(function* (
  options: ProbeOptions & { readonly cache: string; readonly key: string; readonly fresh: boolean }
) {
  const { cache, found, fresh, key } = options
  const before = fresh ? Option.none() : yield* readRecord(cache, key, decodeLearnt)
  if (Option.isSome(before)) return qemuOf(found.path, before.value)
  const learnt = yield* learn(options)
  yield* writeRecord(cache, key, learnt)
  return qemuOf(found.path, learnt)
})

const qemuOf = (path: string, learnt: Learnt): Qemu => {
  const [major = 0, minor = 0] = learnt.version.split(".").map(Number)
  return {
    path,
    version: learnt.version,
    atLeast: (wantedMajor, wantedMinor) => major > wantedMajor || (major === wantedMajor && minor >= wantedMinor),
    identity: fingerprint([...programState(path).slice(0, 3), learnt.version]),
    accelerator: learnt.accelerator,
    missedAccelerators: learnt.missedAccelerators,
    seccomp: learnt.seccomp
  }
}

const learn = Effect.fnUntraced(function* (options: ProbeOptions) {
  const { found, guest } = options
  const version = yield* learnVersion(options)
  const { candidates, impossible } = accelerators(found, guest)
  // On other systems QEMU has no such filter and refuses the option.
  const filters = process.platform === "linux" ? [true, false] : [false]
  let last: Ended | null = null
  for (const seccomp of filters) {
    const missed = [...impossible]
    for (const accelerator of candidates) {
      last = yield* launch(options, accelerator, seccomp)
      if (last.problem === null) return { version, accelerator, missedAccelerators: missed, seccomp }
      missed.push({ name: accelerator, reason: last.problem })
    }
    // It hung. The filter is not the cause, and another round would hang as long.
    if (last?.timedOut === true) break
  }
  return yield* unsupported({
    requirement: "QEMU",
    found: `${version}, which does not start (${last?.problem ?? "not tried"})`,
    needed: "a QEMU that starts",
    fix: startFix(options)
  })
})

const startFix = ({ found, guest, launcher }: ProbeOptions): string => {
  const asUser = launcher.user === null ? "" : ` as user ${launcher.user}, which must be able to reach and execute it,`
  return `make ${found.path} start${asUser} or ${installQemu(guest)}`
}

const learnVersion = Effect.fnUntraced(function* (options: ProbeOptions) {
  const { found, guest } = options
  const ended = yield* run(command(options, ["--version"]), environment(options))
  const firstLine = (ended.stdout.split("\n")[0] ?? "").trim().slice(0, 200)
  const parts = /^QEMU emulator version (\d+)\.(\d+)(?:\.(\d+))?/.exec(firstLine)
  if (parts === null) {
    const said = firstLine === "" ? (ended.problem ?? "no output") : JSON.stringify(firstLine)
    return yield* unsupported({
      requirement: "QEMU",
      found: `${found.path}, which does not report its version (${said})`,
      needed,
      fix: startFix(options)
    })
  }
  const [major, minor, micro] = [Number(parts[1]), Number(parts[2]), Number(parts[3] ?? 0)]
  const version = `${major}.${minor}.${micro}`
  if (major < floor.major || (major === floor.major && minor < floor.minor)) {
    return yield* unsupported({
      requirement: "QEMU",
      found: version,
      needed,
      fix: `${installQemu(guest)}, from a release that has ${floor.major}.${floor.minor} or newer, or set EXEC_SANDBOX_QEMU to the path of one`
    })
  }
  return version
})

/** The accelerators to try, best first, and those that cannot work. */
const accelerators = (found: Found, guest: Architecture) => {
  const name = process.platform === "darwin" ? "hvf" : "kvm"
  const reason = !found.native
    ? `an ${guest} guest cannot use the virtualization of a ${process.arch} host`
    : name === "kvm" && kvmDevice() === null
      ? "this host has no /dev/kvm"
      : null
  const candidates: ReadonlyArray<Qemu["accelerator"]> = reason === null ? [name, "tcg"] : ["tcg"]
  return { candidates, impossible: reason === null ? [] : [{ name, reason }] }
}

/** Starts a paused machine, waits for QEMU's greeting and quits it. Succeeds when QEMU exits with code 0. */
const launch = Effect.fnUntraced(function* (options: ProbeOptions, accelerator: Qemu["accelerator"], seccomp: boolean) {
  const machine = options.guest === "arm64" ? "virt" : "microvm"
  const cpu = accelerator === "tcg" ? "max" : "host"
  const args = `-accel ${accelerator} -M ${machine} -cpu ${cpu} -m 64 ${paused}`.split(" ")
  let greeted = false
  const ended = yield* run(command(options, seccomp ? [...args, ...sandbox] : args), environment(options), (stdout) => {
    const end = stdout.indexOf("\n")
    if (end === -1 || Option.isNone(decodeGreeting(stdout.slice(0, end)))) return null
    greeted = true
    return '{"execute":"qmp_capabilities"}\n{"execute":"quit"}\n'
  })
  return ended.problem === null && !greeted ? { ...ended, problem: "it ended without a greeting" } : ended
})

const command = ({ found, launcher }: ProbeOptions, args: ReadonlyArray<string>): [string, ...Array<string>] => {
  const [first = found.path, ...rest] = [...launcher.argv, found.path, ...args]
  return [first, ...rest]
}

const environment = ({ search }: ProbeOptions): Record<string, string> => ({
  PATH: search.filter((directory) => isAbsolute(directory)).join(":"),
  LANG: "C"
})
