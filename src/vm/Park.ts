/**
 * Parks a clone: writes its own memory pages and its devices' state to a file, and ends its process. A new QEMU with the same
 * template and the same disk, given those pages, continues the same machine.
 *
 * Like the disk, the file is unlinked as soon as it is created, so nothing is left behind however this process ends. A parked
 * machine that has been continued cannot be woken again, so no machine ever runs twice.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import * as fs from "node:fs"
import * as path from "node:path"
import type { Capacity } from "../Capacity.ts"
import { fail, type SandboxError, SnapshotFailed } from "../SandboxError.ts"
import { type Remains, type Vm, VmLost } from "../Vm.ts"
import type { Opening } from "./Descriptors.ts"
import { start } from "./Start.ts"
import { devicesFile, headOf, ownPages, readOwn, standStill, wholeState } from "./Capture.ts"
import { makeDirectory } from "../internal/Files.ts"
import { writeOwnPages } from "./OwnPages.ts"
import * as Temporary from "../internal/Temporary.ts"

/** A running machine. */
export interface Running {
  readonly vm: Vm
  /** Ends the machine, and then releases its capacity on the host. */
  readonly leave: Effect.Effect<void>
}

/** A paused machine that has been written to a file. It continues when the scope closes, unless it was committed. */
export interface Prepared {
  /** Ends the process, and returns the parked machine. */
  readonly commit: Effect.Effect<Saved>
}

/** A parked machine: it has no process. */
export interface Saved {
  /** The size of its file. */
  readonly bytes: number
  /** Continues the machine; it has had no HELLO yet. */
  readonly wake: Effect.Effect<Running, SandboxError, Scope.Scope>
  /** Whether it has run since it was parked. Then it cannot be woken again. */
  readonly usedUp: () => boolean
  /** Closes its file. */
  readonly discard: Effect.Effect<void>
}

/** Parks machines. */
export interface Parker {
  readonly prepare: (vm: Vm) => Effect.Effect<Prepared, SandboxError, Scope.Scope>
}

/** Where parked machines are stored, and how much they may take. */
export interface Storage {
  readonly capacity: Capacity["Service"]
  readonly directory: string
  readonly runDirectory: string
  /** The bytes that may still be written. */
  readonly room: () => number
  /** Counts bytes as taken, or as free again if negative. */
  readonly taken: (bytes: number) => void
}

/** How long parking may take. */
const bound = "60 seconds"

const failed = (kind: SnapshotFailed["kind"], problem: string, cause?: unknown): SandboxError =>
  fail(new SnapshotFailed({ snapshot: null, kind, problem, ...(cause === undefined ? {} : { cause }) }))

const problemOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

const notParked = (error: unknown): SandboxError => {
  const problem = `it cannot be parked: ${problemOf(error)}`
  return failed(/ENOSPC|EDQUOT/.test(problem) ? "store-full" : "capture", problem, error)
}

const parkWork = <A>(work: () => A): Effect.Effect<A, SandboxError> => Effect.try({ try: work, catch: notParked })

/** A run of memory in the file: its offset in memory and its size. The runs follow the state, in order. */
interface Stretch {
  readonly at: number
  readonly size: number
}

/** The open files of a parked machine: its own, and the image's, which may be removed while it is parked. */
interface Open {
  readonly file: number
  readonly root: number
  readonly scratch: number
}

const close = (files: Open): void => {
  for (const fd of Object.values(files)) fs.closeSync(fd)
}

/** The saved memory cannot be read. */
class Unreadable extends Error {}

/** Creates and unlinks the machine's file, and opens the image's; on an error nothing stays open. */
const open = (directory: string, { root, scratch }: Remains["shape"]["image"]): Open => {
  makeDirectory(directory, 0o700)
  Temporary.sweep(directory)
  const name = path.join(directory, Temporary.temporaryName("parked"))
  const opened: Array<number> = []
  try {
    opened.push(fs.openSync(name, "wx+", 0o600))
    fs.rmSync(name)
    opened.push(fs.openSync(root, "r"), fs.openSync(scratch, "r"))
    const [file = -1, rootFile = -1, scratchFile = -1] = opened
    return { file, root: rootFile, scratch: scratchFile }
  } catch (error) {
    fs.rmSync(name, { force: true })
    for (const fd of opened) fs.closeSync(fd)
    throw error
  }
}

/** Identifies the content of a file, to detect a change. */
const versionOf = (file: number): string => {
  const { ctimeNs, mtimeNs, size } = fs.fstatSync(file, { bigint: true })
  return [size, mtimeNs, ctimeNs].join(":")
}

/** Opens the same file again, with its own offset and access mode. */
const reopened = (file: number, flags: string): Opening => [`/proc/self/fd/${file}`, flags]

