/**
 * Files of a session: streams both ways, trees in and out, and small questions.
 *
 * Paths are absolute or relative to `/home/user`. A name is a string; a byte of it that is not UTF-8 is the lone surrogate
 * U+DC80…U+DCFF (`"a\udcff"` is `61 ff`), so any name that Linux allows can be listed and used again. All work is done in
 * the guest with the identity of its user: a link that untrusted code planted leads nowhere that it could not go itself.
 *
 * @since 0.1.0
 */
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as Stream from "effect/Stream"
import * as FileName from "./internal/FileName.ts"
import { FileType } from "./Changes.ts"
import type { SandboxError } from "./SandboxError.ts"

/**
 * Why a file operation failed.
 *
 * - `NotFound`, `AlreadyExists`, `NotADirectory`, `IsADirectory`, `NotEmpty`: as the words say.
 * - `NotAFile`: a FIFO, socket or device, which has no content that ends; `type` says which.
 * - `PermissionDenied`: `rule` is the errno's name, `grant` says what would allow it.
 * - `DiskFull`: `free` is what is left, in bytes, `null` when not known.
 * - `TooLarge`: more than `allowed`, in `unit`; `observed` is `null` when not known.
 * - `NameTooLong`, `InvalidName` (this host has no such names), `Loop` (links in a circle).
 * - `Changed`: a file became shorter while it was copied.
 * - `Unsafe`: what came out of the guest could reach beyond its target; `entry` names it, `problem` says how.
 * - `Io`: anything else; `code` is the errno's name.
 *
 * @since 0.1.0
 * @category errors
 */
export const Reason = Schema.Union([
  Schema.TaggedStruct("NotFound", {}),
  Schema.TaggedStruct("AlreadyExists", {}),
  Schema.TaggedStruct("NotADirectory", {}),
  Schema.TaggedStruct("IsADirectory", {}),
  Schema.TaggedStruct("NotEmpty", {}),
  Schema.TaggedStruct("NotAFile", { type: FileType }),
  Schema.TaggedStruct("PermissionDenied", { rule: Schema.String, grant: Schema.String }),
  Schema.TaggedStruct("DiskFull", { free: Schema.NullOr(Schema.Finite) }),
  Schema.TaggedStruct("TooLarge", {
    allowed: Schema.NullOr(Schema.Finite),
    observed: Schema.NullOr(Schema.Finite),
    unit: Schema.Literals(["bytes", "entries"])
  }),
  Schema.TaggedStruct("NameTooLong", {}),
  Schema.TaggedStruct("InvalidName", {}),
  Schema.TaggedStruct("Loop", {}),
  Schema.TaggedStruct("Changed", {}),
  Schema.TaggedStruct("Unsafe", { entry: Schema.String, problem: Schema.String }),
  Schema.TaggedStruct("Io", { code: Schema.String })
])
/**
 * @since 0.1.0
 * @category errors
 */
export type Reason = typeof Reason.Type

const explain = (reason: Reason): string => {
  switch (reason._tag) {
    case "NotFound":
      return "there is nothing of that name"
    case "AlreadyExists":
      return "something of that name exists"
    case "NotADirectory":
      return "it is, or leads through, something that is no directory"
    case "IsADirectory":
      return "it is a directory"
    case "NotEmpty":
      return "the directory is not empty"
    case "NotAFile":
      return `it is a ${reason.type.replace("-", " ")}, not a file`
    case "PermissionDenied":
      return `permission denied (${reason.rule}); ${reason.grant}`
    case "DiskFull":
      return `the disk is full${reason.free === null ? "" : `: ${reason.free} bytes free`}`
    case "TooLarge": {
      const allowed = reason.allowed === null ? "" : `: ${reason.allowed} ${reason.unit} allowed`
      return `too large${allowed}${reason.observed === null ? "" : `, ${reason.observed} observed`}`
    }
    case "NameTooLong":
      return "a name is too long"
    case "InvalidName":
      return "there can be no such name here"
    case "Loop":
      return "links lead in a circle"
    case "Changed":
      return "it became shorter while it was copied"
    case "Unsafe":
      return `${JSON.stringify(reason.entry)} ${reason.problem}`
    case "Io":
      return reason.code
  }
}

/**
 * A file operation failed. `operation` is the name of the method, `path` what it is about, as a path of the guest or, where
 * `side` says so, of this host. Open `reason` with `Effect.catchReason("FileError", "NotFound", …)`.
 *
 * @since 0.1.0
 * @category errors
 */
