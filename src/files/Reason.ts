/** Turns an errno's name, from the guest or the host, into the `FileError` that a caller can act on. */
import { FileError, type Reason } from "../Files.ts"
import type { FileFailed } from "../guest/Methods.ts"
import { errorCode } from "../internal/Files.ts"

type Operation = FileError["operation"]

/** What the guest reports about a failure in addition to its code. */
interface Detail {
  readonly free?: number
  readonly type?: FileFailed["error"]["type"]
}

const reasonOf = (code: string, grant: string, detail: Detail): Reason => {
  switch (code) {
    case "ENOENT":
      return { _tag: "NotFound" }
    case "EEXIST":
      return { _tag: "AlreadyExists" }
    case "ENOTDIR":
      return { _tag: "NotADirectory" }
    case "EISDIR":
      return { _tag: "IsADirectory" }
    case "ENOTEMPTY":
      return { _tag: "NotEmpty" }
    case "NOTAFILE":
      return { _tag: "NotAFile", type: detail.type ?? "character-device" }
    case "EACCES":
    case "EPERM":
      return { _tag: "PermissionDenied", rule: code, grant }
    case "EROFS":
      return { _tag: "PermissionDenied", rule: code, grant: "use a path on a writable file system" }
    case "ENOSPC":
    case "EDQUOT":
      return { _tag: "DiskFull", free: detail.free ?? null }
    case "EFBIG":
      return { _tag: "TooLarge", allowed: null, observed: null, unit: "bytes" }
    case "TOOMANY":
      return { _tag: "TooLarge", allowed: 4096, observed: null, unit: "entries" }
    case "ENAMETOOLONG":
      return { _tag: "NameTooLong" }
    case "EILSEQ":
      return { _tag: "InvalidName" }
    case "ELOOP":
      return { _tag: "Loop" }
    case "CHANGED":
      return { _tag: "Changed" }
    default:
      return { _tag: "Io", code }
  }
}

/** The error for a failure that the guest reported. */
export const ofGuest = (
  operation: Operation,
  path: string,
  user: "user" | "root",
  { error }: FileFailed
): FileError => {
  const grant =
    user === "root"
      ? "none: the guest's kernel refuses this to root as well"
      : 'use { user: "root" }, which has more rights'
  return new FileError({
    operation,
    path: error.path ?? path,
    side: "guest",
    reason: reasonOf(error.code, grant, error)
  })
}

/** The error for a call that failed on the host. */
export const ofHost = (operation: Operation, path: string, error: unknown): FileError =>
  error instanceof FileError
    ? error
    : new FileError({
        operation,
        path,
        side: "host",
        reason: reasonOf(errorCode(error), "give this process access to the file on the host", {})
      })
