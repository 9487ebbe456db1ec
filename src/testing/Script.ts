/** The words of the test kit: what a script is asked, what it may answer, and what a kit is made with. */
import type * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import type * as Stream from "effect/Stream"
import type { Duplex } from "node:stream"
import type { Language } from "../Execution.ts"
import type { Evidence } from "../guest/Evidence.ts"
import type { Reason as PackageReason, Wanted } from "../Packages.ts"
import type { PoolOptions } from "../Pool.ts"
import type { Size } from "../Process.ts"

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
