/** The models of the test kit: the tasks that a script gets, the replies that it gives, and the options of a kit. */
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
 * Answers an HTTP request: a function from a web `Request` to a web `Response`, such as `HttpRouter.toWebHandler` gives. When it
 * fails, the client gets status 500.
 *
 * @since 0.1.0
 * @category servers
 */
export type HttpHandler = (request: Request) => Response | Promise<Response> | Effect.Effect<Response>

/**
 * Serves one TCP connection. An effect that it returns is interrupted when the connection closes; its end closes the connection.
 *
 * @since 0.1.0
 * @category servers
 */
export type TcpHandler = (connection: Duplex) => void | Effect.Effect<unknown>

/**
 * A server in a guest, see `http` and `tcp`. `accept` takes one connection; its `run` runs effects as long as the VM lives.
 *
 * @since 0.1.0
 * @category servers
 */
export interface Server {
  readonly accept: (connection: Duplex, run: <A, E>(effect: Effect.Effect<A, E>) => Fiber.Fiber<A, E>) => void
}

/**
 * A task for the guest: an execution of code, or a process.
 *
 * - `vm`: the number of the VM that it runs in, counted from 1.
 * - `language`, `code`: the language and code of an execution; for a process `language` is `null` and `code` is the text for the
 *   shell, or empty.
 * - `argv`: the arguments of a process; `null` for an execution.
 * - `env`: the variables of the session and of this task. `cwd`: an absolute path. `user`: `user` or `root`.
 * - `stdin`, `stdinText`: the task's input as bytes or as text; for a process it ends when the caller ends it. Read one of them, once.
 * - `terminal`: the present size of its terminal in columns and rows, `null` without a terminal.
 * - `trap`: calls `handler` with each signal except SIGKILL: signals from `Process.signal`, SIGTERM when a process's scope closes (on
 *   a terminal also SIGHUP), SIGINT at a limit on time or output. When `handler` returns `true` the signal is handled and the task
 *   goes on; a task that should end is killed a second later.
 * - `stdout`, `stderr`: write output while the task runs, and wait while the caller does not read. Output that an execution writes
 *   after its end appears in `session.output`.
 * - `background`: runs an effect that outlives the task, until its VM or its interpreter ends. It ends with the task when a signal, a
 *   limit or the caller ended the task.
 * - `files`: the VM's files. `state`: values that last from task to task, as long as the interpreter lives.
 * - `packages`: the packages of the session in addition to the image, such as `python:pandas==2.2.3`.
 * - `connect`: asks for a connection out of the VM, as a program in a guest does; the session's network policy decides. The result is
 *   the name of the errno that it fails with, or `null` when it was made, after which it is closed. Raise an exception with that
 *   errno, and the outcome says what was refused.
 * - `ports`: servers on the guest's loopback. A server runs until it is closed, or until the interpreter or process that started it
 *   ends. `listen` returns false when the port is in use; a function answers HTTP.
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
 * How a task ends, as evidence. Defaults: exit code 0, no output, no exception, no limit reached, nothing measured.
 *
 * `stdout` and `stderr` are written at the end, after the output of the task itself. `state: "reset"`: the interpreter died with
 * the task. `cpuMs` is in ms, `peakMemoryBytes` in bytes. `serves`: a server that goes on after the task; when its port is in use
 * the task fails with EADDRINUSE.
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
 * How the guest answers a task: an ending, or a fault of the sandbox. `ends`, `dies`, `stalls` and the others make one.
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
 * Decides what every task does. An effect may write output, wait (on the test's clock or a latch of the test) and end at any
 * time; it is interrupted with the caller, and by a signal that it does not handle (see `Task.trap`).
 *
 * @since 0.1.0
 * @category models
 */
export type Script = (task: Task) => Reply | Effect.Effect<Reply>

/**
 * How a VM starts.
 *
 * - `delayMs`: how long it takes to start, to park and to wake, in ms. Default: 0.
 * - `fails`: it does not start, for this problem (`BootFailed`).
 * - `answers`: with `false` it never acknowledges its handover.
 * - `refuses`: the part of the handover that it does not acknowledge.
 * - `parkFails`, `wakeFails`: it cannot be parked or woken, for this problem.
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
 * The network outside the host: how a connection that the policy granted fails, as the name of an errno such as `ECONNREFUSED`, or
 * `null` when it succeeds. `port` is a TCP port.
 *
 * @since 0.1.0
 * @category models
 */
export type World = (host: string, port: number) => string | null

/**
 * Options of a kit.
 *
 * - `script`: see `Script`. Default: every task ends with exit code 0 and prints nothing.
 * - `start`: how the nth VM starts, counted from 1. Default: at once.
 * - `capacity`: `vms` is how many VMs the host has room for (default 1,000), `maxWaitMs` how long a caller waits for room, in ms
 *   (default 60,000).
 * - `pool`: see `PoolOptions`. Default: no pool.
 * - `world`: see `World`. Default: every granted connection succeeds. The kit never dials or resolves anything, and
 *   `NetworkPolicy.packages` grants no registry in addition to its rules.
 * - `packages`: why a package is not available, or `undefined` when it is. Default: every package that `Packages.Policy` allows is
 *   available. Nothing is installed.
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
