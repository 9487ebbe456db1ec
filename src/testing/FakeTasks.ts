/** Runs the tasks of a fake guest: it runs the test's script as the agent would run programs. */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import { constants } from "node:os"
import * as path from "node:path/posix"
import { Kind, Sub } from "../guest/Frame.ts"
import type { Evidence } from "../guest/Evidence.ts"
import { agentsDirectory } from "./FakeDisk.ts"
import type { FakeNetwork } from "./FakeNetwork.ts"
import type { Memory } from "./FakeMemory.ts"
import * as FakePorts from "./FakePorts.ts"
import { type FakeStreams, type Serving, takeInput } from "./FakeStreams.ts"
import type { Ending, Reply, Task } from "./Script.ts"

/** JavaScript and TypeScript share one interpreter. */
const laneOf = (language: string): string => (language === "typescript" ? "javascript" : language)

const signalNumber = (name: string): number => (constants.signals as { readonly [name: string]: number })[name] ?? 9

/** The defaults of an ending. */
const plain: Required<Omit<Ending, "serves">> = {
  stdout: "",
  stderr: "",
  exitCode: 0,
  signal: null,
  exception: null,
  commands: [],
  limits: [],
  result: null,
  state: "kept",
  cpuMs: null,
  peakMemoryBytes: null
}

const evidenceOf = (ending: typeof plain, wallMs: number): Evidence => ({
  exitCode: ending.signal === null ? ending.exitCode : 128 + signalNumber(ending.signal),
  signal: ending.signal,
  exception: ending.exception,
  commands: ending.commands,
  limits: ending.limits,
  state: ending.state,
  result: ending.result,
  usage: { cpuMs: ending.cpuMs, peakMemoryBytes: ending.peakMemoryBytes, wallMs }
})

/** The ending of a task whose port is in use. */
const taken: Ending = {
  exitCode: 1,
  exception: {
    type: "OSError",
    message: "[Errno 98] Address already in use",
    traceback: "",
    errno: "EADDRINUSE",
    path: null,
    module: null,
    code: null
  }
}

/** The machine around the tasks, and how a task affects it. */
export interface Around {
  readonly number: number
  readonly run: (task: Task) => Effect.Effect<Reply>
  readonly memory: Memory
  readonly streams: FakeStreams
  readonly network: FakeNetwork
  /** Runs effects as long as the machine lives. */
  readonly fork: FakePorts.Run
  readonly die: (by: "killed" | "exited", problem: string) => void
  readonly stall: () => void
  readonly violate: (it: Serving) => void
}

export interface FakeTasks {
  /** Runs a task to its end, in its turn. */
  readonly execute: (it: Serving) => Effect.Effect<void>
}

