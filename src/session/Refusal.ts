/** Turns a package error into the error of a session, which has a receipt like that of an execution; nothing has run for it. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { Egress } from "../egress/Egress.ts"
import type { Limits } from "../Limits.ts"
import type { PackageError } from "../Packages.ts"
import type { Publisher } from "../Receipts.ts"
import {
  fail,
  InvalidInput,
  type PermissionDenied,
  type SandboxError,
  type UnsupportedCommand
} from "../SandboxError.ts"
import type { Vm } from "../Vm.ts"
import * as Attempt from "./Attempt.ts"
import * as Context from "./Context.ts"
import { always } from "./Parking.ts"

/** Packages that conflict are invalid input; nothing is started for them. */
export const asInput = (error: PackageError): SandboxError =>
  fail(
    new InvalidInput({
      field: "packages",
      problem: error.message,
      expected: "packages that can be installed and imported together"
    })
  )

/** Fails with the error of a session for a package error. */
export const refuse = Effect.fnUntraced(function* (
  error: PackageError,
  vm: Vm,
  origin: Context.Origin,
  limits: Required<Limits>,
  receipts: Publisher,
  egress: Egress
): Effect.fn.Return<never, PermissionDenied | UnsupportedCommand | SandboxError, Scope.Scope> {
  const context = yield* Context.make({ vm, origin, limits, receipts, egress, presence: always })
  const attempt = yield* Attempt.begin(context, { language: null, argv: null, code: null, limits: {} })
  const name = `${error.ecosystem}:${error.spec}`
  switch (error.reason._tag) {
    case "Refused": {
      const { grant, rule } = error.reason
      return yield* attempt.denied({ operation: "package", target: name, rule, grant })
    }
    case "NotFound":
      return yield* attempt.unsupported({ kind: "module", name, available: error.reason.available })
    case "Conflict":
      return yield* asInput(error)
  }
}, Effect.scoped)
