/** How the process ends: the exit code for each way a command can end, and the one line that says why. */
import * as Cause from "effect/Cause"
import * as CliError from "effect/cli/CliError"
import * as Data from "effect/Data"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import { constants } from "node:os"
import type { Failure } from "../Execution.ts"
import type { SandboxError } from "../SandboxError.ts"

/** The exit code, and the reason to print on stderr, where one is needed. */
export interface Ending {
  readonly code: number
  readonly why?: string
}

/** Ends the process with an exit code that the command chose. */
export class Leave extends Data.TaggedError("Leave")<Ending> {}

/** Every error of a command. */
export type CommandFailure = Failure | Leave | CliError.CliError

const usage = 2
const sandboxFailure = 125

/** 128 plus the signal's number, as in shells; 1 for a signal that this host does not have. */
export const signalCode = (signal: string): number => {
  const number = (constants.signals as { readonly [name: string]: number | undefined })[signal]
  return number === undefined ? 1 : 128 + number
}

const firstLine = (text: string): string => (text.split("\n", 1)[0] ?? "").trim()

const sandboxHint = ({ reason, retry }: SandboxError): string => {
  if (reason._tag === "HostUnsupported" || reason._tag === "ImageUnavailable") return ""
  return { safe: "; it is safe to try again", unsafe: "; the code may have run", never: "" }[retry]
}

/** The ending after a failed execution, or a failure of the sandbox. */
export const endingOf = (error: Failure): Ending => {
  switch (error._tag) {
    case "TaskFailed": {
      const { reason } = error
      if (reason._tag === "ExitCode") return { code: reason.exitCode }
      if (reason._tag === "Signal") return { code: signalCode(reason.signal) }
      return { code: error.receipt.exitCode ?? 1 }
    }
    case "PermissionDenied":
      return { code: 126, why: error.message }
    case "UnsupportedCommand":
      return {
        code: 127,
        why: error.available.length > 0 ? error.message : `${error.message}; use an image that has it`
      }
    case "LimitExceeded":
      if (error.limit === "time") return { code: 124, why: `${error.message}; -t SECONDS allows more` }
      if (error.limit === "memory") return { code: 137, why: `${error.message}; -m MIB allows more` }
      return { code: 1, why: error.message }
    case "SandboxError":
      if (error.reason._tag === "InvalidInput") return { code: usage, why: error.message }
      return { code: sandboxFailure, why: `${firstLine(error.message)}${sandboxHint(error)}` }
  }
}

/** The ending after a defect: its message and where it was thrown. */
export const endingOfDefect = (defect: unknown): Ending => {
  const text = defect instanceof Error ? (defect.stack ?? defect.message) : String(defect)
  const place = /^\s+(at .*)$/m.exec(text)?.[1]
  return {
    code: sandboxFailure,
    why: `internal error: ${firstLine(text)}${place === undefined ? "" : ` ${place}`}; please report it`
  }
}

/** The ending of a whole command. Errors in the command line itself have been printed before. */
export const endingOfExit = (exit: Exit.Exit<void, CommandFailure>): Ending => {
  if (Exit.isSuccess(exit)) return { code: 0 }
  const error = Option.getOrUndefined(Cause.findErrorOption(exit.cause))
  if (error === undefined) {
    return Cause.hasInterruptsOnly(exit.cause)
      ? { code: signalCode("SIGINT") }
      : endingOfDefect(Cause.squash(exit.cause))
  }
  if (CliError.isCliError(error)) return { code: usage }
  return error._tag === "Leave" ? error : endingOf(error)
}

/** Formats a reason as one line for stderr. */
export const lineOf = (why: string): string => `exec-sandbox: ${firstLine(why)}\n`
