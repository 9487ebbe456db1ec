import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { TestClock } from "effect/testing"
import { randomBytes } from "node:crypto"
import { type Duplex, duplexPair } from "node:stream"
import { setImmediate } from "node:timers/promises"
import * as Channel from "../../src/guest/Channel.ts"
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
} from "../../src/guest/Frame.ts"
import type { GuestHello, Hello } from "../../src/guest/Hello.ts"

const hello: Hello = {
  protocol: 1,
  purpose: "session",
  clock: "0",
  entropy: "00",
  hostname: "h",
  machineId: "m",
  env: {},
  limits: { memoryBytes: 1, processes: 1, diskBytes: 0, fileSizeBytes: 0 },
  network: null
}
const guestHello: GuestHello = { protocol: 1, ready: true, languages: ["python"], kernel: "6", agent: "1" }

/** The guest's end of the connection: the frames that arrived, and raw bytes to send. */
interface Guest {
  readonly frames: Array<Frame>
  readonly send: (bytes: Uint8Array) => void
  readonly next: (kind: number) => Effect.Effect<Frame>
  epoch: Buffer
}

const playGuest = (socket: Duplex): Guest => {
  const frames: Array<Frame> = []
  const waiting = new Set<() => void>()
  const guest: Guest = {
    frames,
    epoch: Buffer.alloc(8),
    send: (bytes) => void socket.write(bytes),
    next: (kind) =>
      Effect.callback((resume) => {
        const check = (): void => {
          const at = frames.findIndex((frame) => frame.kind === kind)
          if (at === -1) return
          waiting.delete(check)
          resume(Effect.succeed(frames.splice(at, 1)[0] as Frame))
        }
        waiting.add(check)
        check()
      })
  }
  socket.on(
    "data",
    makeDecoder({
      onEpoch: (epoch) => {
        guest.epoch = epoch
      },
      onFrame: (frame) => {
        frames.push(frame)
        for (const check of waiting) check()
      },
      onViolation: (problem) => {
        throw new Error(problem)
      }
    })
  )
  socket.on("error", () => {})
  return guest
}

/** A channel after its handshake, and its guest. */
const connected = Effect.gen(function* () {
  const [ours, theirs] = duplexPair()
  const guest = playGuest(theirs)
  const channel = yield* Channel.make(ours)
  const reply = yield* Effect.forkChild(channel.handshake(hello), { startImmediately: true })
  yield* guest.next(Kind.Hello)
  guest.send(Buffer.concat([magic, guest.epoch, encodeJson(Kind.Hello, 0, guestHello)]))
  yield* Fiber.join(reply)
  return { channel, guest, theirs }
})

/** Waits, without a clock, until what was sent has arrived. */
const until = (arrived: () => boolean) =>
  Effect.promise(() => setImmediate()).pipe(Effect.map(arrived), Effect.repeat({ until: (it) => it }))

const data = (stream: number, bytes: Uint8Array, flags: number = Sub.stdout): Buffer =>
  encode(Kind.Data, stream, flags, bytes)