export class FileError extends Schema.TaggedError<FileError>()("FileError", {
  operation: Schema.Literals([
    "read",
    "write",
    "list",
    "stat",
    "makeDirectory",
    "remove",
    "rename",
    "watch",
    "copyIn",
    "copyOut"
  ]),
  path: Schema.String,
  side: Schema.Literals(["guest", "host"]),
  reason: Reason
}) {
  override get message(): string {
    const where = this.side === "host" ? " on the host" : ""
    return `${this.operation} ${JSON.stringify(this.path)}${where}: ${explain(this.reason)}`
  }
}

/** @since 0.1.0 @category errors */
export type FileFailure = FileError | SandboxError

/**
 * What is known of a file: its `type`, `size` in bytes, `mode` (permission bits), time of change in ms since 1970, owner, and
 * for a link its `target`.
 *
 * @since 0.1.0
 * @category models
 */
export interface FileInfo {
  readonly type: typeof FileType.Type
  readonly size: number
  readonly mode: number
  readonly modified: number
  readonly uid: number
  readonly gid: number
  readonly target?: string
}

/** One entry of a directory; of a link itself, not of what it points at. @since 0.1.0 @category models */
export interface Entry extends FileInfo {
  readonly name: string
}

/**
 * One change that a watch saw. `start` comes first: what happens after it is seen. `create` is also a file that came from
 * elsewhere, or a whole new content put in a file's place; `remove` also one that left for elsewhere. `rename` is within what
 * is watched, `from` its old path. After `overflow` an unknown number of changes is missing. `path` begins with the watched
 * path, made absolute.
 *
 * @since 0.1.0
 * @category models
 */
export interface Change {
  readonly kind: "start" | "create" | "modify" | "remove" | "rename" | "overflow"
  readonly path: string
  readonly from?: string
}

/** How much was copied; `skipped` counts what is neither file, directory nor link. @since 0.1.0 @category models */
export interface Copied {
  readonly entries: number
  readonly bytes: number
  readonly skipped: number
}

const Mode = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 0o777 }, { expected: "a mode of 0 to 0o777" }))
const Positive = Schema.Int.check(Schema.isGreaterThanOrEqualTo(0))
const As = { user: Schema.optionalKey(Schema.Literals(["user", "root"])) }

/** Whose identity does the work in the guest: `user` (the default) or `root`. @since 0.1.0 @category options */
export const Options = Schema.Struct(As)
/** `maxBytes`: the most that is read into memory, 64 MiB when absent. @since 0.1.0 @category options */
export const ReadOptions = Schema.Struct({ ...As, maxBytes: Schema.optionalKey(Positive) })
/** `offset` and `length` in bytes choose a part. @since 0.1.0 @category options */
export const StreamOptions = Schema.Struct({
  ...As,
  offset: Schema.optionalKey(Positive),
  length: Schema.optionalKey(Positive)
})
/** `mode`: permission bits, else those of the file that is replaced, else 0o644 (0o755). @since 0.1.0 @category options */
export const WriteOptions = Schema.Struct({
  ...As,
  mode: Schema.optionalKey(Mode),
  createParents: Schema.optionalKey(Schema.Boolean)
})
/** `maxEntries`: the most that is listed, 100,000 when absent. @since 0.1.0 @category options */
export const ListOptions = Schema.Struct({ ...As, maxEntries: Schema.optionalKey(Positive) })
/** `followLinks`: of what a link points at (the default) or of the link itself. @since 0.1.0 @category options */
export const StatOptions = Schema.Struct({ ...As, followLinks: Schema.optionalKey(Schema.Boolean) })
/**
 * `recursive`: also all directories below, and those that come later; not what links lead to, nor what the user may not read.
 *
 * @since 0.1.0
 * @category options
 */
export const WatchOptions = Schema.Struct({ ...As, recursive: Schema.optionalKey(Schema.Boolean) })
/** `recursive`: a directory with all in it. `force`: what is missing is no error. @since 0.1.0 @category options */
export const RemoveOptions = Schema.Struct({
  ...As,
  recursive: Schema.optionalKey(Schema.Boolean),
  force: Schema.optionalKey(Schema.Boolean)
})
/**
 * Bounds for what a hostile guest may put on this host's disk: `maxBytes` (4 GiB when absent) and `maxEntries` (200,000).
 * `outsideLinks`: links that point out of the tree fail the copy (`refuse`, the default) or are left out (`skip`).
 *
 * @since 0.1.0
 * @category options
 */
