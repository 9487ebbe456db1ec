/**
 * Closes what nobody has used for a while. Use is counted, not timed: while anything is in use, nothing is idle.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { Vm } from "../Vm.ts"

export interface Idle {
  /** A use: from now until the effect that it gives has run, or the scope closes. */
  readonly use: Effect.Effect<Effect.Effect<void>, never, Scope.Scope>
}

/**
 * Runs `close` once, in the background, when nothing was in use for `idleMs`. `mark` runs at the same moment in which idleness
 * is found, so that no use can begin in between and be cut off.
 */
export const make = Effect.fnUntraced(function* (
  idleMs: number,
  mark: () => void,
  close: Effect.Effect<void>
): Effect.fn.Return<Idle, never, Scope.Scope> {
  let uses = 0
  let quietSince = yield* Clock.currentTimeMillis
  yield* Effect.gen(function* () {
    for (let left = idleMs; left > 0;) {
      yield* Effect.sleep(left)
      const now = yield* Clock.currentTimeMillis
      left = uses > 0 ? idleMs : quietSince + idleMs - now
      if (left <= 0) mark()
    }
    yield* close
  }).pipe(Effect.forkScoped)
  return {
    use: Effect.acquireRelease(
      Effect.sync(() => {
        uses++
        let over = false
        return Effect.map(Clock.currentTimeMillis, (now) => {
          if (over) return
          over = true
          uses--
          quietSince = now
        })
      }),
      (end) => end
    )
  }
})

/** The same VM, whose open streams are uses: each execution, process and transfer, until its end. */
export const watching = (vm: Vm, idle: Idle): Vm => ({
  ...vm,
  open: (message, inputs) =>
    Effect.gen(function* () {
      const end = yield* idle.use
      const stream = yield* vm.open(message, inputs)
      return {
        ...stream,
        take: Effect.tap(stream.take, (events) => (isLast(events.at(-1)) ? end : Effect.void)),
        takeAll: Effect.tap(stream.takeAll, (events) => (isLast(events.at(-1)) ? end : Effect.void))
      }
    })
})

const isLast = (event: { readonly _tag: string } | undefined): boolean =>
  event?._tag === "End" || event?._tag === "Reset"
