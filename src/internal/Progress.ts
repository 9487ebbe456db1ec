/**
 * How long work says where it is.
 *
 * Building an image, pulling one and sealing a template take seconds to minutes. They report through this reference, so no
 * signature carries a callback; the default hears nothing. The CLI provides one that draws.
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

/** Whoever listens. It must not fail, and slow listeners slow the work. */
export const Progress = Context.Reference<(event: ProgressEvent) => Effect.Effect<void>>("exec-sandbox/Progress", {
  defaultValue: () => () => Effect.void
})

/** Tells the current listener. */
export const report = (event: ProgressEvent): Effect.Effect<void> =>
  Effect.flatMap(Progress, (listener) => listener(event))
