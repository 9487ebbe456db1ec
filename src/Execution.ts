/**
 * Execution: the request to run code, its output events, and its result or error.
 *
 * An execution has exactly one outcome. The host decides it from what the guest's agent reports, never from stdout or stderr.
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
 * The languages that code can be written in. JavaScript and TypeScript share one interpreter and its state.
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
 * Environment variables. Names: not empty, without `=` and NUL; values: without NUL; both without lone surrogates; at most
 * 128 KiB together as JSON.
 *
 * @since 0.1.0
 * @category models
 */
export const Environment = Schema.Record(Schema.String, Schema.String.check(withoutNul)).check(
  Schema.makeFilter(
    (env: { readonly [name: string]: string }) =>
      Object.keys(env).every((name) => /^[^=\0]+$/.test(name) && name.isWellFormed()),
    { expected: "well-formed environment names that are not empty and contain neither '=' nor NUL" }
  ),
  // It is sent as JSON, where a control character takes six bytes.
  Schema.makeFilter((env: { readonly [name: string]: string }) => Buffer.byteLength(JSON.stringify(env)) <= maxEnv, {
    expected: `at most ${maxEnv} bytes of environment`
  })
)

/**
 * What to execute.
 *
 * - `language`: see `Language`.
 * - `code`: not empty, without NUL and lone surrogates, at most 16 MiB of UTF-8.
 * - `stdin`: what the code reads, bytes or text without lone surrogates, at most 16 MiB; empty when absent.
 * - `env`: environment variables for this execution only, in addition to the session's.
 * - `cwd`: working directory in the guest for this execution only.
 * - `limits`: for this execution; what is absent comes from the session.
 * - `changes`: `true`, or options, to report in the result which files changed while it ran.
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
 * The result of a successful execution: the fields of `SandboxError.resultFields`, and `result`, the value of a trailing
 * expression: its `repr` and, when it is plain data, `json`; `null` when there is none.
 *
 * @since 0.1.0
 * @category models
 */
export class Result extends Schema.Class<Result>("exec-sandbox/Execution/Result")({
  ...resultFields,
  result: Schema.NullOr(Schema.Struct({ repr: Schema.String, json: Schema.optionalKey(Schema.Json) }))
}) {}

/**
 * Why a task failed: one of the four errors that the task itself caused, each with the output so far and the receipt.
 *
 * @since 0.1.0
 * @category errors
 */
export type TaskError = PermissionDenied | UnsupportedCommand | LimitExceeded | TaskFailed

/**
 * Why an execution failed: an error of the task, or of the sandbox.
 *
 * @since 0.1.0
 * @category errors
 */
export type Failure = TaskError | SandboxError

/**
 * Whether an error is one of the four that a task itself causes.
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
 * A finished execution, successful or not, as a plain value: the fields of a result (`result` is `null` unless it succeeded),
 * `outcome` to switch over, `exitCode` as a shell would show it (128 + n after signal number n, `null` when there is none), and
 * `error`, `null` after a success.
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
 * Turns the four errors of a task into values, for callers that want to see an exit code. Every other error, such as
 * `SandboxError`, stays an error: it says nothing about the task.
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
 * An event of a running execution: bytes of stdout or stderr as they are written (in order within each of the two; a chunk may
 * end inside a character), and at last the result. The stream of a failed execution ends with the error instead.
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
 * Decodes the output of a stream of events as UTF-8, stdout and stderr separately: a character is never split, whatever
 * chunks it came in, and bytes that are not UTF-8 become U+FFFD. No event has an empty text. An incomplete character at the
 * end comes as U+FFFD before the result, or before the error.
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
    const decoders = {
      Stdout: new TextDecoder("utf-8", keepByteOrderMark),
      Stderr: new TextDecoder("utf-8", keepByteOrderMark)
    }
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

/** Decodes a byte order mark as a character, so that no output is dropped. */
const keepByteOrderMark = { ignoreBOM: true }
