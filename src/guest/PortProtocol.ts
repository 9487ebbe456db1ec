/** What host and agent say to each other about the guest's own servers. */
import * as Schema from "effect/Schema"

/**
 * OPEN of a connection to a server on the guest's loopback. The host's bytes go on sub-channel 0, the server's on 1; the end
 * of a sub-channel is that side's half-close. NOTE `connected` comes first, END when both sides have ended; RESET breaks it off.
 */
export interface DialOpen {
  readonly method: "dial"
  readonly port: number
}

/** OPEN of a wait for somebody to listen at a port; END says whether somebody does. */
export interface ListeningOpen {
  readonly method: "listening"
  readonly port: number
  readonly timeoutMs: number
}

export const ListeningEnd = Schema.Struct({ listening: Schema.Boolean })

/** The codes of a RESET that say why there is no connection any more. Whatever else the guest says is `failed`. */
export const BrokenCode = Schema.Literals(["refused", "reset", "timeout", "failed"])
export type BrokenCode = typeof BrokenCode.Type
