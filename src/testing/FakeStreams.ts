/** The streams of a fake guest: those that the host opened, and the one for late output. */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import { encode, encodeJson, endFlag, initialCredit, Kind, maxPayload, Sub } from "../guest/Frame.ts"
import { output } from "../guest/Methods.ts"
import type { Size } from "../Process.ts"
import { type Request, type TaskFields, taskOf } from "./Requests.ts"

/** Signals that do not terminate a process by default. */
const harmless: ReadonlySet<string> = new Set([
  "SIGCHLD",
  "SIGCONT",
  "SIGURG",
  "SIGWINCH",
  "SIGSTOP",
  "SIGTSTP",
  "SIGTTIN",
  "SIGTTOU"
])

/** A stream that the host opened. */
export interface Serving {
  readonly id: number
  readonly request: Request
  /** Its fields, where it is a task. */
  readonly open: TaskFields
  readonly code: Array<Buffer>
  readonly content: Array<Buffer>
  /** Input for stdin that arrived before the task reads it; `null` is its end. */
  readonly early: Array<Uint8Array | null>
  /** Takes input for stdin; replaced when the task reads it. */
  feed: (bytes: Uint8Array | null) => void
  /** Completed with the signal that ends the task. */
  readonly killed: Deferred.Deferred<string>
  /** Whether the task handles a signal, and goes on. */
  handles: (signal: string) => boolean
  /** The present size of its terminal. */
  terminal: Size | null
  credit: number
  written: number
  /** Whether it was asked to end. */
  asked: boolean
  /** The whole output by sub-channel, where the caller keeps only a part. */
  readonly kept: Map<number, Array<Buffer>>
  wake: (() => void) | undefined
}

/** The state of a stream that the host has just opened. */
export const serving = (id: number, request: Request): Serving => {
  const open = taskOf(request)
  const early: Array<Uint8Array | null> = []
  return {
    id,
    request,
    open,
    code: [],
    content: [],
    early,
    feed: (bytes) => void early.push(bytes),
    killed: Deferred.makeUnsafe(),
    handles: (signal) => harmless.has(signal),
    terminal: open.pty ?? null,
    credit: initialCredit,
    written: 0,
    asked: false,
    kept: new Map(),
    wake: undefined
  }
}

/** Gives input for stdin to `feed`, first what arrived before. */
export const takeInput = (it: Serving, feed: (bytes: Uint8Array | null) => void): void => {
  it.feed = feed
  it.early.splice(0).forEach(feed)
}

export interface FakeStreams {
  readonly get: (id: number) => Serving | undefined
  readonly begin: (it: Serving) => void
  /** A number for a stream that the guest opens. */
  readonly next: () => number
  /** Sends output as the host grants credit; after the end of an execution, sends it as late output. */
  readonly output: (it: Serving, sub: number, text: string | Uint8Array) => Effect.Effect<void>
  readonly note: (it: Serving, event: object) => void
  /** Sends signals in order until one is not handled; a task that handles all of them is killed a second later. Does so once. */
  readonly ask: (it: Serving, ...signals: ReadonlyArray<string>) => void
  /** Ends a sub-channel. */
  readonly end: (it: Serving, sub: number) => void
  /** Ends the stream, once. */
  readonly finish: (it: Serving, kind: typeof Kind.End | typeof Kind.Reset, value: object) => void
  /** Grants the host this many bytes of credit. */
  readonly consumed: (it: Serving, bytes: number) => void
  /** The host granted this many bytes of credit. */
  readonly credited: (id: number, bytes: number) => void
  /** The host reset the stream. */
  readonly drop: (id: number) => void
  /** A new epoch: ends all streams and gives their numbers. */
  readonly clear: () => ReadonlyArray<number>
}

/** Sends a signal, which ends the task unless it handles it; gives whether it did. */
export const signal = (it: Serving, name: string): boolean => {
  const handled = it.handles(name)
  if (!handled) Deferred.doneUnsafe(it.killed, Effect.succeed(name))
  return handled
}

