/** Environment variables, read through `Config` so that tests and embedding programs can provide others. */
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"

/** The variable's value; `undefined` when it is unset or empty. */
export const variable = (name: string): Effect.Effect<string | undefined> =>
  Config.String(name).pipe(
    Effect.map((value) => (value === "" ? undefined : value)),
    Effect.orElseSucceed(() => undefined)
  )
