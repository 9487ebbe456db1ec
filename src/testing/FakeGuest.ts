/** A guest that speaks the channel's protocol as the agent does, and whose programs are the test's script. */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberMap from "effect/FiberMap"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import { constants } from "node:os"
import {
  encode,
  encodeJson,
  endFlag,
  type Frame,
  initialCredit,
  Kind,
  magic,
  makeDecoder,
  Sub
} from "../guest/Frame.ts"
import { type Evidence, protocol } from "../guest/Protocol.ts"
import type { Ending, Reply, Start, Task } from "../Testing.ts"
import type { FakeMachine } from "./FakeMachine.ts"
import type { Memory } from "./FakeMemory.ts"

const languages = ["python", "javascript", "typescript", "bash"] as const

/** JavaScript and TypeScript share one interpreter. */
const laneOf = (language: string): string => (language === "typescript" ? "javascript" : language)

const Environment = Schema.Record(Schema.String, Schema.String)
const decodeHello = Schema.decodeUnknownOption(Schema.Struct({ purpose: Schema.String, env: Environment }))
const decodeOpen = Schema.decodeUnknownOption(
  Schema.Struct({
    method: Schema.String,
    language: Schema.optionalKey(Schema.Literals(languages)),
    argv: Schema.optionalKey(Schema.NullOr(Schema.Array(Schema.String))),
    shell: Schema.optionalKey(Schema.NullOr(Schema.String)),
    env: Schema.optionalKey(Environment),
    cwd: Schema.optionalKey(Schema.NullOr(Schema.String)),
    user: Schema.optionalKey(Schema.String),
    timeoutMs: Schema.optionalKey(Schema.NullOr(Schema.Finite)),
    outputBytes: Schema.optionalKey(Schema.Finite),
    outputFail: Schema.optionalKey(Schema.Boolean),
    changes: Schema.optionalKey(Schema.NullOr(Schema.Struct({ patches: Schema.Boolean, maxFiles: Schema.Int }))),
    rehearsal: Schema.optionalKey(Schema.Boolean)
  })
)
const decodeNote = Schema.decodeUnknownOption(
  Schema.Struct({ event: Schema.String, signal: Schema.optionalKey(Schema.String) })
)

const parse = (payload: Buffer): unknown => {
  try {
    return JSON.parse(payload.toString("utf8")) as unknown
  } catch {
    return undefined
  }
}

/** A stream that the host has opened. */
interface Serving {
  readonly id: number
  readonly open: typeof decodeOpen extends (input: unknown) => Option.Option<infer A> ? A : never
  readonly request: unknown
  readonly code: Array<Buffer>
  readonly content: Array<Buffer>
  /** What came for its stdin before it ran; the last is `null` when no more comes. */
  readonly early: Array<Uint8Array | null>
  /** Takes what comes for its stdin from then on. */
  feed: (bytes: Uint8Array | null) => void
  /** Ends it with this signal. */
  readonly killed: Deferred.Deferred<string>
  credit: number
  written: number
  wake: (() => void) | undefined
}

const signalNumber = (name: string): number => (constants.signals as { readonly [name: string]: number })[name] ?? 9

