/** Which launcher works on this host: one that changes the user, denies new privileges and kills QEMU with its parent. */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type { Launcher } from "./Model.ts"
import { run } from "../internal/BoundedProcess.ts"
import { findExecutable, fingerprint } from "../internal/Files.ts"
import { readRecord, writeRecord } from "./Record.ts"
import { hostState, kvmDevice, programState } from "./State.ts"

/** `drop`: run as nobody. `keep`: run as the caller. `none`: no launcher works. */
const Mode = Schema.Literals(["drop", "keep", "none"])
type Mode = typeof Mode.Type

const decodeMode = Schema.decodeUnknownOption(Schema.fromJsonString(Schema.Struct({ launcher: Mode })))

/** Linux gives uid and gid 65534 to the user that owns nothing. */
const nobody = 65534

const withoutLauncher: Launcher = { argv: [], user: null, uid: null, gid: null, parentDeath: false }

/**
 * The supplementary groups of nobody: the group of /dev/kvm where that grants access. Never group 0, which may do much
 * more, and none where all users may open the device.
 */
const groups = (): ReadonlyArray<string> => {
  const kvm = kvmDevice()
  return kvm !== null && kvm.gid !== 0 && (kvm.mode & 0o060) === 0o060 && (kvm.mode & 0o006) !== 0o006
    ? ["--groups", String(kvm.gid)]
    : ["--clear-groups"]
}

const launcherOf = (setpriv: string, mode: Mode): Launcher => {
  if (mode === "none") return withoutLauncher
  // setpriv asks for the signal last: a change of user would have cleared it.
  const always = [setpriv, "--no-new-privs", "--pdeathsig", "KILL"]
  return mode === "drop"
    ? {
        argv: [...always, "--reuid", String(nobody), "--regid", String(nobody), ...groups(), "--"],
        user: "nobody",
        uid: nobody,
        gid: nobody,
        parentDeath: true
      }
    : { argv: [...always, "--"], user: null, uid: null, gid: null, parentDeath: true }
}

/** The best launcher that worked when tried. Without a usable cache this takes a few ms more. */
export const probeLauncher = Effect.fnUntraced(function* (options: {
  readonly cache: string
  readonly search: ReadonlyArray<string>
  readonly uid: number
}) {
  const setpriv = process.platform === "linux" ? findExecutable("setpriv", options.search) : null
  if (setpriv === null) return withoutLauncher
  const key = fingerprint(["launcher", ...hostState(), ...programState(setpriv)])
  const before = yield* readRecord(options.cache, key, decodeMode)
  if (Option.isSome(before)) return launcherOf(setpriv, before.value.launcher)
  const env = { PATH: options.search.join(":"), LANG: "C" }
  // Root in a user namespace may have no other user to become.
  const candidates: ReadonlyArray<Mode> = options.uid === 0 ? ["drop", "keep"] : ["keep"]
  let mode: Mode = "none"
  for (const candidate of candidates) {
    const [command, ...rest] = launcherOf(setpriv, candidate).argv
    const ended = yield* run([command ?? setpriv, ...rest, "true"], env)
    if (ended.problem !== null) continue
    mode = candidate
    break
  }
  yield* Effect.ignore(writeRecord(options.cache, key, { launcher: mode }))
  return launcherOf(setpriv, mode)
})
