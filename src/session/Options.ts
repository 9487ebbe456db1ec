/** How a session is set up; public as `Sandbox.SessionOptions`. */
import * as Schema from "effect/Schema"
import * as Execution from "../Execution.ts"
import { Limits } from "../Limits.ts"
import { NetworkPolicy } from "../NetworkPolicy.ts"
import { Packages } from "../Packages.ts"
import type { PermissionDenied, SandboxError, UnsupportedCommand } from "../SandboxError.ts"
import { Secrets } from "../Secrets.ts"
import { Snapshot } from "../Snapshot.ts"

const upToADay = Schema.Int.check(
  Schema.isBetween({ minimum: 1, maximum: 86_400_000 }, { expected: "a whole number of ms from 1 to 86400000" })
)

/**
 * How a session is set up.
 *
 * - `from`: a snapshot, or its name or id, to continue from. The settings of the session that it was taken from do not come
 *   with it: env, limits and idle time are those given here. A new machine when absent.
 * - `env`: environment variables of every execution.
 * - `limits`: see `Limits`; `memoryMiB` also fixes the size of the VM. With `from` it is by default, and at most, what the
 *   snapshot's session had.
 * - `network`: what may be reached, see `NetworkPolicy`; nothing when absent, also with `from`.
 * - `secrets`: values that the code can use but never see, see `Secrets`; none when absent, also with `from`.
 * - `packages`: what is installed in addition to the image, see `Packages`. The first caller waits for the installation. Not
 *   with `from`: a snapshot already contains its packages.
 * - `idleMs`: the session is closed, and its VM destroyed, when nothing has used it for this long, in ms, 1 to 86,400,000
 *   (a day), default 300,000. A running execution counts as use however long it takes.
 * - `parkAfterMs`: the session is parked when nothing has used it for this long, in ms, 1 to 86,400,000, and wakes on the next
 *   use; see `Session.park`. Never when absent. A parked session counts as idle and is closed after `idleMs`, so make that longer.
 *
 * @since 0.1.0
 * @category models
 */
export const SessionOptions = Schema.Struct({
  from: Schema.optionalKey(Schema.Union([Schema.NonEmptyString, Snapshot])),
  env: Schema.optionalKey(Execution.Environment),
  limits: Schema.optionalKey(Limits),
  network: Schema.optionalKey(NetworkPolicy),
  secrets: Schema.optionalKey(Secrets),
  packages: Schema.optionalKey(Packages),
  idleMs: Schema.optionalKey(upToADay),
  parkAfterMs: Schema.optionalKey(upToADay)
})
/**
 * @since 0.1.0
 * @category models
 */
export type SessionOptions = typeof SessionOptions.Type

/** Session options without packages; opening a session with them fails only with `SandboxError`. @since 0.1.0 @category models */
export type PlainSessionOptions = SessionOptions & { readonly packages?: never }

/** How a fork is set up, as in `SessionOptions`; what is absent is as in its parent. @since 0.1.0 @category models */
export type ForkOptions = Omit<SessionOptions, "from">

/**
 * Why a session could not be opened. With packages, this can also be that the policy refuses one (`PermissionDenied`) or that
 * there is no such package (`UnsupportedCommand`); the receipt of such an error is for a VM in which nothing has run.
 *
 * @since 0.1.0
 * @category errors
 */
export type SessionFailure = SandboxError | PermissionDenied | UnsupportedCommand