describe("Channel", () => {
  it.effect(
    "takes the greeting of a booted guest, and accepts an answer to HELLO only in the epoch of that HELLO",
    () =>
      Effect.gen(function* () {
        const [ours, theirs] = duplexPair()
        const guest = playGuest(theirs)
        const channel = yield* Channel.make(ours)
        guest.send(Buffer.concat([randomBytes(99), magic, Buffer.alloc(8), encodeJson(Kind.Hello, 0, guestHello)]))
        assert.deepStrictEqual(yield* channel.greeting, guestHello)
        const reply = yield* Effect.forkChild(channel.handshake(hello), { startImmediately: true })
        yield* guest.next(Kind.Hello)
        guest.send(
          Buffer.concat([magic, Buffer.alloc(8, 7), encodeJson(Kind.Hello, 0, { ...guestHello, kernel: "old" })])
        )
        guest.send(Buffer.concat([magic, guest.epoch, encodeJson(Kind.Hello, 0, { ...guestHello, kernel: "new" })]))
        assert.strictEqual((yield* Fiber.join(reply)).kernel, "new")
      })
  )

  it.effect("sends notes only as fast as the guest reads", () =>
    Effect.gen(function* () {
      const { channel, guest, theirs } = yield* connected
      const stream = yield* channel.open({ method: "spawn" }, [])
      yield* guest.next(Kind.Open)
      theirs.pause()
      const event = "x".repeat(200_000)
      const sending = yield* Effect.forkChild(
        Effect.forEach(Array.from({ length: 60 }), () => stream.note({ event }), { discard: true }),
        { startImmediately: true }
      )
      assert.isUndefined(sending.pollUnsafe())
      theirs.resume()
      yield* Fiber.join(sending)
      for (let n = 0; n < 60; n++) assert.strictEqual((yield* guest.next(Kind.Note)).payload.length, 200_012)
    }).pipe(Effect.scoped)
  )

  it.effect(
    "opens at most as many streams as a guest allows; further ones wait, in order, until one ends or the channel fails",
    () =>
      Effect.gen(function* () {
        const { channel, guest, theirs } = yield* connected
        const scopes: Array<Scope.Closeable> = []
        const open = (n: number) =>
          Effect.gen(function* () {
            const scope = yield* Scope.make()
            const stream = yield* Scope.provide(channel.open({ method: "exec", n }, []), scope)
            scopes[n] = scope
            return stream.id
          })
        const opened: Array<number> = []
        for (let n = 0; n < 1000; n++) opened.push(yield* open(n))
        const [left, second, third, last] = yield* Effect.forEach([1000, 1001, 1002, 1003], (n) =>
          Effect.forkChild(Effect.exit(open(n)), { startImmediately: true })
        )
        const isOpen = (n: number) =>
          guest.frames.some((it) => it.kind === Kind.Open && it.payload.toString().includes(`:${n}}`))
        yield* until(() => isOpen(999))
        yield* Fiber.interrupt(left as Fiber.Fiber<unknown>)
        guest.send(encodeJson(Kind.End, opened[7] ?? 0, {}))
        assert.isTrue(Exit.isSuccess(yield* Fiber.join(second as Fiber.Fiber<Exit.Exit<number>>)))
        assert.isUndefined(third?.pollUnsafe())
        yield* Scope.close(scopes[8] as Scope.Closeable, Exit.void)
        const id = yield* Fiber.join(third as Fiber.Fiber<Exit.Exit<number>>)
        // Streams are numbered in the order in which they are opened.
        assert.deepStrictEqual(id, Exit.succeed((opened[999] ?? 0) + 4))
        // Closing the scope of a stream that has ended does not free a second slot.
        yield* Scope.close(scopes[7] as Scope.Closeable, Exit.void)
        yield* until(() => isOpen(1002))
        assert.isUndefined(last?.pollUnsafe())
        theirs.destroy()
        assert.isTrue(Exit.isFailure(yield* Fiber.join(last as Fiber.Fiber<Exit.Exit<number, unknown>>)))
        assert.deepStrictEqual([1000, 1003].map(isOpen), [false, false])
      }).pipe(Effect.scoped)
  )

  it.effect("sends OPEN and inputs, returns events in order, and ends", () =>
    Effect.gen(function* () {
      const { channel, guest } = yield* connected
      const stream = yield* channel.open({ method: "exec" }, [
        { sub: Sub.code, bytes: Buffer.from("print(1)") },
        { sub: Sub.stdin, bytes: new Uint8Array() }
      ])
      const open = yield* guest.next(Kind.Open)
      assert.strictEqual(open.payload.toString(), '{"method":"exec"}')
      const code = yield* guest.next(Kind.Data)
      assert.deepStrictEqual([code.flags, code.payload.toString()], [Sub.code | endFlag, "print(1)"])
      const stdin = yield* guest.next(Kind.Data)
      assert.deepStrictEqual([stdin.flags, stdin.payload.length], [Sub.stdin | endFlag, 0])
      guest.send(encodeJson(Kind.Note, open.stream, { event: "started" }))
      guest.send(data(open.stream, Buffer.from("1\n")))
      guest.send(encodeJson(Kind.End, open.stream, { exitCode: 0 }))
      const events: Array<Channel.Event> = []
      while (events.at(-1)?._tag !== "End") events.push(...(yield* stream.takeAll))
      assert.deepStrictEqual(
        events.map((event) => (event._tag === "Data" ? Buffer.from(event.bytes).toString() : event._tag)),
        ["Note", "1\n", "End"]
      )
      assert.isTrue(Cause.isDone(yield* Effect.flip(stream.takeAll)))
    }).pipe(Effect.scoped)
  )

  it.effect("sends a long input only as far as the guest grants credit", () =>
    Effect.gen(function* () {
      const { channel, guest } = yield* connected
      const bytes = randomBytes(initialCredit + 100_000)
      yield* channel.open({ method: "exec" }, [{ sub: Sub.stdin, bytes }])
      const open = yield* guest.next(Kind.Open)
      const got: Array<Buffer> = []
      let size = 0
      while (size < initialCredit) {
        const frame = yield* guest.next(Kind.Data)
        got.push(frame.payload)
        size += frame.payload.length
      }
      assert.strictEqual(size, initialCredit)
      const credit = Buffer.alloc(4)
      credit.writeUInt32LE(100_000, 0)
      guest.send(encode(Kind.Credit, open.stream, 0, credit))
      let last = 0
      while (last === 0) {
        const frame = yield* guest.next(Kind.Data)
        got.push(frame.payload)
        last = frame.flags & endFlag
      }
      assert.isTrue(Buffer.concat(got).equals(bytes))
    }).pipe(Effect.scoped)
  )

  it.effect("grants credit for what has been read, and none for what has not", () =>
    Effect.gen(function* () {
      const { channel, guest } = yield* connected
      const stream = yield* channel.open({ method: "exec" }, [])
      const open = yield* guest.next(Kind.Open)
      guest.send(data(open.stream, randomBytes(200_000)))
      yield* stream.takeAll
      const credit = yield* guest.next(Kind.Credit)
      assert.strictEqual(credit.payload.readUInt32LE(0), 200_000)
    }).pipe(Effect.scoped)
  )

  it.effect("resets a stream when its scope closes", () =>
    Effect.gen(function* () {
      const { channel, guest } = yield* connected
      const scope = yield* Scope.make()
      yield* channel.open({ method: "exec" }, []).pipe(Scope.provide(scope))
      const open = yield* guest.next(Kind.Open)
      yield* Scope.close(scope, Exit.void)
      const reset = yield* guest.next(Kind.Reset)
      assert.strictEqual(reset.stream, open.stream)
    }).pipe(Effect.scoped)
  )

  it.effect("fails pending and later calls when the connection ends", () =>
    Effect.gen(function* () {
      const { channel, guest, theirs } = yield* connected
      const stream = yield* channel.open({ method: "exec" }, [])
      yield* guest.next(Kind.Open)
      theirs.end()
      const error = yield* Effect.flip(stream.takeAll)
      assert.strictEqual(error._tag, "ChannelLost")
      assert.strictEqual((yield* Effect.flip(channel.open({}, [])))._tag, "ChannelLost")
      assert.strictEqual((yield* Effect.flip(channel.handshake(hello)))._tag, "ChannelLost")
    }).pipe(Effect.scoped)
  )

  it.effect("fails with ChannelLost if the guest does not answer pings while a stream is open", () =>
    Effect.gen(function* () {
      const { channel, guest } = yield* connected
      const stream = yield* channel.open({ method: "exec" }, [])
      yield* guest.next(Kind.Open)
      const failing = yield* Effect.forkChild(Effect.flip(stream.takeAll), { startImmediately: true })
      yield* TestClock.adjust("90 seconds")
      assert.strictEqual((yield* Fiber.join(failing))._tag, "ChannelLost")
    }).pipe(Effect.scoped)
  )

  const violations: ReadonlyArray<readonly [string, (stream: number) => Uint8Array]> = [
    ["more data than it has credit for", (id) => Buffer.concat([1, 2].map(() => data(id, randomBytes(200_000))))],
    ["an empty DATA frame", (id) => data(id, new Uint8Array())],
    ["a RESET that is not JSON", (id) => encode(Kind.Reset, id, 0, Buffer.from("{"))],
    ["a CREDIT of three bytes", (id) => encode(Kind.Credit, id, 0, Buffer.alloc(3))],
    [
      "credit without end",
      (id) => Buffer.concat([1, 2, 3].map(() => encode(Kind.Credit, id, 0, Buffer.alloc(4, 0x7f))))
    ],
    ["notes without end", (id) => Buffer.concat(Array.from({ length: 300 }, () => encodeJson(Kind.Note, id, {})))],
    ["a malformed HELLO", () => encodeJson(Kind.Hello, 0, { protocol: 99 })],
    ["an OPEN on the host's stream", (id) => encodeJson(Kind.Open, id, {})],
    ["an endless frame", (id) => Buffer.concat([Buffer.from([0, 0, 0, 0x7f]), Buffer.alloc(8, id)])]
  ]
  for (const [name, bytes] of violations) {
    it.effect(`fails with ChannelViolation on ${name}`, () =>
      Effect.gen(function* () {
        const { channel, guest } = yield* connected
        const stream = yield* channel.open({ method: "exec" }, [])
        const open = yield* guest.next(Kind.Open)
        guest.send(bytes(open.stream))
        assert.strictEqual((yield* Effect.flip(channel.failure))._tag, "ChannelViolation")
        let failed: string | undefined
        while (failed === undefined) failed = (yield* Effect.flip(Effect.forever(stream.takeAll)))._tag
        assert.strictEqual(failed, "ChannelViolation")
      }).pipe(Effect.scoped)
    )
  }

  it.effect("ignores data on unknown streams, refuses unknown methods and tolerates notes that are not JSON", () =>
    Effect.gen(function* () {
      const { channel, guest } = yield* connected
      guest.send(data(99, randomBytes(10)))
      guest.send(encodeJson(Kind.Open, 2, { method: "connect" }))
      assert.strictEqual((yield* guest.next(Kind.Reset)).stream, 2)
      const stream = yield* channel.open({ method: "exec" }, [])
      const open = yield* guest.next(Kind.Open)
      guest.send(encode(Kind.Note, open.stream, 0, Buffer.from("no json")))
      guest.send(encodeJson(Kind.End, open.stream, {}))
      const events = [...(yield* stream.takeAll)]
      if (events.length < 2) events.push(...(yield* stream.takeAll))
      assert.deepStrictEqual(
        events.map((event) => event._tag),
        ["Note", "End"]
      )
    }).pipe(Effect.scoped)
  )

  it.effect("writes as the guest grants credit, and returns false if the stream ended before everything was sent", () =>
    Effect.gen(function* () {
      const { channel, guest } = yield* connected
      const stream = yield* channel.open({ method: "spawn" }, [])
      const open = yield* guest.next(Kind.Open)
      assert.isTrue(yield* stream.write(Sub.stdin, Buffer.from("a"), false))
      const small = yield* guest.next(Kind.Data)
      assert.deepStrictEqual([small.payload.toString(), small.flags], ["a", Sub.stdin])
      const large = Buffer.alloc(initialCredit + 9, "b")
      const writing = yield* Effect.forkChild(stream.write(Sub.stdin, large, false), { startImmediately: true })
      let received = 0
      while (received < initialCredit - 1) received += (yield* guest.next(Kind.Data)).payload.length
      assert.isUndefined(writing.pollUnsafe())
      const grant = Buffer.alloc(4)
      grant.writeUInt32LE(100)
      guest.send(encode(Kind.Credit, open.stream, 0, grant))
      while (received < large.length) received += (yield* guest.next(Kind.Data)).payload.length
      assert.strictEqual(received, large.length)
      assert.isTrue(yield* Fiber.join(writing))
      assert.isTrue(yield* stream.write(Sub.stdin, new Uint8Array(), true))
      assert.strictEqual((yield* guest.next(Kind.Data)).flags, Sub.stdin | endFlag)
      const tooMuch = yield* Effect.forkChild(stream.write(Sub.stdin, large, false), { startImmediately: true })
      guest.send(encodeJson(Kind.End, open.stream, {}))
      assert.isFalse(yield* Fiber.join(tooMuch))
      assert.isFalse(yield* stream.write(Sub.stdin, Buffer.from("late"), false))
    }).pipe(Effect.scoped)
  )

  it.effect("sends notes until the stream has ended", () =>
    Effect.gen(function* () {
      const { channel, guest } = yield* connected
      const stream = yield* channel.open({ method: "spawn" }, [])
      const open = yield* guest.next(Kind.Open)
      yield* stream.note({ event: "signal", signal: "SIGINT" })
      const note = yield* guest.next(Kind.Note)
      assert.deepStrictEqual(
        [note.stream, note.payload.toString()],
        [open.stream, '{"event":"signal","signal":"SIGINT"}']
      )
      guest.send(encodeJson(Kind.End, open.stream, {}))
      yield* stream.takeAll
      yield* stream.note({ event: "late" })
      yield* channel.open({ method: "spawn" }, [])
      yield* guest.next(Kind.Open)
      assert.isFalse(guest.frames.some((frame) => frame.kind === Kind.Note))
    }).pipe(Effect.scoped)
  )

  it.effect("grants credit for what was taken only when it is consumed", () =>
    Effect.gen(function* () {
      const { channel, guest } = yield* connected
      const stream = yield* channel.open({ method: "spawn" }, [])
      const open = yield* guest.next(Kind.Open)
      guest.send(data(open.stream, Buffer.alloc(initialCredit)))
      let taken = 0
      while (taken < initialCredit) {
        for (const event of yield* stream.take) if (event._tag === "Data") taken += event.bytes.length
      }
      stream.consumed(1000)
      stream.consumed(initialCredit - 1000)
      const credit = yield* guest.next(Kind.Credit)
      assert.strictEqual(credit.payload.readUInt32LE(0), initialCredit)
      assert.isFalse(guest.frames.some((frame) => frame.kind === Kind.Credit))
    }).pipe(Effect.scoped)
  )

  it.effect("writes as the guest's credit allows, and ends a sub-channel", () =>
    Effect.gen(function* () {
      const { channel, guest } = yield* connected
      const stream = yield* channel.open({ method: "file.write" }, [])
      const bytes = randomBytes(initialCredit + 10)
      const writing = yield* Effect.forkChild(stream.write(Sub.file, bytes, false), { startImmediately: true })
      const { stream: id } = yield* guest.next(Kind.Open)
      const received: Array<Buffer> = []
      let total = 0
      while (total < initialCredit) {
        const frame = yield* guest.next(Kind.Data)
        received.push(frame.payload)
        total += frame.payload.length
        assert.strictEqual(frame.flags, Sub.file)
      }
      assert.strictEqual(total, initialCredit)
      assert.isUndefined(writing.pollUnsafe())
      const credit = Buffer.alloc(4)
      credit.writeUInt32LE(100)
      guest.send(encode(Kind.Credit, id, 0, credit))
      received.push((yield* guest.next(Kind.Data)).payload)
      assert.isTrue(yield* Fiber.join(writing))
      assert.isTrue(Buffer.concat(received).equals(bytes))
      assert.isTrue(yield* stream.write(Sub.file, new Uint8Array(), true))
      const last = yield* guest.next(Kind.Data)
      assert.deepStrictEqual([last.flags, last.payload.length], [Sub.file | endFlag, 0])
    })
  )

  it.effect("a writer that waits for credit returns false when the stream or the channel ends", () =>
    Effect.gen(function* () {
      const { channel, guest, theirs } = yield* connected
      const open = Effect.gen(function* () {
        const stream = yield* channel.open({ method: "file.write" }, [])
        const { stream: id } = yield* guest.next(Kind.Open)
        const writing = yield* Effect.forkChild(stream.write(Sub.file, Buffer.alloc(initialCredit + 1), true), {
          startImmediately: true
        })
        return { stream, id, writing }
      })
      const ended = yield* open
      guest.send(encodeJson(Kind.End, ended.id, { bytes: 0 }))
      assert.isFalse(yield* Fiber.join(ended.writing))
      assert.isFalse(yield* ended.stream.write(Sub.file, new Uint8Array(), true))
      const lost = yield* open
      theirs.end()
      assert.isFalse(yield* Fiber.join(lost.writing))
      assert.strictEqual((yield* Effect.flip(lost.stream.takeAll))._tag, "ChannelLost")
    })
  )
})
