/**
 * Parks a clone: what is its own of its memory, and its devices' state, go to a file, and its process ends. Another QEMU with
 * the same template and the same disk, given those pages, is the same machine again.
 *
 * The file has no name from the moment it is made, as the disk has none, so that nothing stays behind however this process
 * ends; and it is used up by the QEMU that goes on with it, so no machine ever lives twice.
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

/** A machine that runs, and what gives back its place on the host once it is dead. */
export interface Running {
  readonly vm: Vm
  readonly leave: Effect.Effect<void>
}

/** A machine that stands still and is all written down; it runs on when the scope closes, unless it is committed. */
export interface Prepared {
  /** Ends the process, and gives the machine that can be woken in its place. */
  readonly commit: Effect.Effect<Saved>
}

/** A machine without a process. */
export interface Saved {
  readonly bytes: number
  /** The same machine, running, before its HELLO. */
  readonly wake: Effect.Effect<Running, SandboxError, Scope.Scope>
  /** It has run since, and so can never be woken again. */
  readonly usedUp: () => boolean
  readonly discard: Effect.Effect<void>
}

/** Parks machines. */
export interface Parker {
  readonly prepare: (vm: Vm) => Effect.Effect<Prepared, SandboxError, Scope.Scope>
}

/** Where parked machines are remains, and how much there may be of them. */
export interface Place {
  readonly capacity: Capacity["Service"]
  readonly directory: string
  readonly runDirectory: string
  /** Bytes that there still is room for. */
  readonly room: () => number
  /** So many bytes more are taken, or fewer when it is negative. */
  readonly taken: (bytes: number) => void
}

/** How long all of the saving may take. */
const bound = "60 seconds"

const failed = (kind: SnapshotFailed["kind"], problem: string, cause?: unknown): SandboxError =>
  fail(new SnapshotFailed({ snapshot: null, kind, problem, ...(cause === undefined ? {} : { cause }) }))

const problemOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

const notKept = (error: unknown): SandboxError => {
  const problem = `it cannot be parked: ${problemOf(error)}`
  return failed(/ENOSPC|EDQUOT/.test(problem) ? "store-full" : "capture", problem, error)
}

const attempt = <A>(work: () => A): Effect.Effect<A, SandboxError> => Effect.try({ try: work, catch: notKept })

/** A run of bytes in the file, which begins with the state, and its place in memory. */
interface Stretch {
  readonly at: number
  readonly size: number
}

/** The open files of a parked machine: its own, and those that might be removed meanwhile. */
interface Open {
  readonly file: number
  readonly root: number
  readonly scratch: number
}

const close = (files: Open): void => {
  for (const fd of Object.values(files)) fs.closeSync(fd)
}

/** What is to be put back cannot be read. */
class Unreadable extends Error {}

/** Makes them, or none; the first without a name. */
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

/** Stands for the content of a file that nobody writes to. */
const versionOf = (file: number): string => {
  const { ctimeNs, mtimeNs, size } = fs.fstatSync(file, { bigint: true })
  return [size, mtimeNs, ctimeNs].join(":")
}

/** Again, at its own place and with its own rights. */
const again = (file: number, flags: string): Opening => [`/proc/self/fd/${file}`, flags]

/** Parks real machines. */
export const make = (place: Place): Parker => {
  /** A machine that was saved, and has no process any more. */
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
      if (used || closed) return yield* failed("damaged", "it was woken before")
      if (versionOf(files.file) !== version) return yield* failed("damaged", "its file was changed while it was parked")
      const home = yield* Scope.fork(yield* Effect.scope)
      const vm = yield* Effect.gen(function* () {
        const reserved = yield* place.capacity.reserve({ memoryMiB })
        const vm = yield* start(
          remains,
          [
            again(remains.ram, qemu.atLeast(8, 2) ? "r" : "r+"),
            files.root,
            files.scratch,
            remains.overlay,
            remains.disk,
            again(files.file, "r")
          ],
          "wake",
          {
            fill: (pid) =>
              Effect.uninterruptible(
                Effect.tryPromise({
                  try: () => fill(pid),
                  catch: (error) => {
                    const problem = `its memory cannot be put back: ${problemOf(error)}`
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
        place.taken(-bytes)
        close(files)
      })
    }
  }

  return {
    prepare: Effect.fnUntraced(
      function* (vm: Vm) {
        const { parts } = vm
        if (parts === undefined) return yield* failed("unsupported", "this session's VM was not cloned")
        const own = yield* ownPages(parts, 0)
        const head = yield* attempt(() => headOf(parts.state))
        const devices = yield* devicesFile(parts.shape, place.runDirectory)
        let keeps = false
        let written = 0
        const files = yield* Effect.acquireRelease(
          attempt(() => open(place.directory, parts.shape.image)),
          (it) =>
            Effect.sync(() => {
              if (keeps) return
              close(it)
              place.taken(-written)
            })
        )
        /** Sees to it that what is written counts before it is there. */
        const put = (bytes: Buffer, position: number): void => {
          if (bytes.length > place.room()) {
            throw new Error(`ENOSPC: there is no room for ${bytes.length} bytes more beside all that is remains`)
          }
          place.taken(bytes.length)
          written += bytes.length
          for (let done = 0; done < bytes.length;) {
            done += fs.writeSync(files.file, bytes, done, bytes.length - done, position + done)
          }
        }
        const standing = yield* standStill(parts, devices)
        const stretches: Array<Stretch> = []
        const state = yield* attempt(() => {
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
        if (problem !== undefined) return yield* notKept(problem)
        return {
          commit: Effect.gen(function* () {
            standing.abandon()
            keeps = true
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
