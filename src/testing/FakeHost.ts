/** Makes, counts, kills and saves the machines of the test kit. */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import type { Capacity } from "../Capacity.ts"
import type { Prepared } from "../vm/Park.ts"
import { PackageError, type Packages, parsed, Policy, refused } from "../Packages.ts"
import type { Isolation } from "../Receipt.ts"
import { BootFailed, fail, type SandboxError, SnapshotFailed } from "../SandboxError.ts"
import { type Clone, machineMemoryMiB } from "../Template.ts"
import type * as Vm from "../Vm.ts"
import { over } from "../vm/Start.ts"
import * as FakeGuest from "./FakeGuest.ts"
import * as FakeMachine from "./FakeMachine.ts"
import * as FakeMemory from "./FakeMemory.ts"
import type { Machines } from "./Machines.ts"
import type { Options, Reply, Start, Task } from "./Script.ts"

/** The isolation in receipts of the test kit: none, because a script runs in the test's process. */
const isolation: Isolation = {
  accelerator: "tcg",
  boundary: "emulated",
  seccomp: false,
  user: null,
  parentDeath: false,
  cgroup: null
}

/** The most tasks that `Machines` records. */
const maxTasks = 10_000

/** Saves the state of machines, and starts machines from it. */
export interface Saver {
  /** A copy of a guest's state at this moment. */
  readonly copy: (vm: Vm.Vm) => Effect.Effect<FakeMemory.Memory, SandboxError>
  /** Starts a machine from such a copy. */
  readonly start: (memory: FakeMemory.Memory) => Effect.Effect<Vm.Vm, SandboxError, Scope.Scope>
  /** See `Parker`. */
  readonly prepare: (vm: Vm.Vm, capacity: Capacity["Service"]) => Effect.Effect<Prepared, SandboxError, Scope.Scope>
}

const notSaved = (problem: string): SandboxError =>
  fail(new SnapshotFailed({ snapshot: null, kind: "capture", problem }))

/** Makes the machines of a kit; `origin` is the name of their template. */
export const make = (options: Options, origin: string) =>
  Effect.map(Policy, (policy) => {
    const live = new Map<number, FakeMachine.FakeMachine>()
    const tasks: Array<Task> = []
    let started = 0
    let generation = 0
    const run = (task: Task): Effect.Effect<Reply> =>
      Effect.suspend(() => {
        if (tasks.length < maxTasks) tasks.push(task)
        const reply = options.script?.(task) ?? { _tag: "Ends" }
        return Effect.isEffect(reply) ? reply : Effect.succeed(reply)
      })
    const guests = new WeakMap<
      Vm.Vm,
      { readonly number: number; readonly start: Start; readonly memory: FakeMemory.Memory }
    >()
    const begin = Effect.fnUntraced(function* (number: number, start: Start, memory: FakeMemory.Memory) {
      const vm = yield* over(isolation, (ended) =>
        Effect.gen(function* () {
          const fake = yield* FakeMachine.make((end) => {
            if (live.get(number) === fake) live.delete(number)
            ended(end)
          })
          live.set(number, fake)
          yield* FakeGuest.serve(fake, number, start, run, memory)
          return fake.machine
        })
      )
      guests.set(vm, { number, start, memory })
      return vm
    })
    const another = Effect.fnUntraced(function* (memory: FakeMemory.Memory) {
      const number = ++started
      const start = options.start?.(number) ?? {}
      if (start.delayMs !== undefined) yield* Effect.sleep(start.delayMs)
      const { fails } = start
      if (fails !== undefined) {
        return yield* fail(new BootFailed({ stage: "restore", problem: fails, console: "" }))
      }
      return yield* begin(number, start, memory)
    })
    const clone = Effect.fn("Template.clone")(function* (
      _limitMiB: number,
      packages: Packages = {}
    ): Effect.fn.Return<Clone, SandboxError | PackageError, Scope.Scope> {
      const made = generation
      const wanted = parsed(packages)
      const denied = refused(policy, packages)
      if (denied !== undefined) return yield* denied
      for (const { ecosystem, name, spec } of wanted) {
        const reason = options.packages?.({ ecosystem, name, spec })
        if (reason !== undefined) return yield* new PackageError({ ecosystem, spec, reason })
      }
      return {
        vm: yield* another(FakeMemory.empty(wanted.map(({ ecosystem, spec }) => `${ecosystem}:${spec}`))),
        key: origin,
        machine: origin,
        image: origin,
        startPath: { kind: "restore", missed: [{ kind: "pool", reason: "there is no pool" }] },
        stale: () => (made === generation ? undefined : "its template was made again")
      }
    })
    const saver: Saver = {
      copy: (vm) =>
        Effect.suspend(() => {
          const guest = guests.get(vm)
          return guest === undefined
            ? Effect.fail(notSaved("its VM is not from this test kit"))
            : Effect.succeed(FakeMemory.copyOf(guest.memory))
        }),
      start: another,
      prepare: Effect.fnUntraced(function* (vm, capacity) {
        const guest = guests.get(vm)
        const problem = guest === undefined ? "its VM is not from this test kit" : guest.start.parkFails
        if (guest === undefined || problem !== undefined) return yield* notSaved(problem ?? "")
        const { memory, number, start } = guest
        yield* Effect.addFinalizer(() => Effect.ignore(vm.resume))
        yield* Effect.mapError(vm.pause, (lost) => notSaved(lost.problem))
        if (start.delayMs !== undefined) yield* Effect.sleep(start.delayMs)
        let used = false
        const wake = Effect.gen(function* () {
          const home = yield* Scope.fork(yield* Effect.scope)
          const next = yield* Effect.gen(function* () {
            yield* capacity.reserve({ memoryMiB: machineMemoryMiB(0) })
            if (start.delayMs !== undefined) yield* Effect.sleep(start.delayMs)
            if (start.wakeFails !== undefined) {
              return yield* fail(new BootFailed({ stage: "restore", problem: start.wakeFails, console: "" }))
            }
            used = true
            return yield* begin(number, start, memory)
          }).pipe(
            Scope.provide(home),
            Effect.onError((cause) => Scope.close(home, Exit.failCause(cause)))
          )
          return { vm: next, leave: Scope.close(home, Exit.void) }
        })
        return {
          commit: Effect.as(vm.destroy, { bytes: 0, usedUp: () => used, wake, discard: Effect.void })
        }
      })
    }
    const service: Machines["Service"] = {
      live: Effect.sync(() => [...live.keys()]),
      started: Effect.sync(() => started),
      kill: (vm) =>
        Effect.callback((resume) => {
          live.get(vm)?.die("killed", "QEMU ended (SIGKILL)")
          // The other end of its channel notices first.
          setImmediate(() => resume(Effect.void))
        }),
      remakeTemplate: Effect.sync(() => void generation++),
      tasks: Effect.sync(() => [...tasks])
    }
    return { clone, saver, service }
  })
