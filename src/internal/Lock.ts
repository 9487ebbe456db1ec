/**
 * Mutual exclusion between processes, by file.
 *
 * A small child process holds the kernel's `flock` and lives exactly as long as its standard input, a pipe of this process. So
 * a lock cannot outlive this process, not even after `kill -9`, and there are no stale locks. Node has no `flock` of its own.
 * Fibres of one process exclude each other in the same way.
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type { ChildProcess } from "node:child_process"
import { spawn } from "node:child_process"
import { dirname } from "node:path"
import { makeDirectory } from "./Files.ts"

/** Locking is not possible: the directory cannot be written, or the host has no `flock` (Linux) or `perl` (macOS). */
export class LockFailed extends Schema.TaggedError<LockFailed>()("LockFailed", {
  path: Schema.String,
  problem: Schema.String
}) {
  override get message(): string {
    return `cannot lock ${this.path}: ${this.problem}`
  }
}

/** macOS has no flock(1), but the same system call through the perl it ships. */
const perl =
  'use Fcntl ":flock"; open(my $f, ">>", $ARGV[0]) or die "$!\\n"; flock($f, LOCK_EX | ($ARGV[1] ? LOCK_NB : 0)) or exit 75; $| = 1; print while <STDIN>'

const spawnHolder = (path: string, wait: boolean): ChildProcess => {
  const [command, args] =
    process.platform === "darwin"
      ? ["perl", ["-e", perl, path, wait ? "" : "1"]]
      : ["flock", ["-x", ...(wait ? [] : ["-n"]), "-E", "75", path, "cat"]]
  // Its own process group: Ctrl-C in a terminal must not release the lock while we clean up.
  return spawn(command, args, { stdio: ["pipe", "pipe", "pipe"], detached: true })
}

/** The child process, and whether it has the lock. */
interface Holder {
  readonly child: ChildProcess
  held: boolean
}

/** Waits for the lock; `false` when another process has it and the child does not wait. */
const acquire = (holder: Holder, path: string): Effect.Effect<boolean, LockFailed> =>
  Effect.callback((resume) => {
    const { child } = holder
    let said = ""
    child.on("error", (cause) => resume(Effect.fail(new LockFailed({ path, problem: cause.message }))))
    child.on("exit", (code) =>
      resume(
        code === 75
          ? Effect.succeed(false)
          : Effect.fail(new LockFailed({ path, problem: said.trim() || `the holder ended with code ${code}` }))
      )
    )
    child.stdin?.on("error", () => {})
    child.stderr?.on("data", (chunk: Buffer) => {
      said = (said + chunk.toString()).slice(-500)
    })
    // The child is `cat`: it repeats this line once it has the lock.
    child.stdout?.once("data", () => {
      holder.held = true
      resume(Effect.succeed(true))
    })
    child.stdin?.write("held\n")
  })

/** Releases the lock, and waits until the child has ended. */
const release = ({ child, held }: Holder): Effect.Effect<void> =>
  Effect.callback((resume) => {
    if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return resume(Effect.void)
    child.once("exit", () => resume(Effect.void))
    child.stdin?.end()
    if (!held) child.kill("SIGKILL")
  })

const hold = <A, E, R>(
  path: string,
  wait: boolean,
  use: (held: boolean) => Effect.Effect<A, E, R>,
  waiting: Effect.Effect<void> | undefined
): Effect.Effect<A, E | LockFailed, R> =>
  Effect.acquireUseRelease(
    // Starting the child is one synchronous step, so an interruption finds no child, or one that it can release.
    Effect.andThen(
      Effect.try({
        try: () => makeDirectory(dirname(path), 0o700),
        catch: (cause) => new LockFailed({ path, problem: String(cause) })
      }),
      Effect.sync((): Holder => ({ child: spawnHolder(path, wait), held: false }))
    ),
    (holder) => {
      const told = waiting === undefined ? Effect.void : Effect.andThen(Effect.sleep("1 second"), waiting)
      const acquired = Effect.scoped(Effect.andThen(Effect.forkScoped(told), acquire(holder, path)))
      return Effect.flatMap(acquired, use)
    },
    release
  )

/**
 * Runs `effect` while this process alone holds the lock at `path`. The file (and its directory) is made when missing and
 * stays; its content is not used. Waits until the lock is free; `waiting` runs once when that takes more than a second. Interruptible while waiting and while running.
 */
export const withLock = <A, E, R>(
  path: string,
  effect: Effect.Effect<A, E, R>,
  options?: { readonly waiting?: Effect.Effect<void> }
): Effect.Effect<A, E | LockFailed, R> => hold(path, true, () => effect, options?.waiting)

/** Like `withLock`, but does nothing and returns `false` when another process holds the lock; `true` when `effect` ran. */
export const withLockIfFree = <A, E, R>(
  path: string,
  effect: Effect.Effect<A, E, R>
): Effect.Effect<boolean, E | LockFailed, R> =>
  hold(path, false, (held) => (held ? Effect.as(effect, true) : Effect.succeed(false)), undefined)