/** What every ending has that says nothing else. */
const plain: Required<Ending> = {
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

const evidenceOf = (ending: Required<Ending>, wallMs: number): Evidence => ({
  exitCode: ending.signal === null ? ending.exitCode : 128 + signalNumber(ending.signal),
  signal: ending.signal,
  exception: ending.exception,
  commands: ending.commands,
  limits: ending.limits,
  state: ending.state,
  result: ending.result,
  usage: { cpuMs: ending.cpuMs, peakMemoryBytes: ending.peakMemoryBytes, wallMs }
})

/** Serves one machine until its scope ends. `run` is the script; `number` is which VM it is; `memory` is what it has. */
export const serve = Effect.fnUntraced(function* (
  fake: FakeMachine,
  number: number,
  start: Start,
  run: (task: Task) => Effect.Effect<Reply>,
  memory: Memory
): Effect.fn.Return<void, never, Scope.Scope> {
  const socket = fake.guest
  const fork = yield* FiberMap.runtime(yield* FiberMap.make<number>())()
  const streams = new Map<number, Serving>()
  const { changes, files, lanes, states } = memory
  let epoch: Buffer = Buffer.alloc(8)
  let deaf = start.answers === false

  const send = (bytes: Uint8Array): void => {
    if (!socket.destroyed) socket.write(bytes)
  }

  /** Sends output as the host grants credit for it. */
  const output = (it: Serving, sub: number, text: string | Uint8Array): Effect.Effect<void> =>
    Effect.gen(function* () {
      let bytes = Buffer.from(text as string)
      while (bytes.length > 0 && streams.has(it.id)) {
        if (it.credit === 0) {
          yield* Effect.callback<void>((resume) => {
            it.wake = () => resume(Effect.void)
          })
          continue
        }
        const size = Math.min(it.credit, bytes.length, 64 * 1024)
        it.credit -= size
        it.written += size
        send(encode(Kind.Data, it.id, sub, bytes.subarray(0, size)))
        bytes = bytes.subarray(size)
        if (it.open.outputFail === true && it.written > (it.open.outputBytes ?? Number.POSITIVE_INFINITY)) {
          Deferred.doneUnsafe(it.killed, Effect.succeed("SIGKILL"))
          return yield* Effect.never
        }
      }
    })

  const finish = (it: Serving, kind: number, value: object): void => {
    if (!streams.delete(it.id)) return
    send(encodeJson(kind, it.id, value))
  }

  const taskOf = (it: Serving, state: Map<string, unknown>, stdin: Stream.Stream<Uint8Array>): Task => ({
    vm: number,
    language: it.open.language ?? null,
    argv: it.open.argv ?? (typeof it.open.shell === "string" ? ["bash", "-c", it.open.shell] : null),
    code: it.open.language === undefined ? (it.open.shell ?? "") : Buffer.concat(it.code).toString("utf8"),
    env: { ...memory.env, ...it.open.env },
    cwd: it.open.cwd ?? "/home/user",
    user: it.open.user === "root" ? "root" : "user",
    stdin,
    stdinText: Stream.mkString(Stream.decodeText(stdin)),
    stdout: (text) => output(it, Sub.stdout, text),
    stderr: (text) => output(it, Sub.stderr, text),
    files,
    state
  })

  /** Runs one task and says how it ended. */
  const execute = (it: Serving, lane: string) =>
    Effect.gen(function* () {
      const state = states.get(lane) ?? new Map<string, unknown>()
      if (it.open.language !== undefined) states.set(lane, state)
      send(
        encodeJson(Kind.Note, it.id, {
          event: "started",
          pid: it.open.language === undefined ? ++memory.pid : undefined
        })
      )
      const stdin = yield* Queue.unbounded<Uint8Array, Cause.Done>()
      it.feed = (bytes) => void (bytes === null ? Queue.endUnsafe(stdin) : Queue.offerUnsafe(stdin, bytes))
      it.early.splice(0).forEach(it.feed)
      const began = yield* Clock.currentTimeMillis
      const before = files.all()
      const timeoutMs = it.open.timeoutMs ?? null
      const killed = Effect.map(Deferred.await(it.killed), (signal): Reply => ({
        _tag: "Ends",
        signal,
        state: it.open.language === undefined ? "kept" : "reset"
      }))
      const running = Effect.raceFirst(
        // What the library runs for itself is none of the script's business.
        Effect.suspend(() =>
          it.open.rehearsal === true
            ? Effect.succeed<Reply>({ _tag: "Ends" })
            : run(taskOf(it, state, Stream.fromQueue(stdin)))
        ),
        killed
      )
      const bounded =
        timeoutMs === null
          ? running
          : Effect.timeoutOrElse(running, {
              duration: timeoutMs,
              orElse: () =>
                Effect.map(Clock.currentTimeMillis, (now): Reply => ({
                  _tag: "Ends",
                  exitCode: 130,
                  limits: [{ limit: "time", allowed: timeoutMs, observed: now - began }]
                }))
            })
      const exit = yield* Effect.exit(bounded)
      if (Exit.isFailure(exit)) {
        // A script that fails is the test's mistake, and must not look like an outcome.
        if (Cause.hasInterruptsOnly(exit.cause)) return yield* Effect.interrupt
        return finish(it, Kind.Reset, { code: "failed", message: `the script died: ${Cause.pretty(exit.cause)}` })
      }
      const reply = exit.value
      switch (reply._tag) {
        case "Dies":
          return fake.die(reply.by, reply.problem)
        case "Stalls":
          deaf = true
          return yield* Effect.never
        case "Violates":
          return send(encode(15, it.id, 0, new Uint8Array()))
        case "Refuses":
          return finish(it, Kind.Reset, { code: reply.code, message: reply.problem })
        case "Ends": {
          const ending = { ...plain, ...reply }
          yield* output(it, Sub.stdout, ending.stdout)
          yield* output(it, Sub.stderr, ending.stderr)
          if (ending.state === "reset") states.delete(lane)
          const evidence = evidenceOf(ending, (yield* Clock.currentTimeMillis) - began)
          if (it.open.changes === undefined || it.open.changes === null) return finish(it, Kind.End, evidence)
          const { data, end } = changes.since(before, it.open.changes)
          yield* output(it, Sub.file, data)
          return finish(it, Kind.End, { ...evidence, changes: end })
        }
      }
    })

  const begin = (it: Serving): void => {
    if (it.open.language === undefined) {
      fork(it.id, execute(it, `process ${it.id}`))
      return
    }
    const lane = laneOf(it.open.language)
    const turn = lanes.get(lane) ?? Semaphore.makeUnsafe(1)
    lanes.set(lane, turn)
    fork(it.id, turn.withPermit(execute(it, lane)))
  }

  const answerFile = (it: Serving): void => {
    fork(
      it.id,
      Effect.gen(function* () {
        const now = yield* Clock.currentTimeMillis
        const ofChanges = it.open.method.startsWith("changes.")
        const answer = ofChanges ? changes.answer(it.request) : files.answer(it.request, Buffer.concat(it.content), now)
        if (answer === undefined && ofChanges) {
          return finish(it, Kind.Reset, { code: "invalid", message: "there is no such mark" })
        }
        if (answer === undefined) {
          return finish(it, Kind.Reset, { code: "unsupported", message: `the test kit has no ${it.open.method}` })
        }
        if (answer.data !== undefined) yield* output(it, Sub.file, answer.data)
        finish(it, Kind.End, answer.end)
      })
    )
  }

  const onOpen = (frame: Frame): void => {
    const request = parse(frame.payload)
    const open = decodeOpen(request)
    if (Option.isNone(open)) {
      return send(encodeJson(Kind.Reset, frame.stream, { code: "invalid", message: "a request not understood" }))
    }
    const early: Array<Uint8Array | null> = []
    const it: Serving = {
      id: frame.stream,
      open: open.value,
      request,
      code: [],
      content: [],
      early,
      feed: (bytes) => void early.push(bytes),
      killed: Deferred.makeUnsafe(),
      credit: initialCredit,
      written: 0,
      wake: undefined
    }
    streams.set(it.id, it)
    const { method } = open.value
    if (method === "spawn") begin(it)
    else if (method === "network") finish(it, Kind.End, {})
    else if (/^(file|changes)\./.test(method) && method !== "file.write") answerFile(it)
    else if (method !== "exec" && method !== "file.write") {
      finish(it, Kind.Reset, { code: "unsupported", message: `the test kit has no ${method}` })
    }
  }

  const onData = (it: Serving, frame: Frame): void => {
    const sub = frame.flags & 0x0f
    const last = (frame.flags & endFlag) !== 0
    const bytes = Buffer.from(frame.payload)
    if (bytes.length > 0) {
      const grant = Buffer.alloc(4)
      grant.writeUInt32LE(bytes.length, 0)
      send(encode(Kind.Credit, it.id, 0, grant))
    }
    if (sub === Sub.stdin) {
      if (bytes.length > 0) it.feed(bytes)
      if (last) it.feed(null)
    } else {
      ;(sub === Sub.code ? it.code : it.content).push(bytes)
    }
    if (!last) return
    if (sub === Sub.code) begin(it)
    else if (sub === Sub.file) answerFile(it)
  }

  const onFrame = (frame: Frame): void => {
    if (frame.kind === Kind.Ping) return send(encode(Kind.Pong, 0, 0, frame.payload))
    if (frame.kind === Kind.Hello) {
      const hello = decodeHello(parse(frame.payload))
      if (Option.isSome(hello) && hello.value.purpose !== "wake") {
        memory.env = hello.value.env
        changes.begin()
      }
      const acknowledged = {
        clock: true,
        entropy: true,
        hostname: true,
        machineId: true,
        env: true,
        limits: true,
        network: true
      }
      if (start.refuses !== undefined) acknowledged[start.refuses] = false
      const reply = { protocol, ready: true, acknowledged, languages, kernel: "testing", agent: "testing" }
      return send(Buffer.concat([magic, epoch, encodeJson(Kind.Hello, 0, reply)]))
    }
    if (frame.kind === Kind.Open) return onOpen(frame)
    const it = streams.get(frame.stream)
    if (it === undefined) return
    switch (frame.kind) {
      case Kind.Data:
        return onData(it, frame)
      case Kind.Credit: {
        it.credit += frame.payload.readUInt32LE(0)
        const { wake } = it
        it.wake = undefined
        return wake?.()
      }
      case Kind.Note: {
        const note = decodeNote(parse(frame.payload))
        if (Option.isNone(note)) return
        if (note.value.event === "close") Deferred.doneUnsafe(it.killed, Effect.succeed("SIGKILL"))
        if (note.value.event === "signal") {
          Deferred.doneUnsafe(it.killed, Effect.succeed(note.value.signal ?? "SIGKILL"))
        }
        return
      }
      case Kind.Reset: {
        streams.delete(it.id)
        fork(it.id, Effect.void)
      }
    }
  }

  const decode = makeDecoder({
    onEpoch: (bytes) => {
      epoch = bytes
      for (const id of streams.keys()) fork(id, Effect.void)
      streams.clear()
    },
    onFrame,
    onViolation: (problem) => fake.die("exited", `the host broke the protocol: ${problem}`)
  })
  let held: Array<Buffer> = []
  socket.on("data", (bytes: Buffer) => {
    if (deaf) return
    if (fake.paused()) held.push(bytes)
    else decode(bytes)
  })
  fake.onResume(() => {
    const waited = held
    held = []
    for (const bytes of waited) decode(bytes)
  })
})
