/** HELLO: sends a machine its clock, entropy, identity and settings, and fails unless it acknowledges each of them. */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import { randomBytes } from "node:crypto"
import type * as Channel from "../guest/Channel.ts"
import { type GuestHello, type Hello, protocol } from "../guest/Hello.ts"
import { BootFailed, fail, ProtocolError, type SandboxError } from "../SandboxError.ts"
import type * as Machine from "../qemu/Machine.ts"
import type { Identity } from "../Vm.ts"
import { diskShare } from "./diskShare.ts"

/** Makes the error of a start that failed at this stage, with the console's output. */
export const bootFailed =
  (stage: BootFailed["stage"], machine: Machine.Machine | undefined) =>
  (error: Error): SandboxError =>
    fail(new BootFailed({ stage, problem: error.message, console: machine?.console().trim() ?? "" }))

/** How long a guest may take to answer HELLO; no user code runs before the answer. */
const handoverBound = "15 seconds"

export const handover = Effect.fnUntraced(function* (
  machine: Machine.Machine,
  channel: Channel.Channel,
  identity: Identity,
  purpose: Hello["purpose"]
): Effect.fn.Return<GuestHello, SandboxError> {
  const now = yield* Clock.currentTimeNanos
  const failed = bootFailed("handover", machine)
  const reply = yield* channel
    .handshake({
      protocol,
      purpose,
      clock: `${now}`,
      entropy: randomBytes(64).toString("hex"),
      hostname: identity.hostname,
      machineId: randomBytes(16).toString("hex"),
      env: identity.env,
      limits: {
        memoryBytes: identity.limits.memoryMiB * 1024 * 1024,
        processes: identity.limits.processes,
        diskBytes: diskShare(identity.limits.diskMiB),
        fileSizeBytes: diskShare(identity.limits.fileSizeMiB)
      },
      network: identity.network
    })
    .pipe(
      Effect.mapError((error) =>
        error._tag === "ChannelViolation" ? fail(new ProtocolError({ problem: error.problem })) : failed(error)
      ),
      Effect.timeoutOrElse({
        duration: handoverBound,
        orElse: () => Effect.fail(failed(new Error("the guest did not answer HELLO")))
      })
    )
  const refused = Object.entries(reply.acknowledged ?? { everything: false })
    .filter(([, done]) => !done)
    .map(([name]) => name)
  if (refused.length > 0) {
    return yield* failed(new Error(`the guest did not take over ${refused.join(", ")}`))
  }
  return reply
})
