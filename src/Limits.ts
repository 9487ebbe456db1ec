/**
 * Limits: how much one execution may use. An execution that exceeds one fails with a `LimitExceeded`, which has the allowed
 * and the observed value.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"

const between = (minimum: number, maximum: number, unit: string) =>
  Schema.Int.check(
    Schema.isBetween({ minimum, maximum }, { expected: `a whole number of ${unit} from ${minimum} to ${maximum}` })
  )

/** The size of the guest's scratch disk, MiB. */
const wholeDisk = 8192

/**
 * The names of the limits, as in `LimitExceeded`. A limit has one name everywhere: the option is the name in camelCase with its
 * unit (`file-size`: `fileSizeMiB`), and the receipt's stop reason is the name with `-limit`.
 *
 * @since 0.1.0
 * @category models
 */
export const Name = Schema.Literals(["time", "memory", "output", "processes", "file-size", "disk"])
/**
 * @since 0.1.0
 * @category models
 */
export type Name = typeof Name.Type

/**
 * The limits that a caller may set; what is absent has its default.
 *
 * - `timeMs`: wall clock of one execution in ms, 1 to 86,400,000 (a day), default 30,000. At the limit the process tree
 *   gets SIGINT, one second later SIGKILL. `LimitExceeded{time}`, in ms.
 * - `memoryMiB`: memory of each interpreter with its children in MiB, 128 to 65,536, default 512. Enforced by the guest's
 *   cgroup. A session's value fixes the size of its VM; an execution may only lower it. `LimitExceeded{memory}`, in bytes.
 * - `outputBytes`: how many bytes of stdout, and of stderr, are kept, 0 to 67,108,864 each, default 1,048,576; the receipt
 *   counts every byte. `output` says what happens with more.
 * - `output`: `truncate` (the default) keeps head and tail, half of `outputBytes` each; with `exec` and `run`, the guest
 *   writes what follows the head to a file, see `outputFiles` of a result. `fail` ends the process tree as the time limit
 *   does: `LimitExceeded{output}`, in bytes, of the longer output.
 * - `processes`: processes and threads of each interpreter with its children, 16 to 4,096, default 256.
 *   `LimitExceeded{processes}`, a count, when the task failed after the kernel refused to start one.
 * - `fileSizeMiB`: the size of the largest file that may be written, in MiB, 1 to 8,192, default 8,192 (as large as the disk).
 *   The kernel refuses more (EFBIG, or SIGXFSZ, which ends bash and its state). `LimitExceeded{file-size}`, in bytes.
 * - `diskMiB`: how much a session may write to the guest's disk, in MiB, 16 to 8,192, default 8,192 (all of the disk). It is
 *   for the whole session; an execution cannot have its own. `LimitExceeded{disk}`, in bytes, when an exception says that the
 *   disk is full, or when the task that filled it failed.
 *
 * @since 0.1.0
 * @category models
 */
export const Limits = Schema.Struct({
  timeMs: Schema.optionalKey(between(1, 86_400_000, "ms")),
  memoryMiB: Schema.optionalKey(between(128, 65_536, "MiB")),
  outputBytes: Schema.optionalKey(between(0, 64 * 1024 * 1024, "bytes")),
  output: Schema.optionalKey(Schema.Literals(["truncate", "fail"])),
  processes: Schema.optionalKey(between(16, 4096, "processes")),
  fileSizeMiB: Schema.optionalKey(between(1, wholeDisk, "MiB")),
  diskMiB: Schema.optionalKey(between(16, wholeDisk, "MiB"))
})
/**
 * @since 0.1.0
 * @category models
 */
export type Limits = typeof Limits.Type

/**
 * The default limits.
 *
 * @since 0.1.0
 * @category constants
 */
export const defaults: Required<Limits> = {
  timeMs: 30_000,
  memoryMiB: 512,
  outputBytes: 1024 * 1024,
  output: "truncate",
  processes: 256,
  fileSizeMiB: wholeDisk,
  diskMiB: wholeDisk
}

/**
 * Completes limits: those in `given`, and otherwise those in `base`.
 *
 * @since 0.1.0
 * @category constructors
 */
export const resolve = (given: Limits = {}, base: Required<Limits> = defaults): Required<Limits> => ({
  ...base,
  ...given
})
