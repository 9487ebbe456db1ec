/**
 * Testing: a `Sandbox` in memory, for tests of programs that use one. No QEMU, no image, no root, a few ms a test.
 *
 * Only the machine is fake. A scripted guest speaks the real protocol over an in-memory channel, and everything above it is the
 * library itself: sessions, limits, judgement, receipts, pool, capacity. So a script says what the guest's agent would
 * have seen (an exit status, an errno, a limit that was hit), and the outcome, its error type and its receipt come out as they
 * would on a real VM; the same contract suite passes on both. Time is Effect's `Clock`: with `TestClock`, a time limit passes
 * when the test says so.
 *
 * Snapshots, forks and parked sessions have the files, the servers and the `Task.state` of their moment, and nothing that ran
 * then; `files.watch` and reports of changed files know what `session.files` and `Task.files` have changed. A server of a task
 * is reached as one in a guest is, by `session.http` and by `ports.expose`, which opens a real port of the host.
 *
 * What it does not do: run code; refuse a file to anybody, or limit memory and disk, by itself (script them); carry anything to
 * beyond the VM (`Task.connect` says only whether a connection is had), so that no secret is put into anything.
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

/** A server of HTTP. @since 0.1.0 @category servers */
export const http: (handler: HttpHandler) => Server = FakePorts.http

/** A server of bytes. @since 0.1.0 @category servers */
export const tcp: (handler: TcpHandler) => Server = FakePorts.tcp

/** Ends well, with what is given. @since 0.1.0 @category replies */
export const ends = (ending: Ending = {}): Reply => ({ _tag: "Ends", ...ending })

/** Writes to stdout and ends well. @since 0.1.0 @category replies */
export const prints = (stdout: string | Uint8Array): Reply => ends({ stdout })

/** Ends with the value of a trailing expression. @since 0.1.0 @category replies */
export const gives = (json: NonNullable<Evidence["result"]>["json"], repr: string = JSON.stringify(json)): Reply =>
  ends({ result: { repr, ...(json !== undefined && { json }) } })

/** Ends with an exit code. @since 0.1.0 @category replies */
export const exits = (exitCode: number, ending: Ending = {}): Reply => ends({ ...ending, exitCode })

/** Ends by an uncaught exception; `errno`, `path` and `module` are what decides between the error channels. @since 0.1.0 @category replies */
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

/** Ends because a command is not there, with 127. @since 0.1.0 @category replies */
export const misses = (command: string): Reply =>
  ends({ exitCode: 127, commands: [{ name: command, kind: "not-found", path: null }] })

/**
 * Ends well and leaves a server behind, at a port of the guest from 1 to 65,535.
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

/** Ends by a signal, such as `SIGSEGV`; the interpreter is reset. @since 0.1.0 @category replies */
export const killedBy = (signal: string): Reply => ends({ signal, state: "reset" })

/** Ends because a limit was hit: bytes, ms or a count, as the limit has it. @since 0.1.0 @category replies */
export const exceeds = (
  limit: Evidence["limits"][number]["limit"],
  allowed: number | null = null,
  observed: number | null = null
): Reply => ends({ exitCode: 1, state: limit === "memory" ? "reset" : "kept", limits: [{ limit, allowed, observed }] })

/** Never ends by itself: only its time limit, a signal or its caller's interruption ends it. @since 0.1.0 @category replies */
export const hangs: Effect.Effect<never> = Effect.never

/** The VM dies in the middle of it: `killed` by somebody's signal, or `exited` by itself. @since 0.1.0 @category replies */
export const dies = (by: "killed" | "exited" = "exited", problem = "the guest died"): Reply => ({
  _tag: "Dies",
  by,
  problem
})

/** The whole guest falls silent: no output, no answer, no limit holds. @since 0.1.0 @category replies */
export const stalls: Reply = { _tag: "Stalls" }

/** The guest breaks the channel's rules. @since 0.1.0 @category replies */
export const violates: Reply = { _tag: "Violates" }

/** The agent refuses the task: `invalid` is the caller's mistake, `failed` the agent's. @since 0.1.0 @category replies */
export const refuses = (code: "invalid" | "unsupported" | "failed", problem: string): Reply => ({
  _tag: "Refuses",
  code,
  problem
})

/** What saves the fake machines. */
class Savers extends Context.Service<Savers, FakeHost.Saver>()("exec-sandbox/Testing/Savers") {}

/** The image and template that receipts of the test kit name. @since 0.1.0 @category constants */
export const origin = "testing"

/**
 * A sandbox in memory, with its pool, its snapshots, its capacity and the fake machines it runs on. `options` are read once, when the layer
 * is built.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (
  options: Options = {}
): Layer.Layer<Sandbox | Machines | Pool | Snapshots | Capacity.Capacity, SandboxError> => {
  const { maxWaitMs = Capacity.defaults.maxWaitMs, vms = 1000 } = options.capacity ?? {}
  // A host has one core at the least; one without memory has room for none.
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
  // Fresh: a layer is shared by reference, whatever its settings.
  return Layer.fresh(Sandbox.layerOver).pipe(
    Layer.provideMerge(Layer.fresh(snapshots)),
    Layer.provideMerge(Layer.fresh(Pool.layer)),
    Layer.provide(Layer.succeed(PoolSettings, options.pool ?? {})),
    Layer.provideMerge(capacity),
    Layer.provideMerge(fakes),
    Layer.provideMerge(FakeNetwork.world(options.world ?? (() => null)))
  )
}
