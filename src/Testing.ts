/**
 * Testing: a `Sandbox` in memory, for tests of programs that use one. No QEMU, no image, no root, a few ms per test.
 *
 * Only the machine is fake. A scripted guest speaks the real protocol over an in-memory channel, and everything above it is the
 * library itself: sessions, limits, outcomes, receipts, pool, capacity. A script reports what the guest's agent would report (an
 * exit status, an errno, a limit that was reached), and the outcome, the error type and the receipt are the same as on a real VM;
 * the same contract suite passes on both. Time is Effect's `Clock`: with `TestClock`, a time limit passes when the test says so.
 *
 * Snapshots, forks and parked sessions have the files, the servers and the `Task.state` of their moment, and nothing that ran
 * then. `files.watch` and reports of changed files see changes made through `session.files` and `Task.files`. `session.http` and
 * `ports.expose` reach a task's servers as they reach those of a real guest; `ports.expose` opens a real port of the host.
 *
 * The kit does not run code. It refuses access to no file, and limits neither memory nor disk, unless the script does. It sends
 * nothing out of the VM (`Task.connect` only says whether a connection succeeds), so it uses no secret.
 *
 * @example
 * ```ts
 * const sandbox = Testing.layer({
 *   script: (task) => (task.code.includes("6 * 7") ? Testing.prints("42\n") : Testing.exits(1, { stderr: "no\n" }))
 * })
 * ```
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Capacity from "./Capacity.ts"
import type { Evidence } from "./guest/Evidence.ts"
import { Pool, Settings as PoolSettings } from "./Pool.ts"
import { Sandbox } from "./Sandbox.ts"
import type { SandboxError } from "./SandboxError.ts"
import { Snapshots } from "./Snapshot.ts"
import { machineMemoryMiB, Template } from "./Template.ts"
import * as FakeHost from "./testing/FakeHost.ts"
import * as FakeNetwork from "./testing/FakeNetwork.ts"
import * as FakePorts from "./testing/FakePorts.ts"
import * as FakeSnapshots from "./testing/FakeSnapshots.ts"
import { Machines } from "./testing/Machines.ts"
import type { Ending, HttpHandler, Options, Reply, Server, TcpHandler } from "./testing/Script.ts"

export type {
  Ending,
  HttpHandler,
  Options,
  Reply,
  Script,
  Server,
  Start,
  Task,
  TcpHandler,
  World
} from "./testing/Script.ts"
export { Machines } from "./testing/Machines.ts"

/** Makes an HTTP server of a handler. @since 0.1.0 @category servers */
export const http: (handler: HttpHandler) => Server = FakePorts.http

/** Makes a TCP server of a handler. @since 0.1.0 @category servers */
export const tcp: (handler: TcpHandler) => Server = FakePorts.tcp

/** Ends with exit code 0 unless `ending` says otherwise. @since 0.1.0 @category replies */
export const ends = (ending: Ending = {}): Reply => ({ _tag: "Ends", ...ending })

/** Writes to stdout and ends with exit code 0. @since 0.1.0 @category replies */
export const prints = (stdout: string | Uint8Array): Reply => ends({ stdout })

/** Ends with the value of a trailing expression: as `json`, and as the text `repr`. @since 0.1.0 @category replies */
export const gives = (json: NonNullable<Evidence["result"]>["json"], repr: string = JSON.stringify(json)): Reply =>
  ends({ result: { repr, ...(json !== undefined && { json }) } })

/** Ends with this exit code, 0 to 255. @since 0.1.0 @category replies */
export const exits = (exitCode: number, ending: Ending = {}): Reply => ends({ ...ending, exitCode })

/**
 * Ends with an uncaught exception of this type; `errno`, `path` and `module` decide which error channel it becomes.
 *
 * @since 0.1.0
 * @category replies
 */
export const raises = (
  type: string,
  details: Partial<NonNullable<Evidence["exception"]>> = {},
  ending: Ending = {}
): Reply =>
  ends({
    exitCode: 1,
    ...ending,
    exception: { type, message: "", traceback: "", errno: null, path: null, module: null, code: null, ...details }
  })

/** Ends with exit code 127, because this command does not exist. @since 0.1.0 @category replies */
export const misses = (command: string): Reply =>
  ends({ exitCode: 127, commands: [{ name: command, kind: "not-found", path: null }] })

/**
 * Ends with exit code 0 and leaves a server running on a port of the guest, 1 to 65,535.
 *
 * @example
 * ```ts
 * const served = Testing.serves(8080, (request) => new Response(`hello from ${new URL(request.url).pathname}`))
 * ```
 *
 * @since 0.1.0
 * @category replies
 */
