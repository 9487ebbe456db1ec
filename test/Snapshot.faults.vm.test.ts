/** Snapshots and forks under bad input, damage, interruption, a second process and a full disk: typed errors, nothing left. */
import { assert, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import { execFileSync, spawn } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import * as readline from "node:readline"
import { fileURLToPath } from "node:url"
import * as Capacity from "../src/Capacity.ts"
import { Snapshots, StoreLimit } from "../src/Snapshot.ts"
import { bash, failureOf, kindOf, leftovers, makeStore, python, session } from "./support/copies.ts"
import { qemus } from "./support/processes.ts"
import { layerAt } from "./support/snapshots.ts"

const { home, layer: shared, store } = makeStore()

/** Another process that uses the store; see `support/shareSnapshots`. */
const another = (directory: string, from: string) =>
  Effect.map(
    Effect.acquireRelease(
      Effect.sync(() =>
        spawn(
          process.execPath,
          [fileURLToPath(new URL("./support/shareSnapshots.ts", import.meta.url)), directory, from],
          {
            stdio: ["pipe", "pipe", "inherit"]
          }
        )
      ),
      (child) => Effect.sync(() => child.kill("SIGKILL"))
    ),
    (child) => {
      const lines = readline.createInterface({ input: child.stdout })[Symbol.asyncIterator]()
      return {
        tell: () => void child.stdin.write("on\n"),
        says: Effect.map(
          Effect.promise(() => lines.next()),
          (line) => line.value
        )
      }
    }
  )

layer(shared, { excludeTestServices: true, timeout: "240 seconds" })("Snapshot: bad input and faults", (it) => {
  it.effect("are typed errors, and the session continues", () =>
    Effect.gen(function* () {
      const parent = yield* session({ limits: { memoryMiB: 256 } })
      yield* bash(parent, "n=1")
      for (const n of [0, -1, 1.5, 101, 1000]) {
        assert.strictEqual((yield* failureOf(Effect.scoped(parent.fork(n))))._tag, "InvalidInput", `${n}`)
      }
      for (const name of ["", "-x", "a/b", "..", "x".repeat(65), "snap-0123456789abcdef"]) {
        assert.strictEqual((yield* failureOf(parent.snapshot({ name })))._tag, "InvalidInput", name)
      }
      assert.strictEqual(yield* kindOf(session({ from: "nobody" })), "unknown")
      assert.strictEqual(yield* kindOf(session({ from: "../../etc" })), "unknown")

      const one = yield* parent.snapshot({ name: "one" })
      assert.strictEqual(yield* kindOf(parent.snapshot({ name: "one" })), "exists")
      const tooMuch = yield* failureOf(session({ from: "one", limits: { memoryMiB: 512 } }))
      assert.deepInclude(tooMuch, { _tag: "InvalidInput", field: "limits.memoryMiB" })

      const directory = path.join(store, one.id)
      const manifest = path.join(directory, "manifest.json")
      const original = fs.readFileSync(manifest, "utf8")
      // A snapshot of another QEMU or kind of host has another key.
      fs.writeFileSync(manifest, original.replace(/"machine": "[0-9a-f]+"/, `"machine": "${"0".repeat(32)}"`))
      assert.strictEqual(yield* kindOf(session({ from: "one" })), "foreign")
      fs.writeFileSync(manifest, original.replaceAll(one.image, "0".repeat(32)))
      assert.strictEqual(yield* kindOf(session({ from: "one" })), "foreign")
      fs.writeFileSync(manifest, original)
      const whole = yield* session({ from: "one" })
      const ram = fs.openSync(path.join(directory, "ram"), "r+")
      fs.writeSync(ram, Buffer.from([0x5a]), 0, 1, 4096)
      fs.closeSync(ram)
      assert.strictEqual(yield* kindOf(session({ from: one })), "damaged")
      assert.strictEqual(yield* Snapshots.use((it) => it.verify("one")), "ram was changed")
      fs.writeFileSync(manifest, "{")
      assert.strictEqual(yield* kindOf(session({ from: one.id })), "damaged")
      assert.strictEqual(yield* kindOf(Snapshots.use((it) => it.remove(one.id))), "damaged")
      assert.strictEqual(yield* kindOf(session({ from: one.id })), "unknown")
      assert.strictEqual(yield* kindOf(Snapshots.use((it) => it.remove(one.id))), "unknown")
      assert.strictEqual(yield* bash(whole, "echo $n"), "1\n")

      // A fork that is interrupted at any point leaves nothing, and the session continues.
      const others = new Set(qemus())
      for (const ms of [5, 60, 150, 300, 600]) {
        yield* Effect.ignore(Effect.timeout(Effect.scoped(parent.fork(1)), ms))
        assert.deepStrictEqual(leftovers(store), [], `${ms}`)
        assert.deepStrictEqual(
          qemus().filter((pid) => !others.has(pid)),
          [],
          `${ms}`
        )
      }
      assert.strictEqual(yield* bash(parent, "echo $n"), "1\n")
    }).pipe(Effect.scoped)
  )

  it.effect("a VM that is killed meanwhile fails the fork and closes the session", () =>
    Effect.gen(function* () {
      const before = new Set(qemus())
      const parent = yield* session({ limits: { memoryMiB: 256 } })
      yield* bash(parent, "echo")
      const pid = qemus().find((it) => !before.has(it)) ?? 0
      // If the second QEMU, which has its own capacity, is killed, the session continues.
      const failing = yield* Effect.forkScoped(kindOf(Effect.scoped(parent.fork(1))), { startImmediately: true })
      const second = yield* Effect.sync(() => qemus().find((it) => !before.has(it) && it !== pid)).pipe(
        Effect.repeat({ until: (it) => it !== undefined, schedule: Schedule.spaced("1 millis") })
      )
      assert.strictEqual((yield* Capacity.Capacity.use((it) => it.stats)).held.vms, 2)
      process.kill(second ?? 0, "SIGKILL")
      assert.strictEqual(yield* Fiber.join(failing), "capture")
      assert.deepStrictEqual(leftovers(store), [])
      assert.strictEqual((yield* Capacity.Capacity.use((it) => it.stats)).held.vms, 1)
      yield* bash(parent, "echo")
      const forking = yield* Effect.forkScoped(Effect.exit(Effect.scoped(parent.fork(1))), { startImmediately: true })
      yield* Effect.sync(() => leftovers(store).length > 0).pipe(
        Effect.repeat({ until: (it) => it, schedule: Schedule.spaced("1 millis") })
      )
      process.kill(pid, "SIGKILL")
      const exit = yield* Fiber.join(forking)
      assert.isTrue(Exit.isFailure(exit))
      assert.deepStrictEqual(leftovers(store), [])
      yield* Effect.flip(bash(parent, "echo"))
      assert.strictEqual((yield* failureOf(Effect.scoped(parent.fork(1))))._tag, "SessionClosed")
      assert.deepStrictEqual(
        qemus().filter((it) => !before.has(it)),
        []
      )
    }).pipe(Effect.scoped)
  )

  it.effect(
    "two processes that save, load, list and remove in one store see each other's snapshots, and only complete ones",
    () =>
      Effect.gen(function* () {
        const store = path.join(home, "shared")
        yield* Effect.gen(function* () {
          const { list, remove, verify } = yield* Snapshots
          const parent = yield* session({ limits: { memoryMiB: 128 } })
          yield* python(parent, "x = 42")
          yield* parent.snapshot({ name: "first" })
          const other = yield* another(store, "first")
          const mine = yield* session({ from: "first" })
          assert.strictEqual(yield* python(mine, "x += 2; print(x)"), "44\n")
          assert.strictEqual(yield* other.says, "first: 43")

          // Both save under the same name at once: one of them succeeds, and the stored snapshot is that one's.
          other.tell()
          const saved = yield* Effect.match(mine.snapshot({ name: "both" }), {
            onSuccess: () => "took it",
            onFailure: ({ reason }) => (reason._tag === "SnapshotFailed" ? reason.kind : reason._tag)
          })
          const theirs = yield* other.says
          assert.sameMembers([saved, theirs], ["took it", "exists"])
          assert.isUndefined(yield* verify("both"))
          const child = yield* session({ from: "both" })
          assert.strictEqual(yield* python(child, "print(x)"), saved === "took it" ? "44\n" : "43\n")

          // A snapshot removed here is gone there, and sessions that were started from it continue.
          yield* remove("first")
          assert.strictEqual(yield* kindOf(session({ from: "first" })), "unknown")
          other.tell()
          assert.strictEqual(yield* other.says, "both: 43, whole")
          assert.strictEqual(yield* python(mine, "print(x)"), "44\n")
          yield* remove("both")
          assert.deepStrictEqual([yield* list, leftovers(path.join(store, "snapshots"))], [[], []])
        }).pipe(Effect.scoped, Effect.provide(layerAt(store)))
      })
  )

  it.effect("a full store and a full disk are reported as such", () =>
    Effect.gen(function* () {
      const before = yield* Snapshots.use((it) => it.list)
      const other = fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-full-"))
      execFileSync("mount", ["-t", "tmpfs", "-o", "size=60m", "tmpfs", other])
      yield* Effect.addFinalizer(() => Effect.sync(() => execFileSync("umount", ["-l", other])))
      yield* Effect.gen(function* () {
        const parent = yield* session({ limits: { memoryMiB: 256 } })
        yield* bash(parent, "n=1")
        assert.strictEqual(yield* kindOf(parent.snapshot()), "store-full")
        assert.strictEqual(yield* kindOf(Effect.scoped(parent.fork(1))), "store-full")
        assert.deepStrictEqual(leftovers(path.join(other, "snapshots")), [])
        assert.throws(() => fs.writeFileSync(path.join(other, "full"), Buffer.alloc(61 * 1024 * 1024)), "ENOSPC")
        assert.strictEqual(yield* kindOf(parent.park), "store-full")
        assert.strictEqual(yield* bash(parent, "echo $n"), "1\n")
      }).pipe(Effect.scoped, Effect.provide(layerAt(other)))
      yield* Effect.gen(function* () {
        const parent = yield* session({ limits: { memoryMiB: 256 } })
        assert.strictEqual(yield* kindOf(parent.snapshot()), "store-full")
        assert.strictEqual(yield* kindOf(parent.park), "store-full")
        assert.deepStrictEqual(yield* Snapshots.use((it) => it.list), before)
        assert.deepStrictEqual(leftovers(store), [])
      }).pipe(Effect.scoped, Effect.provide(layerAt(home).pipe(Layer.provide(Layer.succeed(StoreLimit, 1024 * 1024)))))
    }).pipe(Effect.scoped)
  )
})
