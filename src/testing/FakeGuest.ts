/** A fake guest: it speaks the protocol as the agent does, and runs the test's script instead of programs. */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as FiberMap from "effect/FiberMap"
import * as FiberSet from "effect/FiberSet"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { encode, encodeJson, endFlag, epochSize, type Frame, Kind, magic, makeDecoder, Sub } from "../guest/Frame.ts"
import { Language } from "../Execution.ts"
import { Hello, protocol } from "../guest/Hello.ts"
import * as Methods from "../guest/Methods.ts"
import * as FakeFiles from "./FakeFiles.ts"
import type { FakeMachine } from "./FakeMachine.ts"
import type { Memory } from "./FakeMemory.ts"
import * as FakeNetwork from "./FakeNetwork.ts"
import * as FakePorts from "./FakePorts.ts"
import * as FakeStreams from "./FakeStreams.ts"
import * as FakeTasks from "./FakeTasks.ts"
import * as FakeTrees from "./FakeTrees.ts"
import * as FakeWatch from "./FakeWatch.ts"
import { type Answer, decode, type RequestOf } from "./Requests.ts"
import type { Reply, Start, Task } from "./Script.ts"

const decodeHello = Schema.decodeUnknownOption(Hello)
const decodeOrder = Schema.decodeUnknownOption(Methods.spawn.orders)

const parse = (payload: Buffer): unknown => {
  try {
    return JSON.parse(payload.toString("utf8")) as unknown
  } catch {
    return undefined
  }
}

/** Handles a note for a running process: a signal, a close or a resize. */
const onNote = (streams: FakeStreams.FakeStreams, it: FakeStreams.Serving, note: unknown): void => {
  const order = Option.getOrUndefined(decodeOrder(note))
  if (order?.event === "signal") FakeStreams.signal(it, order.signal)
  if (order?.event === "close") streams.ask(it, "SIGTERM", ...(it.terminal === null ? [] : ["SIGHUP"]))
  if (order?.event === "resize" && it.terminal !== null) it.terminal = { cols: order.cols, rows: order.rows }
}

