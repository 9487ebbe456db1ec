import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import * as Machine from "../../src/qemu/Machine.ts"
import { isAlive } from "../support/processes.ts"

const qemu = process.arch === "arm64" ? "qemu-system-aarch64" : "qemu-system-x86_64"
/** A machine without a board: it has only the monitor. */
const bare: Machine.Launch = {
  argv: [
    qemu,
    ..."-M none -nodefaults -no-user-config -display none -S -chardev stdio,id=m,signal=off -mon chardev=m,mode=control".split(
      " "
    )
  ],
  files: []
}

describe("Machine", () => {
  it.live("runs commands in order and reports why one was refused", () =>
    Effect.gen(function* () {
      const machine = yield* Machine.launch(bare)
      const answers = yield* machine.commands({ execute: "qmp_capabilities" }, { execute: "query-status" })
      assert.deepStrictEqual(answers[0], {})
      assert.strictEqual((answers[1] as { readonly running: boolean }).running, false)
      const error = yield* Effect.flip(machine.commands({ execute: "no-such-command" }))
      assert.match(error.problem, /^no-such-command: .*not been found/)
    }).pipe(Effect.scoped)
  )

  it.live("is dead when its scope has closed", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const machine = yield* Machine.launch(bare).pipe(Scope.provide(scope))
      yield* machine.commands({ execute: "qmp_capabilities" })
      assert.isTrue(isAlive(machine.pid))
      yield* Scope.close(scope, Exit.void)
      assert.isFalse(isAlive(machine.pid))
    })
  )

  it.live("fails pending and later calls when it is killed", () =>
    Effect.gen(function* () {
      const machine = yield* Machine.launch(bare)
      yield* machine.commands({ execute: "qmp_capabilities" })
      const migrated = yield* Effect.forkChild(Effect.flip(machine.migrated), { startImmediately: true })
      process.kill(machine.pid, "SIGKILL")
      const failure = yield* Fiber.join(migrated)
      assert.match(failure.problem, /QEMU ended \(SIGKILL\)/)
      assert.isTrue(failure.killed)
      assert.match((yield* Effect.flip(machine.failure)).problem, /SIGKILL/)
      assert.match((yield* Effect.flip(machine.commands({ execute: "query-status" }))).problem, /SIGKILL/)
    }).pipe(Effect.scoped)
  )

  it.live("reports the program's output when it ends at once", () =>
    Effect.gen(function* () {
      const machine = yield* Machine.launch({ argv: ["sh", "-c", "echo no such machine >&2; exit 3"], files: [] })
      assert.strictEqual((yield* Effect.flip(machine.failure)).problem, "QEMU ended (exit code 3): no such machine")
    }).pipe(Effect.scoped)
  )

  it.live("fails on an endless line, and limits how much console output it keeps", () =>
    Effect.gen(function* () {
      const machine = yield* Machine.launch({ argv: ["sh", "-c", "cat /dev/zero >&2 & exec cat /dev/zero"], files: [] })
      assert.match((yield* Effect.flip(machine.failure)).problem, /line that is too long/)
      assert.isAtMost(machine.console().length, 8 * 1024)
    }).pipe(Effect.scoped)
  )

  it.live("names a program that does not exist", () =>
    Effect.gen(function* () {
      const error = yield* Effect.flip(Machine.launch({ argv: ["/no/such/qemu"], files: [] }))
      assert.match(error.problem, /^\/no\/such\/qemu did not start: .*ENOENT/)
    }).pipe(Effect.scoped)
  )
})
