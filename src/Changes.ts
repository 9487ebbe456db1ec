/**
 * Changes: reports which files have changed since the session began, since a mark, or since an execution began. A session
 * from a snapshot begins when it starts from the snapshot.
 *
 * The guest finds changes in the overlay that it writes to, so unchanged files cost nothing. A report compares two states, it
 * does not list what was done: it contains neither a file that was made and removed again, nor one that was written with the
 * content that it had before. It contains every change in that time, also those of other executions that ran meanwhile.
 *
 * `/etc/hosts` and `/etc/machine-id` belong to the machine, not to the session: they are never in a report.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"

/**
 * The types of files.
 *
 * @since 0.1.0
 * @category models
 */
export const FileType = Schema.Literals([
  "file",
  "directory",
  "symlink",
  "fifo",
  "socket",
  "character-device",
  "block-device"
])

const Count = Schema.Int.check(Schema.isGreaterThanOrEqualTo(0))

/**
 * What a report contains.
 *
 * - `patches`: a unified patch for each text whose content changed, default `true`.
 * - `maxFiles`: how many changes are listed, 0 to 10,000, default 1,000; further ones are only counted.
 *
 * @since 0.1.0
 * @category options
 */
export const Options = Schema.Struct({
  patches: Schema.optionalKey(Schema.Boolean),
  maxFiles: Schema.optionalKey(
    Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 10_000 }, { expected: "0 to 10000 files" }))
  )
})
/**
 * @since 0.1.0
 * @category options
 */
export type Options = typeof Options.Type

/**
 * Whether an execution reports its changes: `true`, or options.
 *
 * @since 0.1.0
 * @category options
 */
export const Asked = Schema.Union([Schema.Boolean, Options])
/**
 * @since 0.1.0
 * @category options
 */
export type Asked = typeof Asked.Type

/**
 * A moment in a session, made by its `mark`. A session keeps its last 16 marks; fewer when very much has changed.
 *
 * @since 0.1.0
 * @category models
 */
export class Mark extends Schema.Class<Mark>("exec-sandbox/Changes/Mark")({
  session: Schema.String,
  id: Count
}) {}

/**
 * The metadata of a file before or after: its `type`, `size` in bytes (0 unless it is a regular file), `mode` (permission
 * bits), owner (`uid`, `gid`), and for a link its `target`.
 *
 * @since 0.1.0
 * @category models
 */
export const FileState = Schema.Struct({
  type: FileType,
  size: Count,
  mode: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 0o7777 })),
  uid: Count,
  gid: Count,
  target: Schema.optionalKey(Schema.String)
})
/**
 * @since 0.1.0
 * @category models
 */
export type FileState = typeof FileState.Type

/**
 * One file that has changed. Directories are files too.
 *
 * - `kind`: `renamed` is a file that had another name before (`from`); a renamed file of the image counts as deleted and
 *   created. `modified` has another content, type, mode, owner or target; times alone are no change.
 * - `path`: absolute; as in `Files`, a byte that is not UTF-8 is a lone surrogate.
 * - `before`, `after`: `null` when there was, or is, no such file.
 * - `content`: whether the content changed, or only what is in `before` and `after`. When the old content is no longer known,
 *   a file that was written to counts as changed.
 * - `patch`: the change as a unified patch with git's headers, for text (UTF-8 without NUL). `patch -p1` in `/` applies it.
 * - `omitted`: why there is no patch: `none` (no content changed), `binary`, `large` (more than 256 KiB), `lost` (the old
 *   content is no longer known: the guest keeps copies of what changed last, 16 MiB or a sixteenth of `diskMiB`), `budget` (the
 *   report already contains 4 MiB of texts), `unasked` (`patches` is `false`); `null` when there is one.
 *
 * @since 0.1.0
 * @category models
 */
export const Change = Schema.Struct({
  kind: Schema.Literals(["created", "modified", "deleted", "renamed"]),
  path: Schema.String,
  from: Schema.NullOr(Schema.String),
  before: Schema.NullOr(FileState),
  after: Schema.NullOr(FileState),
  content: Schema.Boolean,
  patch: Schema.NullOr(Schema.String),
  omitted: Schema.NullOr(Schema.Literals(["none", "binary", "large", "lost", "budget", "unasked"]))
})
/**
 * @since 0.1.0
 * @category models
 */
export type Change = typeof Change.Type

/**
 * How many files were created, modified, deleted and renamed, listed or not. `unexamined` counts those that were not compared:
 * below directories of more than 20,000 entries, more than 100 levels down, or beyond what a mark remembers (4 MiB, about 50,000
 * files). Renames are found among the first 10,000 changes.
 *
 * @since 0.1.0
 * @category models
 */
export const Counts = Schema.Struct({
  created: Count,
  modified: Count,
  deleted: Count,
  renamed: Count,
  unexamined: Count
})
/**
 * @since 0.1.0
 * @category models
 */
export type Counts = typeof Counts.Type

/**
 * A report: `files`, the first `maxFiles` changes in the order of their paths, `counts` of all changes, and how many of them
 * are `unlisted`.
 *
 * @since 0.1.0
 * @category models
 */
export class Changes extends Schema.Class<Changes>("exec-sandbox/Changes")({
  files: Schema.Array(Change),
  counts: Counts,
  unlisted: Count
}) {
  /** All patches joined; empty when there is none. */
  get patch(): string {
    return this.files.map((it) => it.patch ?? "").join("")
  }
}
