/**
 * One QEMU process as a scoped resource: started with inherited descriptors, controlled by QMP over its standard input and
 * output, and confirmed dead before the scope has closed.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import type { AnySpan } from "effect/Tracer"
import { type ChildProcess, spawn } from "node:child_process"
import type { Duplex } from "node:stream"
import { currentSpan, lateSpan } from "../internal/Observe.ts"

/** QEMU could not be started, refused a command, or ended. */
export class MachineFailure extends Schema.TaggedError<MachineFailure>()("MachineFailure", {
  problem: Schema.String,
  /** Another process killed QEMU, so its input is not the cause. */
  killed: Schema.Boolean.pipe(Schema.withConstructorDefault(Effect.succeed(false)))
}) {
  override get message(): string {
    return this.problem
  }
}

/** An event of QEMU; `atMs` is the time by QEMU's clock. */
export interface MachineEvent {
  readonly name: string
  /** Set only for a `MIGRATION` event. */
  readonly status: string | undefined
  readonly atMs: number
}

export interface Machine {
  readonly pid: number
  /** The host's end of the channel's virtio-serial port. */
  readonly channel: Duplex
  /** Sends QMP commands together and returns their answers, in order. Fails at the first one that is refused. */
  readonly commands: (
    ...commands: ReadonlyArray<{ readonly execute: string; readonly arguments?: unknown }>
  ) => Effect.Effect<ReadonlyArray<unknown>, MachineFailure>
  /** Waits for the end of a migration, in either direction, that `commands` has started. */
  readonly migrated: Effect.Effect<void, MachineFailure>
  /** Calls `listener` synchronously with each event, until the scope closes. */
  readonly onEvent: (listener: (event: MachineEvent) => void) => Effect.Effect<void, never, Scope.Scope>
  /** Fails when the process has ended; never succeeds. */
  readonly failure: Effect.Effect<never, MachineFailure>
  /** Kills the process at once; completes when its death is confirmed. */
  readonly kill: Effect.Effect<void>
  /** The end of the output of QEMU and of the guest's console, at most 8 KiB. */
  readonly console: () => string
}

const consoleTail = 8 * 1024
/** QMP's answers are small; a longer line means that this is not QEMU. */
const maxLine = 4 * 1024 * 1024

const Message = Schema.Struct({
  id: Schema.optionalKey(Schema.Int),
  return: Schema.optionalKey(Schema.Unknown),
  error: Schema.optionalKey(Schema.Struct({ class: Schema.String, desc: Schema.String })),
  event: Schema.optionalKey(Schema.String),
  timestamp: Schema.optionalKey(Schema.Struct({ seconds: Schema.Finite, microseconds: Schema.Finite })),
  data: Schema.optionalKey(Schema.Unknown)
})
const decodeMessage = Schema.decodeUnknownOption(Schema.fromJsonString(Message))
const decodeMigration = Schema.decodeUnknownOption(Schema.Struct({ status: Schema.String }))

/** How `launch` starts the process. `files` are the descriptors (or sockets) inherited from number 5 on. */
export interface Launch {
  readonly argv: readonly [string, ...ReadonlyArray<string>]
  readonly files: ReadonlyArray<number>
  /** Called once when the process has ended. */
  readonly ended?: (end: End) => void
}

/** How a process ended: killed by us, killed by another process, or by itself. */
export type End = "ours" | "killed" | "exited"

type OnExit = (code: number | null, signal: NodeJS.Signals | null) => void

const started = (launch: Launch, onExit: OnExit): Effect.Effect<ChildProcess, MachineFailure> =>
  Effect.callback((resume) => {
    const [command, ...args] = launch.argv
    const child = spawn(command, args, {
      stdio: ["pipe", "pipe", "pipe", "pipe", "pipe", ...launch.files],
      detached: true,
      // Only what the dynamic linker and tools need, so that QEMU gets none of the caller's secrets.
      env: { PATH: process.env["PATH"] ?? "/usr/bin:/bin", LANG: "C" },
      cwd: "/"
    })
    child.once("exit", onExit)
    child.once("spawn", () => resume(Effect.succeed(child)))
    child.once("error", (error) =>
      resume(Effect.fail(new MachineFailure({ problem: `${command} did not start: ${error.message}` })))
    )
  })

