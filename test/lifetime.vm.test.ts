/** Nothing leaks on real VMs: callers interrupted at random moments, many at once, a dead agent, a killed host process. */
import { assert, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { spawn, spawnSync } from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import * as Capacity from "../src/Capacity.ts"
import { Host } from "../src/Host.ts"
import { Image } from "../src/Image.ts"
import { temporaryName } from "../src/internal/Temporary.ts"
import { Pool, Settings } from "../src/Pool.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { Snapshots } from "../src/Snapshot.ts"
import { Template } from "../src/Template.ts"
import { isAlive, qemus } from "./support/processes.ts"

/** A sandbox with a pool of one, on a host with room for `slots` VMs. */
const slots = 5
const pooled = Sandbox.layerOver.pipe(
  Layer.provide(Snapshots.layerUnsupported),
  Layer.provideMerge(Pool.layer),
  Layer.provideMerge(Capacity.Capacity.layer),
  Layer.provideMerge(Template.layer),
  Layer.provide(Image.layer),
  Layer.provideMerge(Host.layer),
  Layer.provide(Layer.succeed(Settings, { size: 1 })),
  Layer.provide(Layer.succeed(Capacity.Settings, { cpuOvercommit: slots / 2, maxWaitMs: 120_000 }))
)

const python = (code: string) => ({ language: "python", code }) as const

/** Waits until a condition is true. */
const until = (holds: () => boolean, what: () => string) =>
  Effect.sync(holds).pipe(
    Effect.repeat({ until: (it) => it, schedule: Schedule.spaced("20 millis") }),
    Effect.timeoutOrElse({ duration: "20 seconds", orElse: () => Effect.sync(() => assert.fail(what())) })
  )

/** Open descriptors of this process that lead to files or sockets of a VM. */
const descriptors = (): number => fs.readdirSync("/proc/self/fd").length

/** Files that should exist only briefly. */
const leftovers = Effect.map(Host, (host) => {
  const store = path.join(host.cacheDirectory, "templates")
  const directories = [store, host.runDirectory, ...fs.readdirSync(store).map((name) => path.join(store, name))]
  const ours = new RegExp(`^\\.(building|removed|clone|seal)-${process.pid}-`)
  return directories
    .filter((it) => fs.existsSync(it) && fs.statSync(it).isDirectory())
    .flatMap((it) => fs.readdirSync(it).filter((name) => ours.test(name)))
})

/** Waits until the pool is full and has the only VM and the only reservation. */
const quiet = Effect.gen(function* () {
  const capacity = yield* Capacity.Capacity
  const pool = yield* Pool
  let told = ""
  const only = Effect.gen(function* () {
    const { held, waiting } = yield* capacity.stats
    const [idle] = yield* pool.stats
    told = `${qemus().length} QEMUs, ${held.vms} reservations, ${waiting} waiting, ${idle?.ready} ready`
    return qemus().length === 1 && held.vms === 1 && waiting === 0 && idle?.ready === 1
  })
  yield* only.pipe(
    Effect.repeat({ until: (it) => it, schedule: Schedule.spaced("20 millis") }),
    Effect.timeoutOrElse({ duration: "200 seconds", orElse: () => Effect.sync(() => assert.fail(told)) })
  )
})

const act = (kind: number) =>
  Effect.gen(function* () {
    const sandbox = yield* Sandbox
    switch (kind % 4) {
      case 0:
        return yield* sandbox.run(python("while True: pass"))
      case 1:
        return yield* Stream.runDrain(sandbox.stream(python("while True: print('x' * 1000)")))
      case 2: {
        const session = yield* sandbox.session({ limits: { memoryMiB: 512 } })
        yield* session.exec(python("1"))
        const started = yield* session.spawn(["sleep", "1000"])
        return yield* started.exit
      }
      default: {
        const { files } = yield* sandbox.session()
        for (;;) yield* files.write("big", Buffer.alloc(4 * 1024 * 1024))
      }
    }
  }).pipe(Effect.scoped, Effect.exit)

/** The first test may have to wait for a new template. */
const timeout = 240_000

layer(pooled, { excludeTestServices: true, timeout: "240 seconds" })("lifetime", (it) => {
  it.effect(
    "callers interrupted at random moments leave no QEMU, descriptor, file or reservation",
    () =>
      Effect.gen(function* () {
        yield* quiet
        const before = descriptors()
        let seed = 20261129
        const random = (below: number): number => {
          seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff
          return seed % below
        }
        // Two at a time: one is interrupted while the other starts.
        yield* Effect.forEach(
          Array.from({ length: 24 }, (_, n) => [n, random(900)] as const),
          ([kind, ms]) =>
            Effect.gen(function* () {
              const calling = yield* Effect.forkChild(act(kind))
              yield* Effect.sleep(ms)
              yield* Fiber.interrupt(calling)
            }),
          { concurrency: 2, discard: true }
        )
        yield* quiet
        assert.deepStrictEqual(yield* leftovers, [])
        yield* until(
          () => descriptors() <= before,
          () => `${descriptors()} descriptors, ${before} before`
        )
      }),
    timeout
  )

  it.effect(
    "a hundred runs at once all succeed, as many at a time as the host has room for, and release their reservations",
    () =>
      Effect.gen(function* () {
        const sandbox = yield* Sandbox
        let most = 0
        const watching = yield* Effect.sync(() => (most = Math.max(most, qemus().length))).pipe(
          Effect.repeat(Schedule.spaced("20 millis")),
          Effect.forkChild
        )
        const results = yield* Effect.forEach(
          Array.from({ length: 100 }, (_, n) => n),
          (n) => sandbox.run({ language: "bash", code: `echo ${n}` }),
          { concurrency: "unbounded" }
        )
        yield* Fiber.interrupt(watching)
        assert.deepStrictEqual(
          results.map(({ stdout }) => stdout),
          Array.from({ length: 100 }, (_, n) => `${n}\n`)
        )
        assert.isAtMost(most, slots)
        yield* quiet
      })
  )

  it.effect("a crashed agent is soon reported as a lost VM, and its reservation is released", () =>
    Effect.gen(function* () {
      yield* Effect.scoped(
        Effect.gen(function* () {
          const session = yield* Sandbox.use((sandbox) => sandbox.session())
          // The kernel does not deliver SIGKILL to its first process.
          yield* session.run(["kill", "-9", "1"], { user: "root" })
          assert.strictEqual((yield* session.exec(python("print(1)"))).stdout, "1\n")
          const error = yield* session
            .run(["kill", "-SEGV", "1"], { user: "root" })
            .pipe(Effect.andThen(session.exec(python("while True: pass"))), Effect.flip, Effect.timeout("20 seconds"))
          if (error._tag !== "SandboxError") return assert.fail(error._tag)
          assert.include(["OutcomeUnknown", "NotStarted", "SessionClosed"], error.reason._tag)
        })
      )
      yield* quiet
    })
  )

  it.effect("a stopped machine does not delay the end of its session, nor of a process in it", () =>
    Effect.gen(function* () {
      const took = yield* Effect.scoped(
        Effect.gen(function* () {
          const session = yield* Sandbox.use((sandbox) => sandbox.session())
          yield* session.spawn(["sleep", "1000"])
          for (const pid of qemus()) process.kill(pid, "SIGSTOP")
          return performance.now()
        })
      ).pipe(Effect.map((began) => performance.now() - began))
      for (const pid of qemus()) process.kill(pid, "SIGCONT")
      assert.isBelow(took, 6_000) // a live guest gets more time
      yield* quiet
    })
  )

  it.effect("a killed host process leaves no QEMU, and the next start removes its files", () =>
    Effect.gen(function* () {
      const host = yield* Host
      const child = spawn(process.execPath, [fileURLToPath(new URL("./support/keepVms.ts", import.meta.url))], {
        stdio: ["ignore", "pipe", "inherit"]
      })
      yield* Effect.callback<void>((resume) => {
        child.stdout.once("data", () => resume(Effect.void))
        child.once("exit", () => resume(Effect.die("it ended before it was ready")))
      })
      const theirs = qemus(child.pid)
      assert.strictEqual(theirs.length, 2)
      child.kill("SIGKILL")
      yield* until(
        () => !theirs.some(isAlive),
        () => `alive: ${theirs.filter(isAlive).join()}`
      )
      // As if it had also been killed during a build, a clone and a seal.
      const store = path.join(host.cacheDirectory, "templates")
      const template = fs.readdirSync(store).find((name) => !name.startsWith(".")) ?? ""
      const of = (purpose: "building" | "clone" | "seal"): string =>
        temporaryName(purpose).replace(`-${process.pid}-`, `-${child.pid}-`)
      const left = [
        path.join(store, of("building"), "ram"),
        path.join(store, template, of("clone")),
        path.join(host.runDirectory, of("seal"))
      ]
      for (const file of left) {
        fs.mkdirSync(path.dirname(file), { recursive: true })
        fs.writeFileSync(file, "")
      }
      const started = spawnSync(process.execPath, [
        fileURLToPath(new URL("../src/cli/bin.ts", import.meta.url)),
        "run",
        "-q",
        "print(1)"
      ])
      assert.strictEqual(started.stdout.toString(), "1\n", started.stderr.toString())
      assert.deepStrictEqual(
        left.filter((file) => fs.existsSync(file)),
        []
      )
      assert.isFalse(fs.existsSync(path.dirname(left[0] ?? "")))
    })
  )
})