export const serves = (port: number, server: Server | HttpHandler, ending: Ending = {}): Reply =>
  ends({ ...ending, serves: { port, server } })

/** Ends by this signal, such as `SIGSEGV`; the interpreter is reset. @since 0.1.0 @category replies */
export const killedBy = (signal: string): Reply => ends({ signal, state: "reset" })

/**
 * Ends because a limit was reached; `allowed` and `observed` have the unit of `LimitExceeded`: ms, bytes or a count.
 *
 * @since 0.1.0
 * @category replies
 */
export const exceeds = (
  limit: Evidence["limits"][number]["limit"],
  allowed: number | null = null,
  observed: number | null = null
): Reply => ends({ exitCode: 1, state: limit === "memory" ? "reset" : "kept", limits: [{ limit, allowed, observed }] })

/**
 * Never ends by itself: only a time limit, a signal or the caller's interruption ends it.
 *
 * @since 0.1.0
 * @category replies
 */
export const hangs: Effect.Effect<never> = Effect.never

/**
 * The VM dies during the task: `killed` by a signal from outside, or `exited` by itself.
 *
 * @since 0.1.0
 * @category replies
 */
export const dies = (by: "killed" | "exited" = "exited", problem = "the guest died"): Reply => ({
  _tag: "Dies",
  by,
  problem
})

/** The whole guest stops answering: no output, no reply, no limit applies. @since 0.1.0 @category replies */
export const stalls: Reply = { _tag: "Stalls" }

/** The guest breaks the protocol. @since 0.1.0 @category replies */
export const violates: Reply = { _tag: "Violates" }

/**
 * The agent refuses the task: `invalid` is the caller's mistake, `unsupported` a missing feature, `failed` the agent's
 * fault.
 *
 * @since 0.1.0
 * @category replies
 */
export const refuses = (code: "invalid" | "unsupported" | "failed", problem: string): Reply => ({
  _tag: "Refuses",
  code,
  problem
})

/** Saves the fake machines, for snapshots. */
class Savers extends Context.Service<Savers, FakeHost.Saver>()("exec-sandbox/Testing/Savers") {}

/** The name of image and template in receipts of the test kit. @since 0.1.0 @category constants */
export const origin = "testing"

/**
 * A sandbox in memory, with its pool, snapshots, capacity and fake machines. `options` are read once, when the layer is built;
 * each use of the layer builds a sandbox of its own.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (
  options: Options = {}
): Layer.Layer<Sandbox | Machines | Pool | Snapshots | Capacity.Capacity, SandboxError> => {
  const { maxWaitMs = Capacity.defaults.maxWaitMs, vms = 1000 } = options.capacity ?? {}
  // A host has at least one core; a host without memory has room for no VM.
  const roomy = vms === 0 ? 0 : 2 ** 30
  const host = { cores: vms, freeMemoryMiB: roomy, totalMemoryMiB: roomy, memoryPressure: null }
  const capacity = Layer.succeed(
    Capacity.Capacity,
    Capacity.make(
      { ...Capacity.defaults, cpuOvercommit: 1, maxWaitMs },
      { host: () => host, privateMemoryMiB: () => 0 }
    )
  )
  const fakes = Layer.effectContext(
    Effect.map(FakeHost.make(options, origin), ({ clone, saver, service }) =>
      Context.make(Machines, service).pipe(
        Context.add(Savers, saver),
        Context.add(
          Template,
          Template.of({
            clone,
            warm: (memoryMiB) =>
              Effect.succeed({
                key: origin,
                image: origin,
                qemu: "none",
                accelerator: "tcg",
                memoryMiB: machineMemoryMiB(memoryMiB),
                createdAt: new Date(0).toISOString(),
                usedAt: new Date(0).toISOString(),
                bytes: 0
              }),
            list: Effect.succeed([]),
            verify: () => Effect.as(Effect.void, undefined),
            prune: () => Effect.succeed([])
          })
        )
      )
    )
  )
  const snapshots = Layer.effect(
    Snapshots,
    Effect.gen(function* () {
      return FakeSnapshots.make(yield* Savers, yield* Capacity.Capacity)
    })
  )
  // Fresh, because layers are shared by reference, whatever their settings.
  return Layer.fresh(Sandbox.layerOver).pipe(
    Layer.provideMerge(Layer.fresh(snapshots)),
    Layer.provideMerge(Layer.fresh(Pool.layer)),
    Layer.provide(Layer.succeed(PoolSettings, options.pool ?? {})),
    Layer.provideMerge(capacity),
    Layer.provideMerge(fakes),
    Layer.provideMerge(FakeNetwork.world(options.world ?? (() => null)))
  )
}
