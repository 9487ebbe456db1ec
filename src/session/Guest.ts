/** Requests to a session's guest, for its files, ports and changes: a lost VM or a closed session becomes a `SandboxError`. */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import type { Open } from "../guest/Agent.ts"
import { fail, ProtocolError, type SandboxError, SessionClosed } from "../SandboxError.ts"
import type { Vm, VmLost } from "../Vm.ts"
import { type Presence, using } from "./Parking.ts"

/** The state of the session: its id, why it is closed (if it is), and its uses. */
interface State {
  readonly id: string
  readonly closed: () => string | undefined
  readonly close: (problem: string) => void
  readonly presence: Presence
}

export interface Guest {
  /** Fails when the session is closed. */
  readonly usable: Effect.Effect<void, SandboxError>
  /** Makes a request. Fails when the session is closed; a lost VM closes the session. */
  readonly open: Open<SandboxError>
  /** Fails because the guest broke the protocol, and destroys the VM. */
  readonly violated: (problem: string) => Effect.Effect<never, SandboxError>
}

export const make = (vm: Vm, state: State): Guest => {
  const over = (problem: string) => fail(new SessionClosed({ session: state.id, problem }))
  const usable = Effect.suspend(() => {
    const closed = state.closed()
    return closed === undefined ? Effect.void : Effect.fail(over(closed))
  })
  const lost = (error: VmLost): Effect.Effect<never, SandboxError> => {
    state.close(error.problem)
    return Effect.fail(error.violation ? fail(new ProtocolError({ problem: error.problem })) : over(error.problem))
  }
  const reading = <A>(take: Effect.Effect<A, VmLost | Cause.Done>) => Effect.catchTag(take, "VmLost", lost)
  return {
    usable,
    open: (method, request, inputs) =>
      usable.pipe(
        Effect.andThen(using(state.presence)),
        Effect.andThen(Effect.catch(vm.open(method, request, inputs), lost)),
        Effect.map((stream) => ({ ...stream, take: reading(stream.take), takeAll: reading(stream.takeAll) }))
      ),
    violated: (problem) => {
      state.close("its guest broke the protocol")
      return Effect.andThen(vm.destroy, Effect.fail(fail(new ProtocolError({ problem }))))
    }
  }
}
