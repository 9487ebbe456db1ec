/** Snapshots of the test kit's sessions: files, servers and interpreters' state at one moment. */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type { Capacity } from "../Capacity.ts"
import { fail, type SandboxError, SnapshotFailed } from "../SandboxError.ts"
import { type CloneSource, notCaptured, type Snapshot, type Snapshots, type Source } from "../Snapshot.ts"
import { machineMemoryMiB } from "../Template.ts"
import * as FakeMemory from "./FakeMemory.ts"
import type { Saver } from "./FakeHost.ts"

interface Stored {
  readonly snapshot: Snapshot
  readonly source: Source
  readonly memory: FakeMemory.Memory
}

const failed = (snapshot: string, kind: SnapshotFailed["kind"], problem: string): SandboxError =>
  fail(new SnapshotFailed({ snapshot, kind, problem }))

export const make = (saver: Saver, capacity: Capacity["Service"]): Snapshots["Service"] => {
  const stored = new Map<string, Stored>()
  let taken = 0

  const byName = (from: string): Effect.Effect<Stored, SandboxError> =>
    Effect.suspend(() => {
      const found = [...stored.values()].find(({ snapshot }) => snapshot.id === from || snapshot.name === from)
      return found === undefined
        ? Effect.fail(failed(from, "unknown", "there is no such snapshot"))
        : Effect.succeed(found)
    })

  const held = (memory: FakeMemory.Memory, source: Source, from: string, snapshot: string | null): CloneSource => ({
    from,
    snapshot,
    limitMiB: source.limitMiB,
    languages: source.languages,
    clone: Effect.gen(function* () {
      const place = yield* capacity.reserve({ memoryMiB: machineMemoryMiB(source.limitMiB) })
      return {
        vm: yield* saver.start(FakeMemory.copyOf(memory)),
        place,
        key: source.machine,
        machine: source.machine,
        image: source.image,
        startPath: { kind: "snapshot", from, missed: [] } as const,
        stale: () => undefined
      }
    })
  })

  return {
    take: Effect.fn("Snapshot.take")(function* (source, { name = null }) {
      if (name !== null && [...stored.values()].some(({ snapshot }) => snapshot.name === name)) {
        return yield* failed(name, "exists", "there is a snapshot of that name")
      }
      const memory = yield* saver.copy(source.vm)
      const now = new Date(yield* Clock.currentTimeMillis).toISOString()
      const id = `snap-${(++taken).toString(16).padStart(16, "0")}`
      const snapshot: Snapshot = {
        id,
        name,
        createdAt: now,
        usedAt: now,
        bytes: 0,
        memoryMiB: source.limitMiB,
        session: source.session,
        parent: source.parent,
        image: source.image,
        qemu: "none",
        accelerator: "tcg",
        pausedMs: 0,
        notCaptured
      }
      stored.set(id, { snapshot, source, memory })
      return snapshot
    }),
    hold: (source) =>
      Effect.map(saver.copy(source.vm), (memory) => held(memory, source, source.session, source.parent)),
    find: (from) =>
      Effect.map(byName(from), ({ memory, snapshot, source }) => {
        const { clone, ...rest } = held(memory, source, snapshot.id, snapshot.id)
        const used = Effect.map(Clock.currentTimeMillis, (now) => {
          const it = stored.get(snapshot.id)
          const usedAt = new Date(now).toISOString()
          if (it !== undefined) stored.set(snapshot.id, { ...it, snapshot: { ...it.snapshot, usedAt } })
        })
        return { ...rest, clone: Effect.tap(clone, () => used) }
      }),
    parker: { prepare: (vm) => saver.prepare(vm, capacity) },
    list: Effect.sync(() => [...stored.values()].map(({ snapshot }) => snapshot).toReversed()),
    remove: (from) =>
      Effect.map(byName(from), ({ snapshot }) => {
        stored.delete(snapshot.id)
        return snapshot
      }),
    verify: (from) => Effect.as(byName(from), undefined)
  }
}