/** `fork` runs effects as long as the machine lives. */
export const make = (
  send: (bytes: Uint8Array) => void,
  fork: (effect: Effect.Effect<unknown>) => unknown
): FakeStreams => {
  const ask: FakeStreams["ask"] = (it, ...signals) => {
    if (it.asked) return
    it.asked = true
    if (signals.every((name) => signal(it, name))) {
      fork(
        Effect.delay(
          Effect.suspend(() => Deferred.succeed(it.killed, "SIGKILL")),
          "1 second"
        )
      )
    }
  }
  const streams = new Map<number, Serving>()
  /** The number of the last stream that the guest opened; they are even. */
  let last = 0
  /** The stream for late output, one in an epoch. */
  let late = { id: 0, credit: initialCredit, origin: 0, dropped: 0 }

  const sendLate = (origin: number, sub: number, bytes: Buffer): void => {
    if (late.id === 0) {
      late.id = last += 2
      send(encodeJson(Kind.Open, late.id, { method: output.name }))
    }
    const size = Math.min(bytes.length, late.credit)
    if (size > 0 && late.dropped > 0) {
      send(encodeJson(Kind.Note, late.id, { dropped: late.dropped }))
      late.dropped = 0
    }
    if (size > 0 && late.origin !== origin) {
      send(encodeJson(Kind.Note, late.id, { execution: origin }))
      late.origin = origin
    }
    if (size > 0) send(encode(Kind.Data, late.id, sub, bytes.subarray(0, size)))
    late.credit -= size
    late.dropped += bytes.length - size
  }

  return {
    get: (id) => streams.get(id),
    begin: (it) => void streams.set(it.id, it),
    next: () => (last += 2),
    output: (it, sub, text) =>
      Effect.gen(function* () {
        let bytes = Buffer.from(text as string)
        if (it.open.spill === true && streams.has(it.id)) {
          const kept = it.kept.get(sub) ?? []
          kept.push(bytes)
          it.kept.set(sub, kept)
        }
        while (bytes.length > 0 && streams.has(it.id)) {
          if (it.credit === 0) {
            yield* Effect.callback<void>((resume) => {
              it.wake = () => resume(Effect.void)
            })
            continue
          }
          const size = Math.min(it.credit, bytes.length, maxPayload)
          it.credit -= size
          it.written += size
          send(encode(Kind.Data, it.id, sub, bytes.subarray(0, size)))
          bytes = bytes.subarray(size)
          if (it.open.outputFail === true && it.written > (it.open.outputBytes ?? it.written)) ask(it, "SIGINT")
          if (Deferred.isDoneUnsafe(it.killed)) return yield* Effect.never
        }
        if (bytes.length > 0 && it.open.language !== undefined && sub !== Sub.file) sendLate(it.id, sub, bytes)
      }),
    ask,
    note: (it, event) => {
      if (streams.has(it.id)) send(encodeJson(Kind.Note, it.id, event))
    },
    end: (it, sub) => {
      if (streams.has(it.id)) send(encode(Kind.Data, it.id, sub | endFlag, new Uint8Array()))
    },
    finish: (it, kind, value) => {
      if (streams.delete(it.id)) send(encodeJson(kind, it.id, value))
      it.wake?.()
    },
    consumed: (it, bytes) => {
      if (bytes === 0 || !streams.has(it.id)) return
      const grant = Buffer.alloc(4)
      grant.writeUInt32LE(bytes, 0)
      send(encode(Kind.Credit, it.id, 0, grant))
    },
    credited: (id, bytes) => {
      if (late.id !== 0 && id === late.id) late.credit += bytes
      const it = streams.get(id)
      if (it === undefined) return
      it.credit += bytes
      const { wake } = it
      it.wake = undefined
      wake?.()
    },
    drop: (id) => {
      const it = streams.get(id)
      streams.delete(id)
      it?.wake?.()
    },
    clear: () => {
      const all = [...streams.keys()]
      streams.clear()
      last = 0
      late = { id: 0, credit: initialCredit, origin: 0, dropped: 0 }
      return all
    }
  }
}
