/**
 * Decides the one outcome of an execution from the guest's evidence, and never from stdout or stderr. Two later steps may
 * replace it: `NetworkOutcome`, and the output limit in `Attempt`.
 */
import type { Evidence } from "../guest/Evidence.ts"
import type { StopReason } from "../Receipt.ts"
import type {
  Exception,
  ExitCode,
  LimitExceeded,
  PermissionDenied,
  Signal,
  UnsupportedCommand
} from "../SandboxError.ts"

/** An execution's outcome, before output and receipt are added. */
export type Outcome =
  | { readonly _tag: "Success" }
  | {
      readonly _tag: "PermissionDenied"
      readonly operation: PermissionDenied["operation"]
      readonly target: string | null
      readonly rule: string
      readonly grant: string
    }
  | { readonly _tag: "UnsupportedCommand"; readonly kind: UnsupportedCommand["kind"]; readonly name: string }
  | {
      readonly _tag: "LimitExceeded"
      readonly limit: LimitExceeded["limit"]
      readonly allowed: number | null
      readonly observed: number | null
    }
  | { readonly _tag: "TaskFailed"; readonly reason: typeof ExitCode.Type | typeof Signal.Type | typeof Exception.Type }

const refused = new Set(["EACCES", "EPERM", "EROFS"])
const full = new Set(["ENOSPC", "EDQUOT"])

const limit = (entry: Evidence["limits"][number]): Outcome => ({ _tag: "LimitExceeded", ...entry })

/** The outcome of a program that could not be started. */
const fromCommand = ({ kind, name, path }: Evidence["commands"][number]): Outcome => {
  switch (kind) {
    case "not-found":
      return { _tag: "UnsupportedCommand", kind: "command", name }
    case "not-executable":
      return { _tag: "UnsupportedCommand", kind: "executable", name: path ?? name }
    case "permission":
      return {
        _tag: "PermissionDenied",
        operation: "execute",
        target: path ?? name,
        rule: "EACCES",
        grant: "make the file executable"
      }
  }
}

/**
 * Turns evidence into an outcome. It checks first what was enforced from outside (time, memory), then success, then what the
 * exception or the command that ended the task shows.
 */
export const classify = (evidence: Evidence): Outcome => {
  const hit = (name: string) => evidence.limits.find((entry) => entry.limit === name)

  const enforced = hit("time") ?? hit("memory")
  if (enforced !== undefined) return limit(enforced)
  const { commands, exception, exitCode, signal } = evidence
  if (exception === null && signal === null && exitCode === 0) return { _tag: "Success" }

  const [command] = commands
  if (exception !== null) {
    const { errno, path } = exception
    if (exception.module !== null) return { _tag: "UnsupportedCommand", kind: "module", name: exception.module }
    if (command !== undefined) return fromCommand(command)
    if (errno !== null && refused.has(errno)) {
      return {
        _tag: "PermissionDenied",
        operation: "file",
        target: path,
        rule: errno,
        grant:
          errno === "EROFS"
            ? "use a path on a writable file system"
            : "use a path that user may access, or change its mode or owner"
      }
    }
    if (exception.type === "MemoryError") {
      return { _tag: "LimitExceeded", limit: "memory", allowed: null, observed: evidence.usage.peakMemoryBytes }
    }
    if (errno !== null && full.has(errno)) {
      return limit(hit("disk") ?? { limit: "disk", allowed: null, observed: null })
    }
    const fileSize = errno === "EFBIG" ? hit("file-size") : undefined
    if (fileSize !== undefined) return limit(fileSize)
  }
  const processes = hit("processes")
  if (
    processes !== undefined &&
    (exception === null || exception.errno === "EAGAIN" || exception.type === "RuntimeError")
  ) {
    return limit(processes)
  }
  if (signal === "SIGSYS") {
    return {
      _tag: "PermissionDenied",
      operation: "syscall",
      target: null,
      rule: "SIGSYS",
      grant: "none: the guest's kernel does not offer this system call"
    }
  }
  // With any other status than a shell's for this problem, something else ended the task.
  const status = { "not-found": [127], "not-executable": [126, 127], permission: [126] } as const
  if (exception === null && command !== undefined && status[command.kind].some((it) => it === exitCode)) {
    return fromCommand(command)
  }
  // A program that failed to write shows only its status, and the kernel what it says about the disk.
  const storage = hit("file-size") ?? hit("disk")
  if (storage !== undefined && (exception === null || exception.type === "CalledProcessError")) return limit(storage)
  if (exception !== null) {
    const { message, traceback, type } = exception
    return { _tag: "TaskFailed", reason: { _tag: "Exception", type, message, traceback } }
  }
  return signal === null
    ? { _tag: "TaskFailed", reason: { _tag: "ExitCode", exitCode: exitCode ?? 1 } }
    : { _tag: "TaskFailed", reason: { _tag: "Signal", signal } }
}

/** The receipt's `stopReason` for an outcome. */
export const stopReason = (outcome: Outcome): StopReason => {
  switch (outcome._tag) {
    case "Success":
      return "completed"
    case "PermissionDenied":
      return "permission"
    case "UnsupportedCommand":
      return "unsupported"
    case "TaskFailed":
      return "failed"
    case "LimitExceeded":
      return `${outcome.limit}-limit`
  }
}
