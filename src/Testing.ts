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
import type * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import type * as Stream from "effect/Stream"
import type { Duplex } from "node:stream"
import * as Capacity from "./Capacity.ts"
import type { Language } from "./Execution.ts"
import type { Evidence } from "./guest/Evidence.ts"
import type { Reason as PackageReason, Wanted } from "./Packages.ts"
import { Pool, type PoolOptions, Settings as PoolSettings } from "./Pool.ts"
import type { Size } from "./Process.ts"
import { Sandbox } from "./Sandbox.ts"
import type { SandboxError } from "./SandboxError.ts"
import { Snapshots } from "./Snapshot.ts"
import { machineMemoryMiB, Template } from "./Template.ts"
import * as FakeHost from "./testing/FakeHost.ts"
import * as FakeNetwork from "./testing/FakeNetwork.ts"
import * as FakePorts from "./testing/FakePorts.ts"
import * as FakeSnapshots from "./testing/FakeSnapshots.ts"

/**
 * Answers a request of HTTP: a function of the web's `Request` and `Response`, such as `HttpRouter.toWebHandler` gives. One that
 * fails is answered with 500.
 *
 * @since 0.1.0
 * @category servers
 */
export type HttpHandler = (request: Request) => Response | Promise<Response> | Effect.Effect<Response>

/**
 * Serves one connection. An effect is interrupted when the connection closes; its end closes the connection.
 *
 * @since 0.1.0
 * @category servers
 */
export type TcpHandler = (connection: Duplex) => void | Effect.Effect<unknown>

/**
 * A server of a guest; `run` runs effects as long as the VM lives.
 *
 * @since 0.1.0
 * @category servers
 */
export interface Server {
  readonly accept: (connection: Duplex, run: <A, E>(effect: Effect.Effect<A, E>) => Fiber.Fiber<A, E>) => void
}

/** A server of HTTP. @since 0.1.0 @category servers */
export const http: (handler: HttpHandler) => Server = FakePorts.http

/** A server of bytes. @since 0.1.0 @category servers */
export const tcp: (handler: TcpHandler) => Server = FakePorts.tcp

/**
 * What the guest is asked to run.
 *
 * - `vm`: which VM it runs in, counted from 1.
 * - `language` and `code`: of an execution; for a process `language` is `null` and `code` the text for the shell, if any.
 * - `argv`: of a process; `null` for an execution.
 * - `env`: of the session and of this task together. `cwd`: absolute. `user`: `user` or `root`.
 * - `stdin`, `stdinText`: what it reads; for a process it ends when the caller ends it. Read one of them, once.
 * - `terminal`: its terminal's size now, `null` without one.
 * - `trap`: is told each signal that it is sent, but SIGKILL: those of `Process.signal`, SIGTERM when a process's scope closes (on a
 *   terminal then SIGHUP), SIGINT at a limit on time or output. With `true` it has heeded it, and goes on; what was to end is killed
 *   a second later.
 * - `stdout`, `stderr`: write while it runs; they wait while the caller does not read. What an execution writes after its end
 *   comes out of `session.output`.
 * - `background`: goes on after the task's end, until the VM's or its interpreter's; or ends with a task that a signal, a limit or its
 *   caller has ended.
 * - `files`: the VM's files. `state`: lives as long as the interpreter does, from one task to the next.
 * - `packages`: what the session has beside the image, as `python:pandas==2.2.3`.
 * - `connect`: asks for a connection to beyond the VM, as a guest's programs do; the session's network policy decides. The name
 *   of the errno it fails with, or `null`: then it is made and closed. Raise what you got, and the outcome says what it was.
 * - `ports`: servers on the guest's loopback, until they are closed or what has started them (an interpreter, or a process) ends.
 *   `listen` is false where somebody listens already; a function answers HTTP.
 *
 * @since 0.1.0
 * @category models
 */
export interface Task {
  readonly vm: number
  readonly language: Language | null
  readonly argv: ReadonlyArray<string> | null
  readonly code: string
  readonly env: Readonly<Record<string, string>>
  readonly cwd: string
  readonly user: "user" | "root"
  readonly terminal: () => Size | null
  readonly trap: (handler: (signal: string) => boolean) => void
  readonly stdin: Stream.Stream<Uint8Array>
  readonly stdinText: Effect.Effect<string>
  readonly stdout: (text: string | Uint8Array) => Effect.Effect<void>
  readonly stderr: (text: string | Uint8Array) => Effect.Effect<void>
  readonly background: (effect: Effect.Effect<unknown, unknown>) => Effect.Effect<void>
  readonly packages: ReadonlyArray<string>
  readonly connect: (host: string, port: number) => Effect.Effect<string | null>
  readonly files: {
    readonly read: (path: string) => Uint8Array | undefined
    readonly write: (path: string, content: string | Uint8Array) => void
  }
  readonly ports: {
    readonly listen: (port: number, server: Server | HttpHandler) => boolean
    readonly close: (port: number) => void
  }
  readonly state: Map<string, unknown>
}

