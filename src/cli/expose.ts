/** `--expose`: forwards ports of this host to the guest while the code runs. */
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type { PortFailure } from "../Ports.ts"
import type { SandboxError } from "../SandboxError.ts"
import type { Session } from "../Session.ts"
import { Leave } from "./ending.ts"
import { write } from "./output.ts"

/** A port of the guest and a port of the host, where 0 is any free port. */
export interface Wanted {
  readonly guestPort: number
  readonly hostPort: number
}

/** Splits `GUEST[:HOST]`, two numbers; the library checks their range. */
export const parseExpose = (text: string): Option.Option<Wanted> => {
  const [, guest, host = "0"] = /^(\d{1,5})(?::(\d{1,5}))?$/.exec(text) ?? []
  return guest === undefined ? Option.none() : Option.some({ guestPort: Number(guest), hostPort: Number(host) })
}

/** `--expose`, which may be repeated. */
export const expose = Flag.String("expose").pipe(
  Flag.withMetavar("GUEST[:HOST]"),
  Flag.withDescription(
    "Forward TCP port HOST of 127.0.0.1 (default: a free port) to port GUEST of the VM; may be repeated"
  ),
  Flag.filterMap(parseExpose, () => "GUEST[:HOST], two port numbers; only TCP is forwarded, not UDP or SOCKS"),
  Flag.atLeast(0)
)

const failed = (error: PortFailure): SandboxError | Leave =>
  error._tag === "SandboxError" ? error : new Leave({ code: 2, why: error.message })

/** Exposes the ports in order until the scope closes, and prints the URL of each to stderr unless `quiet`. */
export const exposeAll = (session: Session, wanted: ReadonlyArray<Wanted>, quiet: boolean) =>
  Effect.forEach(
    wanted,
    ({ guestPort, hostPort }) =>
      Effect.flatMap(Effect.mapError(session.ports.expose(guestPort, { hostPort }), failed), ({ url }) =>
        quiet ? Effect.void : write(process.stderr, `port ${guestPort}: ${url}\n`)
      ),
    { discard: true }
  )
