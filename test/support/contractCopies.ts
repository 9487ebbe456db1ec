/** The contract of snapshots, forks and parked sessions. */
import { assert, type Vitest } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { Sandbox, type SessionOptions } from "../../src/Sandbox.ts"
import { SandboxError } from "../../src/SandboxError.ts"
import { Snapshots } from "../../src/Snapshot.ts"
import { bash, programs, python } from "./contractPrograms.ts"

const session = (options?: SessionOptions) => Sandbox.use((sandbox) => sandbox.session(options))

/** The tag of the sandbox's failure; for a snapshot its `kind`. */
const kindOf = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.flip(effect), (error) => {
    if (!(error instanceof SandboxError)) return assert.fail(String(error))
    return error.reason._tag === "SnapshotFailed" ? error.reason.kind : error.reason._tag
  })

/** Adds the tests. */
export const contractCopies = (it: Vitest.MethodsNonLive<Sandbox | Snapshots>): void => {
  it.effect("a session can be parked, saved and forked, and each copy continues independently", () =>
    Effect.gen(function* () {
      const snapshots = yield* Snapshots
      const parent = yield* session({ env: { A: "a", B: "b" } })
      yield* parent.exec(python(programs.assign))
      yield* parent.files.write("w/old", "1\n", { createParents: true })

      // It parks while it is not used, and wakes when it is used.
      const mark = yield* parent.mark
      assert.isTrue(yield* parent.park)
      const woken = yield* parent.exec(python(programs.use))
      assert.strictEqual(woken.result?.json, 42)
      assert.isNumber(woken.receipt.timing.wakeMs)
      assert.deepStrictEqual((yield* parent.changes({ since: mark })).files, [])
      const used = yield* parent.spawn(["cat"])
      assert.isFalse(yield* parent.park)
      yield* used.signal("SIGKILL")
      yield* used.exit

      const saved = yield* parent.snapshot({ name: "one" })
      assert.deepInclude(saved, { name: "one", session: parent.id, parent: null, memoryMiB: 512 })
      assert.match(saved.id, /^snap-[0-9a-f]{16}$/)
      assert.strictEqual(yield* kindOf(parent.snapshot({ name: "one" })), "exists")
      assert.deepStrictEqual(
        (yield* snapshots.list).map(({ id }) => id),
        [saved.id]
      )
      assert.isUndefined(yield* snapshots.verify("one"))
      yield* parent.exec(bash(programs.append))

      const child = yield* session({ from: "one", env: { A: "own", B: "" } })
      const echo = yield* child.exec(python(programs.echo, { stdin: "in" }))
      assert.strictEqual(echo.stdout, "in own  /home/user\n")
      assert.deepStrictEqual(echo.receipt.startPath, { kind: "snapshot", from: saved.id, missed: [] })
      assert.isNull(echo.receipt.template)
      assert.strictEqual((yield* child.exec(python(programs.use))).result?.json, 42)
      assert.strictEqual(yield* child.files.readText("w/old"), "1\n")
      assert.deepStrictEqual((yield* child.changes()).files, [])
      assert.strictEqual(yield* kindOf(session({ from: "one", limits: { memoryMiB: 513 } })), "InvalidInput")
      yield* child.close

      // A fork also has the session's options.
      const [fork] = (yield* parent.fork(1)).map(Result.getOrThrow)
      if (fork === undefined) return assert.fail("no fork")
      assert.strictEqual((yield* fork.exec(python(programs.echo, { stdin: "in" }))).stdout, "in a b /home/user\n")
      assert.strictEqual((yield* fork.exec(python(programs.use))).result?.json, 42)
      yield* fork.files.remove("w/old")
      assert.strictEqual(yield* parent.files.readText("w/old"), "1\n2\n")
      assert.strictEqual(yield* kindOf(parent.fork(0)), "InvalidInput")
      assert.strictEqual(yield* kindOf(fork.changes({ since: mark })), "InvalidInput")

      assert.strictEqual((yield* snapshots.remove("one")).id, saved.id)
      assert.deepStrictEqual(yield* snapshots.list, [])
      assert.strictEqual(yield* kindOf(session({ from: "one" })), "unknown")
      assert.strictEqual(yield* kindOf(snapshots.remove(saved.id)), "unknown")
    }).pipe(Effect.scoped)
  )
}
