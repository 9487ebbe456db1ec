/**
 * Progress of long work: building an image, pulling one and sealing a template take seconds to minutes.
 *
 * They report through this reference, so that no signature needs a callback. The default ignores reports; the CLI draws them.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"

/**
 * One step. `stage` names the work (`image`, `template`, …), `message` is a short sentence in lower case. `done` and `total`
 * are bytes when the step can be measured.
 */
export interface ProgressEvent {
  readonly stage: string
  readonly message: string
  readonly done?: number
  readonly total?: number
}

/** The listener. It must not fail, and a slow one slows the work. */
export const Progress = Context.Reference<(event: ProgressEvent) => Effect.Effect<void>>("exec-sandbox/Progress", {
  defaultValue: () => () => Effect.void
})

/** Reports to the current listener. */
export const report = (event: ProgressEvent): Effect.Effect<void> =>
  Effect.flatMap(Progress, (listener) => listener(event))
