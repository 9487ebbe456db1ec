/**
 * HELLO: the first message of host and agent after every (re)connection. The host's contains what distinguishes a clone from
 * every other one; the agent's acknowledges each part of it.
 */
import * as Schema from "effect/Schema"

/** The version that both sides must speak. */
export const protocol = 1

/** The name of the channel's virtio-serial port. */
export const portName = "exec-sandbox.channel"

const Text = Schema.Record(Schema.String, Schema.String)
const Amount = Schema.Int.check(Schema.isGreaterThanOrEqualTo(0))

/** Access to the network. `authorities`: PEM certificates that the guest trusts in addition; `env`: tells programs about them. */
export const NetworkGrant = Schema.Struct({ authorities: Schema.String, env: Text })
export type NetworkGrant = typeof NetworkGrant.Type

/**
 * The host's HELLO.
 *
 * - `purpose`: `build` makes a template; `rehearsal` runs code of ours in a clone that no caller has yet; `claim` hands such a
 *   clone to a caller and keeps the entropy its interpreters took in the rehearsal; `session` hands over a clone that was not
 *   rehearsed; `wake` continues a parked session, which takes only the clock and entropy.
 * - `clock`: wall clock, nanoseconds since 1970 as a decimal string.
 * - `entropy`: 64 fresh random bytes in hex.
 * - `machineId`: 32 hex digits.
 * - `limits`: in `diskBytes` and `fileSizeBytes`, 0 means the size of the disk.
 * - `network`: with `null` the guest has only its loopback.
 */
export const Hello = Schema.Struct({
  protocol: Schema.Literal(protocol),
  purpose: Schema.Literals(["build", "rehearsal", "claim", "session", "wake"]),
  clock: Schema.String,
  entropy: Schema.String,
  hostname: Schema.String,
  machineId: Schema.String,
  env: Text,
  limits: Schema.Struct({ memoryBytes: Amount, processes: Amount, diskBytes: Amount, fileSizeBytes: Amount }),
  network: Schema.NullOr(NetworkGrant)
})
export type Hello = typeof Hello.Type

/** The parts of a HELLO that the agent acknowledges one by one. */
export const Acknowledged = Schema.Struct({
  clock: Schema.Boolean,
  entropy: Schema.Boolean,
  hostname: Schema.Boolean,
  machineId: Schema.Boolean,
  env: Schema.Boolean,
  limits: Schema.Boolean,
  network: Schema.Boolean
})
export type Acknowledged = typeof Acknowledged.Type

/** The agent's HELLO. `acknowledged` is absent in the greeting that a guest sends when it has booted. */
export const GuestHello = Schema.Struct({
  protocol: Schema.Literal(protocol),
  ready: Schema.Boolean,
  acknowledged: Schema.optionalKey(Acknowledged),
  languages: Schema.Array(Schema.String),
  kernel: Schema.String,
  agent: Schema.String
})
export type GuestHello = typeof GuestHello.Type
