import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { errorCode } from "./Files.ts"

/** A call of Node's failed; `code` is the errno's name (`ENOSPC`) when it has one. */
export class IoFailed extends Schema.TaggedError<IoFailed>()("IoFailed", {
  code: Schema.String,
  problem: Schema.String
}) {
  override get message(): string {
    return this.problem
  }
}

/** Files and such, as an effect. */
export const io = <A>(work: () => Promise<A>): Effect.Effect<A, IoFailed> =>
  Effect.tryPromise({
    try: work,
    catch: (error) =>
      new IoFailed({ code: errorCode(error), problem: error instanceof Error ? error.message : String(error) })
  })