/**
 * How a task ends, as evidence; what is absent says that nothing happened. `stdout` and `stderr` are written at the end,
 * after what the task wrote itself. `state: "reset"`: the interpreter died with it. `serves`: a server that it leaves behind; where
 * somebody listens already the task fails with EADDRINUSE.
 *
 * @since 0.1.0
 * @category models
 */
export interface Ending {
  readonly stdout?: string | Uint8Array
  readonly stderr?: string | Uint8Array
  readonly exitCode?: number
  readonly signal?: string | null
  readonly exception?: Evidence["exception"]
  readonly commands?: Evidence["commands"]
  readonly limits?: Evidence["limits"]
  readonly result?: Evidence["result"]
  readonly state?: "kept" | "reset"
  readonly cpuMs?: number | null
  readonly peakMemoryBytes?: number | null
  readonly serves?: { readonly port: number; readonly server: Server | HttpHandler }
}

/**
 * What the guest makes of a task: an ending, or a fault of the sandbox.
 *
 * @since 0.1.0
 * @category models
 */
export type Reply =
  | ({ readonly _tag: "Ends" } & Ending)
  | { readonly _tag: "Dies"; readonly by: "killed" | "exited"; readonly problem: string }
  | { readonly _tag: "Stalls" }
  | { readonly _tag: "Violates" }
  | { readonly _tag: "Refuses"; readonly code: "invalid" | "unsupported" | "failed"; readonly problem: string }

/**
 * Decides what every task does. An effect may write, wait (on the test's clock or a latch of the test) and end when it
 * likes; it is interrupted when the caller is, and by a signal that it does not heed (see `Task.trap`).
 *
 * @since 0.1.0
 * @category models
 */
export type Script = (task: Task) => Reply | Effect.Effect<Reply>

/**
 * How a VM starts: `delayMs` until it runs, and until it is parked, default 0; `fails` with this problem instead (`BootFailed`);
 * `answers: false` never acknowledges its handover; `refuses` one part of it. `parkFails`: it cannot be parked, for this problem;
 * `wakeFails`: it cannot be woken.
 *
 * @since 0.1.0
 * @category models
 */
export interface Start {
  readonly delayMs?: number
  readonly fails?: string
  readonly answers?: boolean
  readonly refuses?: "clock" | "entropy" | "hostname" | "machineId" | "env" | "limits"
  readonly parkFails?: string
  readonly wakeFails?: string
}

/**
 * What lies beyond the host: how a connect fails that the policy has granted, as the name of an errno; `null` when it does not.
 *
 * @since 0.1.0
 * @category models
 */
export type World = (host: string, port: number) => string | null

/**
 * - `script`: see `Script`. Default: every task ends well and prints nothing.
 * - `start`: how the nth VM starts, counted from 1. Default: at once.
 * - `capacity`: VMs that the host has room for (default 1,000), and how long a caller waits for one, ms (default 60,000).
 * - `pool`: see `PoolOptions`. Default: none.
 * - `world`: see `World`. Default: all that is granted is reached. Nothing is dialled or resolved in any case, and
 *   `NetworkPolicy.packages` grants no registry beside its rules.
 * - `packages`: why a package cannot be had. Default: every one can that `Packages.Policy` allows. Nothing is installed.
 *
 * @since 0.1.0
 * @category models
 */
export interface Options {
  readonly script?: Script
  readonly start?: (vm: number) => Start
  readonly capacity?: { readonly vms?: number; readonly maxWaitMs?: number }
  readonly pool?: PoolOptions
  readonly world?: World
  readonly packages?: (wanted: Wanted) => PackageReason | undefined
}

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

/**
 * The fake VMs, for tests to look at and to break.
 *
 * @since 0.1.0
 * @category services
 */
export class Machines extends Context.Service<
  Machines,
  {
    /** The numbers of those that live. */
    readonly live: Effect.Effect<ReadonlyArray<number>>
    /** How many have been started. */
    readonly started: Effect.Effect<number>
    /** Kills one from outside, as a signal would; nothing happens to one that is dead. */
    readonly kill: (vm: number) => Effect.Effect<void>
    /** Makes the template anew, so that clones made before are clones of it no longer. */
    readonly remakeTemplate: Effect.Effect<void>
    /** The first 10,000 tasks that the guests were asked to run, oldest first. */
    readonly tasks: Effect.Effect<ReadonlyArray<Task>>
  }
>()("exec-sandbox/Testing/Machines") {}

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
