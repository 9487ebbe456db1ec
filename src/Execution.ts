/**
 * Execution: one piece of code run in a session, what it gives while it runs, and what is made of its end.
 *
 * The guest's agent reports evidence; `classify` turns it into exactly one outcome. That is the only place where an
 * outcome is decided, and it never looks at stdout or stderr.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Asked } from "./Changes.ts"
import { Limits } from "./Limits.ts"
import {
  LimitExceeded,
  PermissionDenied,
  resultFields,
  type SandboxError,
  TaskFailed,
  UnsupportedCommand
} from "./SandboxError.ts"

/**
 * The languages code can be written in. JavaScript and TypeScript share one interpreter and its state.
 *
 * @since 0.1.0
 * @category models
 */
export const Language = Schema.Literals(["python", "javascript", "typescript", "bash"])
/**
 * @since 0.1.0
 * @category models
 */
export type Language = typeof Language.Type

/** The most bytes of code, and of stdin, that one execution takes. */
const maxInput = 16 * 1024 * 1024

const withoutNul = Schema.makeFilter((text: string) => !text.includes("\0") && text.isWellFormed(), {
  expected: "well-formed text without NUL characters"
})

const Code = Schema.String.check(
  Schema.makeFilter((code: string) => code.trim() !== "", { expected: "code that is not empty" }),
  withoutNul,
  Schema.makeFilter((code: string) => code.length <= maxInput && Buffer.byteLength(code) <= maxInput, {
    expected: `at most ${maxInput} bytes of code`
  })
)

const Stdin = Schema.Union([Schema.String, Schema.Uint8Array]).check(
  Schema.makeFilter((stdin: string | Uint8Array) => Buffer.byteLength(stdin) <= maxInput, {
    expected: `at most ${maxInput} bytes of stdin`
  }),
  Schema.makeFilter((stdin: string | Uint8Array) => typeof stdin !== "string" || stdin.isWellFormed(), {
    expected: "well-formed text, or bytes"
  })
)

const maxEnv = 128 * 1024

/**
 * Environment variables. Names: not empty, without `=` and NUL; values: without NUL; both without lone surrogates; as JSON
 * 128 KiB together.
 *
 * @since 0.1.0
 * @category models
 */
export const Environment = Schema.Record(Schema.String, Schema.String.check(withoutNul)).check(
  Schema.makeFilter(
    (env: { readonly [name: string]: string }) =>
      Object.keys(env).every((name) => /^[^=\0]+$/.test(name) && name.isWellFormed()),
    { expected: "well-formed environment names that are not empty and hold neither '=' nor NUL" }
  ),
  // As it travels: in JSON, where a control character takes six bytes.
  Schema.makeFilter((env: { readonly [name: string]: string }) => Buffer.byteLength(JSON.stringify(env)) <= maxEnv, {
    expected: `at most ${maxEnv} bytes of environment`
  })
)

/**
 * What to execute.
 *
 * - `language`: see `Language`.
 * - `code`: not empty, without NUL and lone surrogates, at most 16 MiB of UTF-8.
 * - `stdin`: what the code reads, bytes or text without lone surrogates, at most 16 MiB; nothing when absent.
 * - `env`: environment variables for this execution only.
 * - `cwd`: working directory in the guest for this execution only.
 * - `limits`: for this execution; what is absent comes from the session.
 * - `changes`: `true`, or options: the result says which files changed while it ran.
 *
 * @since 0.1.0
 * @category models
 */
export const Request = Schema.Struct({
  language: Language,
  code: Code,
  stdin: Schema.optionalKey(Stdin),
  env: Schema.optionalKey(Environment),
  cwd: Schema.optionalKey(Schema.NonEmptyString.check(withoutNul, Schema.isMaxLength(4096))),
  limits: Schema.optionalKey(Limits),
  changes: Schema.optionalKey(Asked)
})
/**
 * @since 0.1.0
 * @category models
 */
export type Request = typeof Request.Type

/**
 * What a successful execution gives: `stdout` and `stderr` as text (bytes that are not UTF-8 become U+FFFD) and as exact
 * `bytes`, the `receipt`, and `result`, the value of a trailing expression: its `repr` and, when it is plain data, `json`.
 *
 * @since 0.1.0
 * @category models
 */
export class Result extends Schema.Class<Result>("exec-sandbox/Execution/Result")({
  ...resultFields,
  result: Schema.NullOr(Schema.Struct({ repr: Schema.String, json: Schema.optionalKey(Schema.Json) }))
}) {}

/**
 * Why a task has no `Result`: one of the four errors that are the task's own and carry all it did until then.
 *
 * @since 0.1.0
 * @category errors
 */
export type TaskError = PermissionDenied | UnsupportedCommand | LimitExceeded | TaskFailed

/**
 * Why an execution has no `Result`: one of the five error channels.
 *
 * @since 0.1.0
 * @category errors
 */
export type Failure = TaskError | SandboxError

/**
 * Whether an error is one of the four that a task ends with.
 *
 * @since 0.1.0
 * @category guards
 */
export const isTaskError = (error: unknown): error is TaskError =>
  error instanceof TaskFailed ||
  error instanceof LimitExceeded ||
  error instanceof PermissionDenied ||
  error instanceof UnsupportedCommand

