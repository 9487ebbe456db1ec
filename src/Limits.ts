/**
 * Limits: what one execution may use at the most. Each is a value with a unit, and each that is hit becomes a
 * `LimitExceeded` with what was allowed and observed.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"

const between = (minimum: number, maximum: number, unit: string) =>
  Schema.Int.check(
    Schema.isBetween({ minimum, maximum }, { expected: `a whole number of ${unit} from ${minimum} to ${maximum}` })
  )

/**
 * The limits a caller may set; what is absent has its default.
 *
 * - `timeMs`: wall clock of one execution in ms, 1 to 86,400,000 (a day), default 30,000. At the limit the process tree
 *   gets SIGINT, one second later SIGKILL.
 * - `memoryMiB`: memory of each interpreter with its children in MiB, 128 to 65,536, default 512. Enforced by the guest's
 *   cgroup. A session's value fixes the size of its VM; an execution may only lower it.
 * - `outputBytes`: bytes kept of stdout and of stderr, each, 0 to 67,108,864, default 1,048,576. What is longer keeps its
 *   head and tail; the receipt counts every byte.
 * - `processes`: processes and threads of each interpreter with its children, 16 to 4,096, default 256.
 *
 * @since 0.1.0
 * @category models
 */
export const Limits = Schema.Struct({
  timeMs: Schema.optionalKey(between(1, 86_400_000, "ms")),
  memoryMiB: Schema.optionalKey(between(128, 65_536, "MiB")),
  outputBytes: Schema.optionalKey(between(0, 64 * 1024 * 1024, "bytes")),
  processes: Schema.optionalKey(between(16, 4096, "processes"))
})
/**
 * @since 0.1.0
 * @category models
 */
export type Limits = typeof Limits.Type

/**
 * The limits when the caller says nothing.
 *
 * @since 0.1.0
 * @category constants
 */
export const defaults: Required<Limits> = { timeMs: 30_000, memoryMiB: 512, outputBytes: 1024 * 1024, processes: 256 }
