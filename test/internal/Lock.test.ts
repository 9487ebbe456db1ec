import { assert, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { spawn } from "node:child_process"
import { once } from "node:events"
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { LockFailed, withLock, withLockIfFree } from "../../src/internal/Lock.ts"

const directory = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "lock-"))),
  (path) => Effect.sync(() => rmSync(path, { recursive: true }))
)

/** Another process that runs `code` (an async function's body) with `withLock`, `path` and `Effect` in scope. */
const other = (path: string, code: string) =>
  spawn(
    process.execPath,
    [
      "--input-type=module",
      "-e",
      `import * as Effect from ${JSON.stringify(import.meta.resolve("effect/Effect"))}
       import { withLock } from ${JSON.stringify(new URL("../../src/internal/Lock.ts", import.meta.url).href)}
       import { readFileSync, writeFileSync } from "node:fs"
       const path = ${JSON.stringify(path)}
       ${code}`
    ],
    { stdio: ["ignore", "pipe", "inherit"] }
  )

it.live("two processes and two fibres never have the lock at the same time", () =>
  Effect.gen(function* () {
    const path = join(yield* directory, "lock")
    const counter = `${path}.count`
    writeFileSync(counter, "0")
    const code = `for (let i = 0; i < 20; i++) await Effect.runPromise(withLock(path, Effect.gen(function* () {
        const seen = Number(readFileSync(path + ".count", "utf8"))
        yield* Effect.sleep(1)
        writeFileSync(path + ".count", String(seen + 1))
      })))`
    const child = other(path, code)
    const add = withLock(
      path,
      Effect.gen(function* () {
        const seen = Number(readFileSync(counter, "utf8"))
        yield* Effect.sleep(1)
        writeFileSync(counter, String(seen + 1))
      })
    )
    yield* Effect.all([Effect.repeat(add, { times: 19 }), Effect.repeat(add, { times: 19 })], { concurrency: 2 })
    if (child.exitCode === null) yield* Effect.promise(() => once(child, "exit"))
    assert.strictEqual(readFileSync(counter, "utf8"), "60")
  })
)

it.live("a process that is killed releases the lock", () =>
  Effect.gen(function* () {
    const path = join(yield* directory, "lock")
    const child = other(
      path,
      `setInterval(() => {}, 1000); await Effect.runPromise(withLock(path, Effect.andThen(Effect.sync(() => console.log("held")), Effect.never)))`
    )
    yield* Effect.promise(() => once(child.stdout, "data"))
    assert.strictEqual(yield* withLockIfFree(path, Effect.void), false)
    child.kill("SIGKILL")
    assert.strictEqual(yield* withLock(path, Effect.succeed("mine")), "mine")
  })
)

it.live("waiting is reported after a second, can be interrupted, and then does not take the lock later", () =>
  Effect.gen(function* () {
    const path = join(yield* directory, "lock")
    const release = yield* Deferred.make<void>()
    const held = yield* Deferred.make<void>()
    const holder = yield* Effect.forkChild(
      withLock(path, Effect.andThen(Deferred.succeed(held, undefined), Deferred.await(release)))
    )
    yield* Deferred.await(held)
    const reported = yield* Deferred.make<void>()
    const waiter = yield* Effect.forkChild(
      withLock(path, Effect.die("it got the lock"), { waiting: Effect.asVoid(Deferred.succeed(reported, undefined)) })
    )
    yield* Deferred.await(reported)
    yield* Fiber.interrupt(waiter)
    yield* Deferred.succeed(release, undefined)
    yield* Fiber.join(holder)
    assert.strictEqual(yield* withLockIfFree(path, Effect.void), true)
  })
)

it.live("an error of the effect passes through, and the lock is released", () =>
  Effect.gen(function* () {
    const path = join(yield* directory, "lock")
    assert.strictEqual(yield* Effect.flip(withLock(path, Effect.fail("no"))), "no")
    assert.strictEqual(yield* withLockIfFree(path, Effect.void), true)
  })
)

it.live("a path that cannot be locked is a typed error", () =>
  Effect.gen(function* () {
    const path = join(yield* directory, "lock")
    writeFileSync(path, "")
    const error = yield* Effect.flip(withLock(join(path, "below-a-file"), Effect.void))
    assert.instanceOf(error, LockFailed)
  })
)
