/**
 * Ports: reach servers in a session's guest from the host. The guest needs no network for this: each connection is a stream
 * of the channel, which the agent connects to the guest's loopback (127.0.0.1, else ::1).
 *
 * Only TCP is forwarded: there is neither UDP nor a SOCKS proxy.
 *
 * @since 0.1.0
 */
import type * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type { SandboxError } from "./SandboxError.ts"

const between = (minimum: number) =>
  Schema.Int.check(Schema.isBetween({ minimum, maximum: 65_535 }, { expected: `a port from ${minimum} to 65535` }))

/** A port of the guest, 1 to 65,535. @since 0.1.0 @category models */
export const GuestPort = between(1)

/**
 * The options of `expose`.
 *
 * - `hostPort`: the port on the host, 0 to 65,535; with 0, the default, the host chooses a free one.
 * - `protocol`: `tcp`, the only one there is.
 *
 * @since 0.1.0
 * @category models
 */
export const ExposeOptions = Schema.Struct({
  hostPort: Schema.optionalKey(between(0)),
  protocol: Schema.optionalKey(
    Schema.Literal("tcp").annotate({
      expected: '"tcp": neither UDP nor SOCKS is forwarded',
      message: '"tcp": neither UDP nor SOCKS is forwarded'
    })
  )
})
/**
 * @since 0.1.0
 * @category models
 */
export type ExposeOptions = typeof ExposeOptions.Type

/**
 * A port of the guest that the host can reach: `host` is 127.0.0.1, `port` is the host's port, and `url` is
 * `http://host:port`, for a server that speaks HTTP.
 *
 * @since 0.1.0
 * @category models
 */
export interface Exposed {
  readonly guestPort: number
  readonly host: "127.0.0.1"
  readonly port: number
  readonly url: string
}

/**
 * Why a port could not be reached or exposed.
 *
 * - `NotListening`: no program listens on the guest's port; `waitedMs` is how long `waitFor` has waited, 0 for a connection.
 * - `HostPortTaken`: another program listens on the host's port.
 * - `HostPortDenied`: the host's kernel refuses the port to this user; `rule` is the errno's name, `grant` says what would
 *   allow it.
 * - `Broken`: the connection was reset or could not be made, or the host's port could not be opened; `problem` says why.
 *
 * @since 0.1.0
 * @category errors
 */
export const Reason = Schema.Union([
  Schema.TaggedStruct("NotListening", { waitedMs: Schema.Finite }),
  Schema.TaggedStruct("HostPortTaken", {}),
  Schema.TaggedStruct("HostPortDenied", { rule: Schema.String, grant: Schema.String }),
  Schema.TaggedStruct("Broken", { problem: Schema.String })
])
/**
 * @since 0.1.0
 * @category errors
 */
export type Reason = typeof Reason.Type

const explain = (reason: Reason): string => {
  switch (reason._tag) {
    case "NotListening":
      return reason.waitedMs === 0 ? "no program listens there" : `no program listens there after ${reason.waitedMs} ms`
    case "HostPortTaken":
      return "another program listens there"
    case "HostPortDenied":
      return `permission denied (${reason.rule}); ${reason.grant}`
    case "Broken":
      return reason.problem
  }
}

/**
 * A port could not be reached or exposed. `side` says whether `port` is the guest's or the host's. Open `reason` with
 * `Effect.catchReason("PortError", "NotListening", …)`.
 *
 * @since 0.1.0
 * @category errors
 */
export class PortError extends Schema.TaggedError<PortError>()("PortError", {
  side: Schema.Literals(["guest", "host"]),
  port: Schema.Int,
  reason: Reason
}) {
  override get message(): string {
    return `port ${this.port} of the ${this.side}: ${explain(this.reason)}`
  }
}

/** Why a port operation failed: an error of the port, or of the sandbox. @since 0.1.0 @category errors */
export type PortFailure = PortError | SandboxError

/**
 * The ports of a session.
 *
 * A session forwards at most 128 connections at a time; further ones are closed as soon as they are made. For each connection,
 * the host buffers at most 512 KiB that the client has not read; then the server in the guest has to wait, as with any
 * connection. A client whose server does not read has to wait, too. An open connection counts as use of the session.
 *
 * @since 0.1.0
 * @category models
 */
export interface Ports {
  /**
   * Listens on 127.0.0.1 of the host and forwards every connection to a port of the guest, until the scope or the session
   * closes, which resets connections that are still open. The server in the guest may start later: until then, connections are
   * closed at once. Fails with `HostPortTaken` or `HostPortDenied`.
   */
  readonly expose: (guestPort: number, options?: ExposeOptions) => Effect.Effect<Exposed, PortFailure, Scope.Scope>
  /**
   * Waits until a program listens on a port of the guest, without connecting to it. Fails with `NotListening` when none does
   * within `bound`, at most a day.
   */
  readonly waitFor: (guestPort: number, bound: Duration.Input) => Effect.Effect<void, PortFailure>
}
