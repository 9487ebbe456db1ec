/**
 * Files of a session: read, write, list and watch them, and copy files and directories in and out.
 *
 * Paths are absolute or relative to `/home/user`. A name is a string; a byte of it that is not UTF-8 becomes a lone surrogate
 * U+DC80…U+DCFF (`"a\udcff"` is `61 ff`), so any name that Linux allows can be listed and used again. All work is done in
 * the guest with the rights of its user: a link planted by untrusted code leads nowhere that this code could not go itself.
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
 * - `NotFound`, `AlreadyExists`, `NotADirectory`, `IsADirectory`, `NotEmpty`: as the names say.
 * - `NotAFile`: a FIFO, socket or device, which has no content of a known size; `type` says which.
 * - `PermissionDenied`: `rule` is the errno's name, `grant` says what would allow it.
 * - `DiskFull`: `free` is how many bytes are left, `null` when not known.
 * - `TooLarge`: more than `allowed`, in `unit`; `observed` is `null` when not known.
 * - `NameTooLong`, `InvalidName` (the host's file system does not allow the name), `Loop` (links in a circle).
 * - `Changed`: a file became shorter while it was copied.
 * - `Unsafe`: what the guest sent could be written outside of the target; `entry` names it, `problem` says how.
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
      return "there is no such file or directory"
    case "AlreadyExists":
      return "it already exists"
    case "NotADirectory":
      return "it is, or leads through, something that is not a directory"
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
      return "the file system does not allow this name"
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
 * A file operation failed. `operation` is the name of the method; `path` is a path in the guest or, when `side` is `host`, on
 * the host. Open `reason` with `Effect.catchReason("FileError", "NotFound", …)`.
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

/** Why a file operation failed: an error of the operation, or of the sandbox. @since 0.1.0 @category errors */
export type FileFailure = FileError | SandboxError

/**
 * The metadata of a file: its `type`, `size` in bytes, `mode` (permission bits), `modified` in ms since 1970, owner (`uid`,
 * `gid`), and for a link its `target`.
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

/** One entry of a directory. For a link it describes the link itself, not what it points at. @since 0.1.0 @category models */
export interface Entry extends FileInfo {
  readonly name: string
}

/**
 * One change that a watch reports. `start` comes first: all changes after it are reported. `create` includes a file that was
 * moved in from elsewhere, and one that was replaced in one step; `remove` includes a file that was moved elsewhere. `rename`
 * is a move within what is watched, `from` the old path. At `overflow`, an unknown number of changes is missing. `path` begins
 * with the watched path, made absolute.
 *
 * @since 0.1.0
 * @category models
 */
export interface Change {
  readonly kind: "start" | "create" | "modify" | "remove" | "rename" | "overflow"
  readonly path: string
  readonly from?: string
}

/**
 * How much was copied: `entries` (files, directories and links), `bytes` of content, and how many entries were `skipped`:
 * what is neither file, directory nor link, and links that `outsideLinks` leaves out.
 *
 * @since 0.1.0
 * @category models
 */
export interface Copied {
  readonly entries: number
  readonly bytes: number
  readonly skipped: number
}

const Mode = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 0o777 }, { expected: "a mode of 0 to 0o777" }))
const Positive = Schema.Int.check(Schema.isGreaterThanOrEqualTo(0))
const As = { user: Schema.optionalKey(Schema.Literals(["user", "root"])) }

/** `user`: whose rights the operation has in the guest, `user` (the default) or `root`. @since 0.1.0 @category options */
export const Options = Schema.Struct(As)
/** `maxBytes`: the most bytes that are read into memory, 64 MiB when absent. @since 0.1.0 @category options */
export const ReadOptions = Schema.Struct({ ...As, maxBytes: Schema.optionalKey(Positive) })
/** `offset` and `length`, in bytes, select a part; the whole file when absent. @since 0.1.0 @category options */
export const StreamOptions = Schema.Struct({
  ...As,
  offset: Schema.optionalKey(Positive),
  length: Schema.optionalKey(Positive)
})
/**
 * `mode`: permission bits, 0 to 0o777; when absent, those of the file that is replaced, or else 0o644 (0o755 for a directory).
 * `createParents`: creates missing directories above, `false` when absent.
 *
 * @since 0.1.0
 * @category options
 */
export const WriteOptions = Schema.Struct({
  ...As,
  mode: Schema.optionalKey(Mode),
  createParents: Schema.optionalKey(Schema.Boolean)
})
/** `maxEntries`: the most entries that are listed, 100,000 when absent. @since 0.1.0 @category options */
export const ListOptions = Schema.Struct({ ...As, maxEntries: Schema.optionalKey(Positive) })
/** `followLinks`: describe what a link points at (`true`, the default) or the link itself. @since 0.1.0 @category options */
export const StatOptions = Schema.Struct({ ...As, followLinks: Schema.optionalKey(Schema.Boolean) })
/**
 * `recursive`: also watch all directories below, and those that are made later, but not the targets of links, nor what the user
 * may not read.
 *
 * @since 0.1.0
 * @category options
 */