export const make = (around: Around): FakeTasks => {
  const { memory, number, streams } = around
  const { changes, disk, lanes, ports, states } = memory
  /** What goes on in the background, by interpreter or process. */
  const behind = new Map<string, Set<{ readonly by: number; readonly fiber: Fiber.Fiber<unknown, unknown> }>>()

  const background = (it: Serving, lane: string, effect: Effect.Effect<unknown, unknown>): void => {
    const running = { by: it.id, fiber: around.fork(effect) }
    const all = behind.get(lane) ?? new Set()
    behind.set(lane, all.add(running))
    running.fiber.addObserver(() => void all.delete(running))
  }

  /** Ends what goes on in the background: of all tasks, or of one. */
  const end = (lane: string, task?: Serving): void => {
    for (const { by, fiber } of behind.get(lane) ?? [])
      if (task === undefined || by === task.id) fiber.interruptUnsafe()
  }

  /** Ends an interpreter with everything that it started. */
  const reset = (lane: string): void => {
    states.delete(lane)
    ports.leave(lane)
    end(lane)
  }

  const taskOf = (it: Serving, lane: string, state: Map<string, unknown>, stdin: Stream.Stream<Uint8Array>): Task => ({
    vm: number,
    language: it.open.language ?? null,
    argv: it.open.argv ?? (typeof it.open.shell === "string" ? ["bash", "-c", it.open.shell] : null),
    code: it.open.language === undefined ? (it.open.shell ?? "") : Buffer.concat(it.code).toString("utf8"),
    env: { ...memory.env, ...it.open.env },
    cwd: path.resolve(it.open.user === "root" ? "/root" : "/home/user", it.open.cwd ?? ""),
    user: it.open.user === "root" ? "root" : "user",
    terminal: () => it.terminal,
    trap: (handler) => {
      const { handles } = it
      it.handles = (signal) => (signal !== "SIGKILL" && handler(signal)) || handles(signal)
    },
    stdin,
    stdinText: Stream.mkString(Stream.decodeText(stdin)),
    stdout: (text) => streams.output(it, Sub.stdout, text),
    // A terminal has one output.
    stderr: (text) => streams.output(it, it.terminal === null ? Sub.stderr : Sub.stdout, text),
    background: (effect) => Effect.sync(() => background(it, lane, effect)),
    packages: memory.packages,
    // Without a network policy the guest does not ask the host.
    connect: (host, port) =>
      Effect.suspend(() => (memory.network ? around.network.connect(host, port) : Effect.succeed("ENETUNREACH"))),
    files: disk,
    ports: {
      listen: (port, server) => ports.listen(port, FakePorts.serverOf(server), lane),
      close: ports.close
    },
    state
  })

  /** Writes the part of a long output that the caller does not keep into a file. */
  const restOf = (it: Serving, sub: number, name: string): string | null => {
    const bytes = Buffer.concat(it.kept.get(sub) ?? [])
    const allowed = it.open.outputBytes ?? 0
    if (bytes.length <= allowed) return null
    const file = `${agentsDirectory}/output/${it.id}.${name}`
    disk.write(file, bytes.subarray(Math.ceil(allowed / 2)))
    return file
  }

  /** Writes the output of a reply and starts its server. */
  const last = Effect.fnUntraced(function* (it: Serving, lane: string, reply: Reply) {
    if (reply._tag !== "Ends") return reply
    const { serves, stderr = "", stdout = "" } = reply
    // A server that a process leaves behind belongs to the machine.
    const owner = it.open.language === undefined ? "the machine" : lane
    const listens = serves === undefined || ports.listen(serves.port, FakePorts.serverOf(serves.server), owner)
    yield* streams.output(it, Sub.stdout, stdout)
    yield* streams.output(it, it.terminal === null ? Sub.stderr : Sub.stdout, stderr)
    return listens ? reply : { ...reply, ...taken }
  })

  const conclude = Effect.fnUntraced(function* (
    it: Serving,
    lane: string,
    wallMs: number,
    before: ReturnType<typeof disk.all>,
    ending: Ending
  ) {
    const state = it.open.language === undefined ? "kept" : (ending.state ?? "kept")
    if (state === "reset") reset(lane)
    const evidence = {
      ...evidenceOf({ ...plain, ...ending, state }, wallMs),
      rest: { stdout: restOf(it, Sub.stdout, "stdout"), stderr: restOf(it, Sub.stderr, "stderr") }
    }
    if (it.open.changes === undefined) return streams.finish(it, Kind.End, evidence)
    const report = changes.since(before, it.open.changes)
    yield* streams.output(it, Sub.file, report.data)
    streams.finish(it, Kind.End, { ...evidence, changes: report.end })
  })

  /** Runs one task and reports its end. */
  const runOne = Effect.fnUntraced(function* (it: Serving, lane: string) {
    const isProcess = it.open.language === undefined
    const state = states.get(lane) ?? new Map<string, unknown>()
    if (!isProcess) states.set(lane, state)
    streams.note(it, { event: "started", pid: isProcess ? ++memory.pid : undefined })
    const stdin = yield* Queue.unbounded<Uint8Array, Cause.Done>()
    takeInput(it, (bytes) => void (bytes === null ? Queue.endUnsafe(stdin) : Queue.offerUnsafe(stdin, bytes)))
    const began = yield* Clock.currentTimeMillis
    const before = disk.all()
    const timeoutMs = it.open.timeMs ?? null
    let limited = false
    let itself = false
    const script = Effect.suspend(() =>
      // The library's own rehearsals are not for the script.
      it.open.rehearsal === true
        ? Effect.succeed<Reply>({ _tag: "Ends" })
        : around.run(taskOf(it, lane, state, Stream.fromQueue(stdin)))
    )
    const late = Effect.suspend(() => {
      limited = !it.asked
      streams.ask(it, "SIGINT")
      return Effect.never
    })
    /** An interpreter survives SIGINT. */
    const killed = Effect.map(Deferred.await(it.killed), (signal): Reply =>
      isProcess || signal === "SIGKILL" ? { _tag: "Ends", signal, state: "reset" } : { _tag: "Ends", exitCode: 130 }
    )
    const running = Effect.gen(function* () {
      const reply = yield* Effect.raceAllFirst(timeoutMs === null ? [script] : [script, Effect.delay(late, timeoutMs)])
      const told = yield* last(it, lane, reply)
      itself = true
      return told
    }).pipe(Effect.raceFirst(killed))
    const exit = yield* Effect.onExit(Effect.exit(running), () =>
      Effect.sync(() => {
        if (!itself || it.asked) end(lane, it)
      })
    )
    if (Exit.isFailure(exit)) {
      // A script that fails is the test's mistake, and must not look like an outcome.
      if (Cause.hasInterruptsOnly(exit.cause)) return yield* Effect.interrupt
      const message = `the script died: ${Cause.pretty(exit.cause)}`
      return streams.finish(it, Kind.Reset, { code: "failed", message })
    }
    const reply = exit.value
    switch (reply._tag) {
      case "Dies":
        return around.die(reply.by, reply.problem)
      case "Stalls":
        around.stall()
        return yield* Effect.never
      case "Violates":
        return around.violate(it)
      case "Refuses":
        return streams.finish(it, Kind.Reset, { code: reply.code, message: reply.problem })
      case "Ends": {
        const wallMs = (yield* Clock.currentTimeMillis) - began
        const limit = { limit: "time", allowed: timeoutMs, observed: wallMs } as const
        const ending = limited ? { ...reply, limits: [limit, ...(reply.limits ?? [])] } : reply
        return yield* conclude(it, lane, wallMs, before, ending)
      }
    }
  })

  return {
    execute: (it) => {
      if (it.open.language === undefined) {
        const lane = `process ${it.id}`
        // Its own servers end with it; those that it left behind stay.
        return Effect.ensuring(
          runOne(it, lane),
          Effect.sync(() => ports.leave(lane))
        )
      }
      const lane = laneOf(it.open.language)
      const turn = lanes.get(lane) ?? Semaphore.makeUnsafe(1)
      lanes.set(lane, turn)
      return turn.withPermit(runOne(it, lane))
    }
  }
}