/** Parks real machines. */
export const make = (storage: Storage): Parker => {
  /** A machine that was saved and whose process has ended. */
  const saved = (
    remains: Remains,
    files: Open,
    stretches: ReadonlyArray<Stretch>,
    stateSize: number,
    bytes: number,
    firstStream: number
  ): Saved => {
    const version = versionOf(files.file)
    const { memoryMiB, qemu } = remains.shape
    let used = false
    let closed = false

    const readStretch = (position: number, size: number): Buffer => {
      const bytes = Buffer.allocUnsafe(size)
      try {
        for (let got = 0; got < size;) {
          const more = fs.readSync(files.file, bytes, got, size - got, position + got)
          if (more === 0) throw new Error("its file is shorter than it was")
          got += more
        }
      } catch (error) {
        throw new Unreadable(problemOf(error), { cause: error })
      }
      return bytes
    }

    const fill = (pid: number): Promise<void> => {
      let position = stateSize
      const rest = stretches.values()
      return writeOwnPages(pid, remains.ram, memoryMiB * 1024 * 1024, async () => {
        const stretch = rest.next().value
        if (stretch === undefined) return undefined
        const bytes = readStretch(position, stretch.size)
        position += stretch.size
        return { at: stretch.at, bytes }
      })
    }

    const wake = Effect.fnUntraced(function* (): Effect.fn.Return<Running, SandboxError, Scope.Scope> {
      if (used || closed) return yield* failed("damaged", "it has been woken already")
      if (versionOf(files.file) !== version) return yield* failed("damaged", "its file was changed while it was parked")
      const home = yield* Scope.fork(yield* Effect.scope)
      const vm = yield* Effect.gen(function* () {
        const reserved = yield* storage.capacity.reserve({ memoryMiB })
        const vm = yield* start(
          remains,
          [
            reopened(remains.ram, qemu.atLeast(8, 2) ? "r" : "r+"),
            files.root,
            files.scratch,
            remains.overlay,
            remains.disk,
            reopened(files.file, "r")
          ],
          "wake",
          {
            fill: (pid) =>
              Effect.uninterruptible(
                Effect.tryPromise({
                  try: () => fill(pid),
                  catch: (error) => {
                    const problem = `its memory cannot be restored: ${problemOf(error)}`
                    return error instanceof Unreadable
                      ? failed("damaged", problem, error)
                      : new VmLost({ problem, violation: false })
                  }
                })
              ),
            running: () => {
              used = true
            },
            firstStream
          }
        )
        reserved.usedBy(vm.pid)
        return vm
      }).pipe(
        Scope.provide(home),
        Effect.onError((cause) => Scope.close(home, Exit.failCause(cause)))
      )
      return { vm, leave: Scope.close(home, Exit.void) }
    })
    return {
      bytes,
      usedUp: () => used,
      wake: wake(),
      discard: Effect.sync(() => {
        if (closed) return
        closed = true
        storage.taken(-bytes)
        close(files)
      })
    }
  }

  return {
    prepare: Effect.fnUntraced(
      function* (vm: Vm) {
        const { parts } = vm
        if (parts === undefined) return yield* failed("unsupported", "this session's VM is not a clone")
        const own = yield* ownPages(parts, 0)
        const head = yield* parkWork(() => headOf(parts.state))
        const devices = yield* devicesFile(parts.shape, storage.runDirectory)
        let committed = false
        let written = 0
        const files = yield* Effect.acquireRelease(
          parkWork(() => open(storage.directory, parts.shape.image)),
          (it) =>
            Effect.sync(() => {
              if (committed) return
              close(it)
              storage.taken(-written)
            })
        )
        /** Counts the bytes before it writes them. */
        const put = (bytes: Buffer, position: number): void => {
          if (bytes.length > storage.room()) {
            throw new Error(`ENOSPC: ${bytes.length} more bytes would exceed Snapshot.StoreLimit`)
          }
          storage.taken(bytes.length)
          written += bytes.length
          for (let done = 0; done < bytes.length;) {
            done += fs.writeSync(files.file, bytes, done, bytes.length - done, position + done)
          }
        }
        const standing = yield* standStill(parts, devices)
        const stretches: Array<Stretch> = []
        const state = yield* parkWork(() => {
          const whole = wholeState(head, fs.readFileSync(devices))
          put(whole, 0)
          return whole
        })
        let problem: unknown
        yield* readOwn(own, ({ at, bytes }) => {
          if (problem !== undefined) return
          try {
            put(bytes, written)
            stretches.push({ at, size: bytes.length })
          } catch (error) {
            problem = error
          }
        })
        if (problem !== undefined) return yield* notParked(problem)
        return {
          commit: Effect.gen(function* () {
            standing.abandon()
            committed = true
            const { disk, overlay, ram, shape, state: origin } = parts
            const remains: Remains = { shape, overlay, disk, ram, state: origin }
            const firstStream = parts.channel.nextStream()
            yield* parts.end
            return saved(remains, files, stretches, state.length, written, firstStream)
          })
        }
      },
      Effect.timeoutOrElse({
        duration: bound,
        orElse: () => Effect.fail(failed("capture", `it cannot be parked: not done after ${bound}`))
      })
    )
  }
}