export const CopyOutOptions = Schema.Struct({
  ...As,
  maxBytes: Schema.optionalKey(Positive),
  maxEntries: Schema.optionalKey(Positive),
  outsideLinks: Schema.optionalKey(Schema.Literals(["refuse", "skip"]))
})

/**
 * The files of a session. Everything fails with `FileError`, or with `SandboxError` when the path or an option is not valid,
 * or the session is over. What is interrupted ends in the guest as well, and an interrupted or failed write leaves the old
 * file as it was.
 *
 * @since 0.1.0
 * @category models
 */
export interface Files {
  /** A whole file. `TooLarge` when it has more than `maxBytes` bytes. */
  readonly read: (path: string, options?: typeof ReadOptions.Type) => Effect.Effect<Uint8Array, FileFailure>
  /** A whole file as UTF-8 text; bytes that are not become U+FFFD. */
  readonly readText: (path: string, options?: typeof ReadOptions.Type) => Effect.Effect<string, FileFailure>
  /** A file as it was when it was opened, at the reader's pace. Files of /proc are read to their end. */
  readonly stream: (path: string, options?: typeof StreamOptions.Type) => Stream.Stream<Uint8Array, FileFailure>
  /** Replaces a file in one step: readers see the old content or the new. A link stays, and what it points at is replaced. */
  readonly write: <E = never, R = never>(
    path: string,
    content: string | Uint8Array | Stream.Stream<Uint8Array, E, R>,
    options?: typeof WriteOptions.Type
  ) => Effect.Effect<void, FileFailure | E, R>
  /** A directory's entries, in the order of their names. */
  readonly list: (path: string, options?: typeof ListOptions.Type) => Effect.Effect<ReadonlyArray<Entry>, FileFailure>
  readonly stat: (path: string, options?: typeof StatOptions.Type) => Effect.Effect<FileInfo, FileFailure>
  /** Whether the path leads to something. */
  readonly exists: (path: string, options?: typeof Options.Type) => Effect.Effect<boolean, FileFailure>
  /** Makes a directory; with `createParents` also what is missing above, and one that exists is no error. */
  readonly makeDirectory: (path: string, options?: typeof WriteOptions.Type) => Effect.Effect<void, FileFailure>
  /** Removes a file, a link itself, or a directory that is empty or, if so asked, with all in it. */
  readonly remove: (path: string, options?: typeof RemoveOptions.Type) => Effect.Effect<void, FileFailure>
  /** Gives a file another path on the same file system; a file that has it is replaced. */
  readonly rename: (from: string, to: string, options?: typeof Options.Type) => Effect.Effect<void, FileFailure>
  /**
   * Changes of a file, or of a directory's entries, until that is removed; with `recursive` also of everything below. What is
   * already in a directory that comes is told as created. A slow reader holds nothing up: the guest's kernel keeps 16384
   * changes, then comes `overflow`. It also comes when there are more than 4,096 directories; `TooLarge` when there are from
   * the start.
   */
  readonly watch: (path: string, options?: typeof WatchOptions.Type) => Stream.Stream<Change, FileFailure>
  /**
   * Copies a file or a whole directory of this host into the guest, to exactly that path, with modes, times and links as they
   * are. An existing directory is added to. Missing parents are made.
   */
  readonly copyIn: (
    hostPath: string,
    guestPath: string,
    options?: typeof Options.Type
  ) => Effect.Effect<Copied, FileFailure>
  /**
   * Copies a file or a whole directory out of the guest, to exactly that path: it appears there when it is complete, replacing
   * a file, but never a directory that holds something. Nothing is written outside of it whatever the guest sends: `Unsafe`
   * fails the copy. Bits for setuid, setgid and sticky are dropped.
   */
  readonly copyOut: (
    guestPath: string,
    hostPath: string,
    options?: typeof CopyOutOptions.Type
  ) => Effect.Effect<Copied, FileFailure>
}

/** The string of a name's bytes. @since 0.1.0 @category names */
export const nameFromBytes: (bytes: Uint8Array) => string = FileName.fromBytes

/** The bytes of a name; `undefined` for a string that no name has. @since 0.1.0 @category names */
export const nameToBytes: (name: string) => Uint8Array | undefined = FileName.toBytes
