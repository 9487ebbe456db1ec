/** `exec-sandbox doctor`: checks what this host can do, and says how to fix what it cannot. */
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { addChecks, type Check, Host } from "../../Host.ts"
import { Image } from "../../Image.ts"
import type { SandboxError } from "../../SandboxError.ts"
import { Template } from "../../Template.ts"
import { Leave } from "../ending.ts"
import * as flags from "../flags.ts"
import { print, printJson, size, table } from "../output.ts"
import { layer } from "../services.ts"

/** Reports a check that fails as a failed row. */
const checked = <R>(name: string, check: Effect.Effect<Omit<Check, "name">, SandboxError, R>) =>
  check.pipe(
    Effect.catch((error) => Effect.succeed({ status: "failed" as const, detail: error.message, fix: null })),
    Effect.map((row): Check => ({ name, ...row }))
  )

const imageCheck = checked(
  "image",
  Effect.gen(function* () {
    const { arch } = yield* Host
    const store = yield* Image
    const current = yield* store.find(arch)
    if (Option.isSome(current)) {
      const { id, manifest } = current.value
      return { status: "ok", detail: `current: ${id}, Linux ${manifest.kernelVersion}, ${arch}`, fix: null }
    }
    const others = (yield* store.list).length
    return {
      status: "warning",
      detail: others === 0 ? "missing; the first run builds it" : `${others} present, none of this version`,
      fix: "exec-sandbox image build"
    }
  })
)

const templateCheck = checked(
  "templates",
  Effect.gen(function* () {
    const entries = yield* (yield* Template).list
    const bytes = entries.reduce((sum, entry) => sum + entry.bytes, 0)
    return {
      status: "ok",
      detail: entries.length === 0 ? "none yet; the first run makes one" : `${entries.length}, ${size(bytes)}`,
      fix: null
    }
  })
)

const rows = (checks: ReadonlyArray<Check>): string =>
  table(
    checks.flatMap(({ detail, fix, name, status }) => {
      const row = [status, name, detail]
      return fix === null ? [row] : [row, ["", "", `fix: ${fix}`]]
    })
  )

export const doctor = Command.make(
  "doctor",
  { json: flags.json },
  Effect.fn("cli.doctor")(function* ({ json }) {
    const report = addChecks(yield* (yield* Host).doctor, [yield* imageCheck, yield* templateCheck])
    yield* json ? printJson(report) : print(rows(report.checks))
    if (!report.ok) return yield* new Leave({ code: 1 })
  })
).pipe(
  Command.withDescription("Check this host: QEMU, acceleration, isolation, image, templates"),
  Command.provide(layer)
)