export const WatchOptions = Schema.Struct({ ...As, recursive: Schema.optionalKey(Schema.Boolean) })
/** `recursive`: a directory and everything in it. `force`: a missing file is no error. @since 0.1.0 @category options */
export const RemoveOptions = Schema.Struct({
  ...As,
  recursive: Schema.optionalKey(Schema.Boolean),
  force: Schema.optionalKey(Schema.Boolean)
})
/**
 * Bounds for what a hostile guest may write to the host's disk: `maxBytes` (4 GiB when absent) and `maxEntries` (200,000 when
 * absent). `outsideLinks`: links that point out of the tree fail the copy (`refuse`, the default) or are left out (`skip`).
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
 * The files of a session. Every operation fails with `FileError`, or with `SandboxError` when the path or an option is not
 * valid or the session is closed. Interrupting an operation ends it in the guest as well. An interrupted or failed write leaves
 * the old file as it was.
 *
 * @since 0.1.0
 * @category models
 */
export interface Files {
  /** Reads a whole file. Fails with `TooLarge` when it has more than `maxBytes` bytes. */
  readonly read: (path: string, options?: typeof ReadOptions.Type) => Effect.Effect<Uint8Array, FileFailure>
  /** Reads a whole file as UTF-8 text; bytes that are not UTF-8 become U+FFFD. */
  readonly readText: (path: string, options?: typeof ReadOptions.Type) => Effect.Effect<string, FileFailure>
  /** Streams a file of the size that it had when it was opened, with back-pressure. Files of /proc are read to their end. */
  readonly stream: (path: string, options?: typeof StreamOptions.Type) => Stream.Stream<Uint8Array, FileFailure>
  /** Creates a file, or replaces it in one step: readers see the old content or the new. For a link, its target is replaced. */
  readonly write: <E = never, R = never>(
    path: string,
    content: string | Uint8Array | Stream.Stream<Uint8Array, E, R>,
    options?: typeof WriteOptions.Type
  ) => Effect.Effect<void, FileFailure | E, R>
  /** Lists a directory's entries, in the order of their names. Fails with `TooLarge` when it has more than `maxEntries`. */
  readonly list: (path: string, options?: typeof ListOptions.Type) => Effect.Effect<ReadonlyArray<Entry>, FileFailure>
  /** Describes a file. */
  readonly stat: (path: string, options?: typeof StatOptions.Type) => Effect.Effect<FileInfo, FileFailure>
  /** Whether the path leads to something. */
  readonly exists: (path: string, options?: typeof Options.Type) => Effect.Effect<boolean, FileFailure>
  /** Makes a directory; with `createParents` also those above it, and an existing directory is no error. */
  readonly makeDirectory: (path: string, options?: typeof WriteOptions.Type) => Effect.Effect<void, FileFailure>
  /** Removes a file, a link (not its target), or a directory: an empty one, or with `recursive` one with all in it. */
  readonly remove: (path: string, options?: typeof RemoveOptions.Type) => Effect.Effect<void, FileFailure>
  /** Moves a file to another path on the same file system, replacing a file there. */
  readonly rename: (from: string, to: string, options?: typeof Options.Type) => Effect.Effect<void, FileFailure>
  /**
   * Reports changes of a file, or of a directory's entries, until that is removed; with `recursive` also of everything below.
   * What is already in a new directory is reported as created. A slow reader blocks nothing: the guest's kernel buffers 16,384
   * changes, then comes `overflow`. `overflow` also comes when there are more than 4,096 directories; if there are more at
   * the start, it fails with `TooLarge`.
   */
  readonly watch: (path: string, options?: typeof WatchOptions.Type) => Stream.Stream<Change, FileFailure>
  /**
   * Copies a file or a whole directory from the host into the guest, to exactly `guestPath`, with its modes, times and links.
   * If there is a directory already, the content is added to it. Missing parents are made.
   */
  readonly copyIn: (
    hostPath: string,
    guestPath: string,
    options?: typeof Options.Type
  ) => Effect.Effect<Copied, FileFailure>
  /**
   * Copies a file or a whole directory out of the guest, to exactly `hostPath`. It appears there when it is complete. A file may
   * replace a file, and a directory an empty one. Nothing is written elsewhere, whatever the guest sends: the copy then fails
   * with `Unsafe`. The setuid, setgid and sticky bits are dropped.
   */
  readonly copyOut: (
    guestPath: string,
    hostPath: string,
    options?: typeof CopyOutOptions.Type
  ) => Effect.Effect<Copied, FileFailure>
}

/** The string for the bytes of a name, as all operations use it. @since 0.1.0 @category names */
export const nameFromBytes: (bytes: Uint8Array) => string = FileName.fromBytes

/** The bytes for the string of a name; `undefined` when it has other lone surrogates than U+DC80…U+DCFF. @since 0.1.0 @category names */
export const nameToBytes: (name: string) => Uint8Array | undefined = FileName.toBytes
