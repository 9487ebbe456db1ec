/** Node's asynchronous calls on files, as effects with a typed failure. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { errorCode } from "./Files.ts"

/**
 * A call of Node's failed. `code`: the errno's name (`ENOSPC`), else the error as text. `operation` and `path`: the system
 * call and the file, `undefined` when the error does not say.
 */
export class IoFailed extends Schema.TaggedError<IoFailed>()("IoFailed", {
  code: Schema.String,
  operation: Schema.UndefinedOr(Schema.String),
  path: Schema.UndefinedOr(Schema.String),
  cause: Schema.Defect()
}) {
  override get message(): string {
    return this.cause instanceof Error ? this.cause.message : String(this.cause)
  }
}

const textOf = (error: unknown, field: string): string | undefined => {
  const value: unknown = error instanceof Error ? Reflect.get(error, field) : undefined
  return typeof value === "string" ? value : undefined
}

/** Runs calls on files. Whatever `work` throws is an `IoFailed`: throw nothing else in it. */
export const io = <A>(work: () => Promise<A>): Effect.Effect<A, IoFailed> =>
  Effect.tryPromise({
    try: work,
    catch: (cause) =>
      new IoFailed({ code: errorCode(cause), operation: textOf(cause, "syscall"), path: textOf(cause, "path"), cause })
  })
