/** The files of a session: what a lost VM or a closed session means for them. */
import * as Effect from "effect/Effect"
import type { Files } from "../Files.ts"
import { fail, ProtocolError, SessionClosed, type SandboxError } from "../SandboxError.ts"
import type { Vm, VmLost } from "../Vm.ts"
import * as CopyFiles from "./CopyFiles.ts"
import * as SessionFiles from "./SessionFiles.ts"

/** What a session knows of itself: whether it is closed, and why. */
interface State {
  readonly id: string
  readonly closed: () => string | undefined
  readonly close: (problem: string) => void
}

/** Files over a session's VM. */
export const make = (vm: Vm, state: State): Files => {
  const over = (problem: string) => fail(new SessionClosed({ session: state.id, problem }))
  const lost = (error: VmLost): Effect.Effect<never, SandboxError> => {
    state.close(error.problem)
    return Effect.fail(error.violation ? fail(new ProtocolError({ problem: error.problem })) : over(error.problem))
  }
  const guest: SessionFiles.Guest = {
    lost,
    open: (message) =>
      Effect.suspend(() => {
        const closed = state.closed()
        return closed === undefined ? Effect.catch(vm.open(message, []), lost) : Effect.fail(over(closed))
      }),
    violated: (problem) => {
      state.close("its guest broke the protocol")
      return Effect.andThen(vm.destroy, Effect.fail(fail(new ProtocolError({ problem }))))
    }
  }
  const client = SessionFiles.makeClient(guest)
  const files = SessionFiles.make(guest, client)
  return { ...files, ...CopyFiles.make(client, files) }
}
