/** From an errno's name, of the guest's kernel or of this host's, to the reason that a caller can act on. */
import { FileError, type Reason } from "../Files.ts"
import type { FileFailed } from "../guest/Methods.ts"
import { errorCode } from "../internal/Files.ts"

type Operation = FileError["operation"]

/** What the guest says of a failure, beside its code. */
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
      return { _tag: "PermissionDenied", rule: code, grant: "a path on a file system that is not read-only" }
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

/** What the guest's answer means. */
export const ofGuest = (
  operation: Operation,
  path: string,
  user: "user" | "root",
  { error }: FileFailed
): FileError => {
  const grant = user === "root" ? "the guest's kernel refuses this to root as well" : '{ user: "root" } has more rights'
  return new FileError({
    operation,
    path: error.path ?? path,
    side: "guest",
    reason: reasonOf(error.code, grant, error)
  })
}

/** What a failed call on this host means. */
export const ofHost = (operation: Operation, path: string, error: unknown): FileError =>
  error instanceof FileError
    ? error
    : new FileError({
        operation,
        path,
        side: "host",
        reason: reasonOf(errorCode(error), "rights of this process on the host's file", {})
      })