/** Serves one machine until the scope closes. `run` is the script, `number` the number of the VM, `memory` its state. */
export const serve = Effect.fnUntraced(function* (
  fake: FakeMachine,
  number: number,
  start: Start,
  run: (task: Task) => Effect.Effect<Reply>,
  memory: Memory
): Effect.fn.Return<void, never, Scope.Scope> {
  const socket = fake.guest
  const fibers = yield* FiberMap.make<number>()
  const fork = yield* FiberMap.runtime(fibers)()
  /** Interrupts what runs for a stream. */
  const stop = (id: number): void => void forkBehind(FiberMap.remove(fibers, id))
  const forkBehind: FakePorts.Run = yield* FiberSet.makeRuntime<never>()
  const { changes, disk, ports } = memory
  let epoch: Buffer = Buffer.alloc(epochSize)
  let deaf = start.answers === false

  const send = (bytes: Uint8Array): void => {
    if (!socket.destroyed) socket.write(bytes)
  }
  const streams = FakeStreams.make(send, forkBehind)
  const network = FakeNetwork.make(send, streams.next)
  const tasks = FakeTasks.make({
    number,
    run,
    memory,
    streams,
    network,
    fork: forkBehind,
    die: fake.die,
    stall: () => {
      deaf = true
    },
    violate: (it) => send(encode(15, it.id, 0, new Uint8Array()))
  })

  /** Answers requests about files and changes; `undefined` for an unknown method. */
  const answerOf = Effect.fnUntraced(function* (
    it: FakeStreams.Serving
  ): Effect.fn.Return<Answer | undefined, never, Scope.Scope> {
    const now = yield* Clock.currentTimeMillis
    const { request } = it
    const content = Buffer.concat(it.content)
    switch (request.method) {
      case "changes.mark":
        return changes.mark()
      case "changes.read":
        return changes.read(request)
      case "tree.read":
      case "tree.write":
        return yield* FakeTrees.answer(disk, request, content, now)
      case "file.watch":
        return yield* FakeWatch.watch(disk, request, (bytes) => streams.output(it, Sub.file, bytes))
      case "seal":
        return undefined
      default:
        return "path" in request ? FakeFiles.answer(disk, request, content, now) : undefined
    }
  }, Effect.scoped)

  const answer = Effect.fnUntraced(function* (it: FakeStreams.Serving) {
    const found = yield* answerOf(it)
    if (found === undefined) {
      const message = it.request.method.startsWith("changes.") ? "there is no such mark" : "a request not understood"
      return streams.finish(it, Kind.Reset, { code: "invalid", message })
    }
    if (found.data !== undefined) yield* streams.output(it, Sub.file, found.data)
    streams.finish(it, Kind.End, found.end)
  })

  const listening = Effect.fnUntraced(function* (it: FakeStreams.Serving, { port, timeoutMs }: RequestOf<"listening">) {
    const found = yield* Effect.timeoutOption(ports.awaitListener(port), timeoutMs)
    streams.finish(it, Kind.End, { listening: Option.isSome(found) })
  })

  /** Connects the host to a server of the guest. */
  const dial = (it: FakeStreams.Serving, { port }: RequestOf<"dial">): void => {
    const connect = Effect.callback<void>((resume) => {
      const near = FakePorts.connect(
        ports,
        port,
        {
          connected: () => streams.note(it, { event: "connected" }),
          send: (bytes) => streams.output(it, Sub.stdout, bytes),
          end: () => streams.end(it, Sub.stdout),
          over: () => {
            streams.finish(it, Kind.End, {})
            resume(Effect.void)
          },
          broken: () => {
            streams.finish(it, Kind.Reset, { code: "reset", message: `the connection to port ${port} broke` })
            resume(Effect.void)
          },
          consumed: (bytes) => streams.consumed(it, bytes)
        },
        forkBehind
      )
      if (near === undefined) {
        streams.finish(it, Kind.Reset, { code: "refused", message: `no server listens on port ${port}` })
        return resume(Effect.void)
      }
      FakeStreams.takeInput(it, near.feed)
      return Effect.sync(near.destroy)
    })
    fork(it.id, connect)
  }

  const onOpen = (frame: Frame): void => {
    const request = decode(parse(frame.payload))
    if (request === undefined) {
      return send(encodeJson(Kind.Reset, frame.stream, { code: "invalid", message: "a request not understood" }))
    }
    const it = FakeStreams.serving(frame.stream, request)
    streams.begin(it)
    switch (request.method) {
      // These wait for the data that follows.
      case "exec":
      case "file.write":
      case "tree.write":
        return
      case "spawn":
        return void fork(it.id, tasks.execute(it))
      case "network":
        memory.network = true
        return streams.finish(it, Kind.End, {})
      case "dial":
        return dial(it, request)
      case "listening":
        return void fork(it.id, listening(it, request))
      default:
        return void fork(it.id, answer(it))
    }
  }

  const onData = (it: FakeStreams.Serving, frame: Frame): void => {
    const sub = frame.flags & 0x0f
    const last = (frame.flags & endFlag) !== 0
    const bytes = Buffer.from(frame.payload)
    // A server reads at its own pace.
    if (it.request.method !== "dial") streams.consumed(it, bytes.length)
    if (sub === Sub.stdin) {
      if (bytes.length > 0) it.feed(bytes)
      if (last) it.feed(null)
    } else {
      ;(sub === Sub.code ? it.code : it.content).push(bytes)
    }
    if (!last) return
    if (sub === Sub.code) fork(it.id, tasks.execute(it))
    else if (sub === Sub.file) fork(it.id, answer(it))
  }

  const onHello = (frame: Frame): void => {
    const hello = decodeHello(parse(frame.payload))
    if (Option.isSome(hello) && hello.value.purpose !== "wake") {
      memory.env = hello.value.env
      memory.network = hello.value.network !== null
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
    const languages = Language.literals
    const reply = { protocol, ready: true, acknowledged, languages, kernel: "testing", agent: "testing" }
    send(Buffer.concat([magic, epoch, encodeJson(Kind.Hello, 0, reply)]))
  }

  const onFrame = (frame: Frame): void => {
    if (frame.kind === Kind.Ping) return send(encode(Kind.Pong, 0, 0, frame.payload))
    if (frame.kind === Kind.Hello) return onHello(frame)
    if (frame.kind === Kind.Open) return onOpen(frame)
    if (frame.kind === Kind.Credit) return streams.credited(frame.stream, frame.payload.readUInt32LE(0))
    const it = streams.get(frame.stream)
    if (it === undefined) return network.frame(frame)
    if (frame.kind === Kind.Data) onData(it, frame)
    if (frame.kind === Kind.Note) onNote(streams, it, parse(frame.payload))
    if (frame.kind !== Kind.Reset) return
    streams.drop(it.id)
    stop(it.id)
  }

  const onBytes = makeDecoder({
    onEpoch: (bytes) => {
      epoch = bytes
      for (const id of streams.clear()) stop(id)
      network.clear()
    },
    onFrame,
    onViolation: (problem) => fake.die("exited", `the host broke the protocol: ${problem}`)
  })
  let held: Array<Buffer> = []
  socket.on("data", (bytes: Buffer) => {
    if (deaf) return
    if (fake.paused()) held.push(bytes)
    else onBytes(bytes)
  })
  fake.onResume(() => {
    const waited = held
    held = []
    for (const bytes of waited) onBytes(bytes)
  })
})
