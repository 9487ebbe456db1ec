/** The models of `Host`, for it and for its probes. */
import * as Schema from "effect/Schema"

/**
 * A CPU architecture, by Debian's names.
 *
 * @since 0.1.0
 * @category models
 */
export type Architecture = "amd64" | "arm64"

/**
 * A QEMU binary that was launched successfully on this host.
 *
 * `path`: absolute, symbolic links resolved. `version`: for example `7.2.22`. `identity`: SHA-256 in hex over path, size,
 * modification time and version; another binary has another one. `accelerator`: the best one on which it started for the
 * guest's architecture; `missedAccelerators`: the better ones of this platform, and why each is not used. `seccomp`: it
 * started under the strictest `-sandbox`; `false` means that it runs without a syscall filter.
 *
 * @since 0.1.0
 * @category models
 */
export interface Qemu {
  readonly path: string
  readonly version: string
  /** Whether the version is `major.minor` or newer. */
  readonly atLeast: (major: number, minor: number) => boolean
  readonly identity: string
  readonly accelerator: "kvm" | "hvf" | "tcg"
  readonly missedAccelerators: ReadonlyArray<{ readonly name: string; readonly reason: string }>
  readonly seccomp: boolean
}

/**
 * What to put before the QEMU binary.
 *
 * `argv`: a command and its options, to which the program is appended; may be empty. `user`, `uid`, `gid`: the user that
 * QEMU runs as, `null` when it runs as the caller. `parentDeath`: the kernel kills QEMU when the thread that started it
 * ends, also by `kill -9` of this process.
 *
 * @since 0.1.0
 * @category models
 */
export interface Launcher {
  readonly argv: ReadonlyArray<string>
  readonly user: string | null
  readonly uid: number | null
  readonly gid: number | null
  readonly parentDeath: boolean
}

/**
 * One row of a report. `ok`: as it should be. `warning`: works, but slower or with less isolation than it could.
 * `failed`: VMs cannot run until it is fixed. `fix`: what to do, a command where there is one; `null` when there is
 * nothing to do.
 *
 * @since 0.1.0
 * @category models
 */
export const Check = Schema.Struct({
  name: Schema.String,
  status: Schema.Literals(["ok", "warning", "failed"]),
  detail: Schema.String,
  fix: Schema.NullOr(Schema.String)
})
/**
 * @since 0.1.0
 * @category models
 */
export type Check = typeof Check.Type

/**
 * What `doctor` found. `ok`: no check failed. `version`: of exec-sandbox. `platform`: Node's name of the operating system.
 * `arch`: of this host.
 *
 * @since 0.1.0
 * @category models
 */
export const Report = Schema.Struct({
  ok: Schema.Boolean,
  version: Schema.String,
  platform: Schema.String,
  arch: Schema.Literals(["amd64", "arm64"]),
  checks: Schema.Array(Check)
})
/**
 * @since 0.1.0
 * @category models
 */
export type Report = typeof Report.Type

/**
 * The report with further checks at its end; `ok` is decided again.
 *
 * @since 0.1.0
 * @category combinators
 */
export const addChecks = (report: Report, checks: ReadonlyArray<Check>): Report => ({
  ...report,
  ok: report.ok && checks.every((check) => check.status !== "failed"),
  checks: [...report.checks, ...checks]
})