/** Starts QEMU. Closing the scope kills it and waits until it is dead. */
export const launch = Effect.fnUntraced(function* (
  options: Launch
): Effect.fn.Return<Machine, MachineFailure, Scope.Scope> {
  const dead = yield* Deferred.make<void>()
  const failed = yield* Deferred.make<never, MachineFailure>()
  const begun = yield* currentSpan
  // Until the start has succeeded. If it is interrupted, the finalizer still waits for the process's death.
  let onExit: OnExit = () => void Deferred.doneUnsafe(dead, Effect.void)
  let ours = false
  const ending = (process: ChildProcess): Effect.Effect<void> =>
    Effect.suspend(() => {
      ours = true
      return end(process, dead, begun)
    })
  // The finalizer runs in the spans of the fiber that closes the scope, not in those of the start.
  const child = yield* Effect.uninterruptible(
    Effect.flatMap(Effect.scope, (scope) =>
      Effect.tap(
        started(options, (...how) => onExit(...how)),
        (process) => Scope.addFinalizer(scope, ending(process))
      )
    )
  )
  const pid = child.pid ?? 0

  let tail = ""
  const log = (chunk: Buffer): void => {
    tail = (tail + chunk.toString("utf8")).slice(-consoleTail)
  }

  const waiting = new Map<number, (message: typeof Message.Type) => void>()
  let migration = yield* Deferred.make<void, MachineFailure>()
  let nextId = 1
  let failure: MachineFailure | undefined
  const fail = (problem: string, killed = false): void => {
    if (failure !== undefined) return
    failure = new MachineFailure({ problem, killed })
    Deferred.doneUnsafe(failed, Effect.fail(failure))
    Deferred.doneUnsafe(migration, Effect.fail(failure))
    for (const answer of waiting.values()) answer({ error: { class: "Gone", desc: problem } })
    waiting.clear()
  }

  const listeners = new Set<(event: MachineEvent) => void>()
  const onMessage = (line: string): void => {
    const message = decodeMessage(line)
    if (message._tag === "None") return
    const { data, event, id, timestamp } = message.value
    if (id !== undefined) {
      const answer = waiting.get(id)
      waiting.delete(id)
      answer?.(message.value)
      return
    }
    if (event === undefined) return
    const status = decodeMigration(data)
    if (listeners.size > 0) {
      const atMs = (timestamp?.seconds ?? 0) * 1000 + (timestamp?.microseconds ?? 0) / 1000
      const seen = { name: event, status: status._tag === "None" ? undefined : status.value.status, atMs }
      for (const listener of listeners) listener(seen)
    }
    if (event === "MIGRATION" && status._tag === "Some") {
      if (status.value.status === "completed") Deferred.doneUnsafe(migration, Effect.void)
      else if (status.value.status === "failed") {
        Deferred.doneUnsafe(migration, Effect.fail(new MachineFailure({ problem: "the state did not load" })))
      }
    }
  }
  let line = ""
  child.stdout?.setEncoding("utf8")
  child.stdout?.on("data", (text: string) => {
    line += text
    if (line.length > maxLine) return fail("QEMU's monitor sent a line that is too long")
    for (let at = line.indexOf("\n"); at !== -1; at = line.indexOf("\n")) {
      onMessage(line.slice(0, at))
      line = line.slice(at + 1)
    }
  })
  const [, , , channel, console] = child.stdio as ReadonlyArray<Duplex | null>
  if (!channel || !console || !child.stdin) return yield* new MachineFailure({ problem: "QEMU's pipes are missing" })
  // When QEMU dies, writes to its pipes fail; its exit is the error that is reported.
  for (const pipe of [child.stdin, child.stdout, child.stderr, console]) pipe?.on("error", () => {})
  child.stderr?.on("data", log)
  console.on("data", log)
  onExit = (code, signal) => {
    const killed = !ours && (signal === "SIGKILL" || signal === "SIGTERM")
    options.ended?.(ours ? "ours" : killed ? "killed" : "exited")
    // Waiting fibers may run before this returns.
    Deferred.doneUnsafe(dead, Effect.void)
    const said = tail.trimEnd().split("\n")
    // The line with the cause of a crash comes before the stack trace.
    const last = (said.find((line) => /panic|fatal/.test(line)) ?? said.at(-1) ?? "").trim()
    fail(`QEMU ended (${signal ?? `exit code ${code}`})${last === "" ? "" : `: ${last}`}`, killed)
    channel.destroy()
    console.destroy()
  }

  const { stdin } = child
  const commands: Machine["commands"] = (...list) =>
    Effect.callback((resume) => {
      if (failure !== undefined) return resume(Effect.fail(failure))
      const answers: Array<unknown> = []
      let left = list.length
      const ids: Array<number> = []
      let text = ""
      list.forEach((command, index) => {
        const id = nextId++
        ids.push(id)
        text += `${JSON.stringify({ ...command, id })}\n`
        waiting.set(id, (message) => {
          if (message.error !== undefined) {
            const refused = new MachineFailure({ problem: `${command.execute}: ${message.error.desc}` })
            return resume(Effect.fail(failure ?? refused))
          }
          answers[index] = message.return
          if (--left === 0) resume(Effect.succeed(answers))
        })
      })
      stdin.write(text)
      return Effect.sync(() => {
        for (const id of ids) waiting.delete(id)
      })
    })

  return {
    pid,
    channel,
    commands,
    migrated: Effect.suspend(() => Deferred.await(migration)).pipe(
      Effect.andThen(
        Effect.sync(() => {
          migration = Deferred.makeUnsafe()
          if (failure !== undefined) Deferred.doneUnsafe(migration, Effect.fail(failure))
        })
      )
    ),
    onEvent: (listener) =>
      Effect.acquireRelease(
        Effect.sync(() => void listeners.add(listener)),
        () => Effect.sync(() => void listeners.delete(listener))
      ),
    failure: Deferred.await(failed),
    kill: ending(child),
    console: () => tail
  }
})

/** Kills the process group and waits for the death of its leader. */
const end = (child: ChildProcess, dead: Deferred.Deferred<void>, begun: Option.Option<AnySpan>): Effect.Effect<void> =>
  Effect.suspend(() => {
    if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return Effect.void
    try {
      process.kill(-child.pid, "SIGKILL")
    } catch {
      child.kill("SIGKILL")
    }
    return Deferred.await(dead).pipe(lateSpan("Vm.destroy", begun, { pid: child.pid }))
  })