/**
 * An execution that ended, well or not, as a plain value: a result's own fields (`result` is `null` unless it succeeded),
 * `outcome` to switch over, the exit code a shell would show (128 + n after a signal, `null` when there is none) and the
 * error, `null` after a success.
 *
 * @since 0.1.0
 * @category models
 */
export type Settled = Pick<Result, "stdout" | "stderr" | "bytes" | "outputFiles" | "changes" | "receipt" | "result"> & {
  readonly exitCode: number | null
} & (
    | { readonly outcome: "Success"; readonly error: null }
    | { readonly outcome: "PermissionDenied"; readonly error: PermissionDenied }
    | { readonly outcome: "UnsupportedCommand"; readonly error: UnsupportedCommand }
    | { readonly outcome: "LimitExceeded"; readonly error: LimitExceeded }
    | { readonly outcome: "TaskFailed"; readonly error: TaskFailed }
  )

/** The fields that results and task errors share. */
const shared = ({ bytes, changes, outputFiles, receipt, stderr, stdout }: Result | TaskError) => ({
  stdout,
  stderr,
  bytes,
  outputFiles,
  changes,
  receipt,
  exitCode: receipt.exitCode
})

const settled = (error: TaskError): Settled => {
  const common = { ...shared(error), result: null }
  switch (error._tag) {
    case "PermissionDenied":
      return { ...common, outcome: error._tag, error }
    case "UnsupportedCommand":
      return { ...common, outcome: error._tag, error }
    case "LimitExceeded":
      return { ...common, outcome: error._tag, error }
    case "TaskFailed":
      return { ...common, outcome: error._tag, error }
  }
}

/**
 * Gives how an execution ended as a value instead of an error, for callers who want to see an exit code. Whatever is not the
 * task's own (`SandboxError`) stays an error: it says nothing about the task.
 *
 * @example
 * ```ts
 * const { exitCode, stdout } = yield* session.exec({ language: "bash", code: "grep -c x notes" }).pipe(Execution.settle)
 * ```
 *
 * @since 0.1.0
 * @category combinators
 */
export const settle = <E, R>(effect: Effect.Effect<Result, E, R>): Effect.Effect<Settled, Exclude<E, TaskError>, R> =>
  effect.pipe(
    Effect.map((done): Settled => ({ ...shared(done), result: done.result, outcome: "Success", error: null })),
    Effect.catchIf(
      (error): error is E & TaskError => isTaskError(error),
      (error) => Effect.succeed(settled(error))
    )
  ) as Effect.Effect<Settled, Exclude<E, TaskError>, R>

/**
 * What a running execution gives: bytes of stdout or stderr as they are written (each in its own order; a chunk may end
 * inside a character), and at last the result. A failed execution ends its stream with the error instead.
 *
 * @since 0.1.0
 * @category models
 */
export type Event =
  | { readonly _tag: "Stdout"; readonly bytes: Uint8Array }
  | { readonly _tag: "Stderr"; readonly bytes: Uint8Array }
  | { readonly _tag: "Done"; readonly result: Result }

/**
 * An `Event` with its output as text.
 *
 * @since 0.1.0
 * @category models
 */
export type TextEvent =
  | { readonly _tag: "Stdout"; readonly text: string }
  | { readonly _tag: "Stderr"; readonly text: string }
  | { readonly _tag: "Done"; readonly result: Result }

/**
 * Reads the bytes of a stream of events as UTF-8, stdout and stderr each for itself: a character is never split, whatever
 * chunks it came in, and bytes that are no UTF-8 become U+FFFD. No event has an empty text. What is left of an unfinished
 * character at the end comes before the result, or before the error.
 *
 * @example
 * ```ts
 * session.stream(request).pipe(Execution.text, Stream.runForEach((event) => Console.log(event)))
 * ```
 *
 * @since 0.1.0
 * @category combinators
 */
export const text = <E, R>(events: Stream.Stream<Event, E, R>): Stream.Stream<TextEvent, E, R> =>
  Stream.suspend(() => {
    const decoders = { Stdout: new TextDecoder("utf-8", keepMark), Stderr: new TextDecoder("utf-8", keepMark) }
    const chunk = (_tag: "Stdout" | "Stderr", bytes?: Uint8Array): ReadonlyArray<TextEvent> => {
      const decoded = bytes === undefined ? decoders[_tag].decode() : decoders[_tag].decode(bytes, { stream: true })
      return decoded === "" ? [] : [{ _tag, text: decoded }]
    }
    const rest = () => [...chunk("Stdout"), ...chunk("Stderr")]
    return events.pipe(
      Stream.map((event): ReadonlyArray<TextEvent> =>
        event._tag === "Done" ? [...rest(), event] : chunk(event._tag, event.bytes)
      ),
      Stream.flattenIterable,
      Stream.catch((error) =>
        Stream.concat(
          Stream.suspend(() => Stream.fromIterable(rest())),
          Stream.fail(error)
        )
      )
    )
  })

/** A byte order mark is a character like any other. */
const keepMark = { ignoreBOM: true }
