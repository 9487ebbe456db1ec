import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import { TestClock } from "effect/testing"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import * as Capacity from "../src/Capacity.ts"
import * as Admission from "../src/capacity/Admission.ts"
import { type HostResources, privateMemoryMiB, readHostResources } from "../src/capacity/HostResources.ts"
import type { CapacityExceeded, SandboxError } from "../src/SandboxError.ts"

/** A fake host with 1,000 MiB and one core, whose state the test changes. */
const playHost = (options: Partial<Capacity.CapacityOptions> = {}) => {
  const host: { -readonly [K in keyof HostResources]: HostResources[K] } = {
    totalMemoryMiB: 1000,
    freeMemoryMiB: 1000,
    cores: 1,
    memoryPressure: null
  }
  const touched = new Map<number, number>()
  const capacity = Capacity.make(
    { ...Capacity.defaults, memoryOvercommit: 1, keepFreeMiB: 0, ...options },
    { host: () => host, privateMemoryMiB: (pid) => touched.get(pid) ?? 0 }
  )
  return { host, touched, capacity }
}

/** Reserves in the background, in a separate scope, as the owner of a VM does. */
const ask = (capacity: Capacity.Capacity["Service"], memoryMiB: number, spare = false) =>
  Effect.gen(function* () {
    const scope = yield* Scope.make()
    const fiber = yield* capacity
      .reserve({ memoryMiB }, { spare })
      .pipe(Scope.provide(scope), Effect.forkScoped({ startImmediately: true }))
    return { fiber, release: Scope.close(scope, Exit.void), admitted: () => fiber.pollUnsafe() !== undefined }
  })

const reasonOf = (error: SandboxError): CapacityExceeded => {
  assert.strictEqual(error.reason._tag, "CapacityExceeded")
  return error.reason as CapacityExceeded
}

describe("Capacity", () => {
  it.effect("admits what fits, in order, and releases it when the scope closes", () =>
    Effect.gen(function* () {
      const { capacity } = playHost()
      const first = yield* ask(capacity, 600)
      const large = yield* ask(capacity, 500)
      const small = yield* ask(capacity, 100)
      assert.deepStrictEqual([first.admitted(), large.admitted(), small.admitted()], [true, false, false])
      assert.deepStrictEqual(yield* capacity.stats, {
        held: { vms: 1, memoryMiB: 600, cpus: 1 },
        waiting: 2,
        spare: 0
      })
      yield* first.release
      yield* Fiber.join(large.fiber)
      yield* Fiber.join(small.fiber)
      yield* large.release
      yield* small.release
      assert.deepStrictEqual((yield* capacity.stats).held, { vms: 0, memoryMiB: 0, cpus: 0 })
    })
  )

  it.effect(
    "fails after the bounded wait and reports what was asked, free and waiting; the next in line is admitted",
    () =>
      Effect.gen(function* () {
        const { capacity } = playHost({ maxWaitMs: 5000 })
        yield* ask(capacity, 600)
        const late = yield* ask(capacity, 500)
        const behind = yield* ask(capacity, 100)
        yield* TestClock.adjust("4999 millis")
        assert.isFalse(late.admitted())
        yield* TestClock.adjust("1 millis")
        const reason = reasonOf(yield* Effect.flip(Fiber.join(late.fiber)))
        assert.deepStrictEqual(
          [reason.asked, reason.free, reason.total, reason.waiting, reason.waitedMs, reason.retry],
          [{ memoryMiB: 500, cpus: 1 }, { memoryMiB: 400, cpus: 7 }, { memoryMiB: 1000, cpus: 8 }, 1, 5000, "safe"]
        )
        assert.isTrue(Exit.isSuccess(yield* Fiber.await(behind.fiber)))
      })
  )

  it.effect("fails at once when a request can never fit", () =>
    Effect.gen(function* () {
      const { capacity } = playHost({ keepFreeMiB: 100 })
      const memory = reasonOf(yield* Effect.flip(Effect.scoped(capacity.reserve({ memoryMiB: 901 }))))
      assert.deepStrictEqual([memory.retry, memory.waitedMs], ["never", 0])
      assert.include(memory.message, "901 MiB")
      const cpus = reasonOf(yield* Effect.flip(Effect.scoped(capacity.reserve({ memoryMiB: 1, cpus: 9 }))))
      assert.strictEqual(cpus.retry, "never")
    })
  )

  it.effect("an interrupted request leaves the line, and an admitted one releases its memory", () =>
    Effect.gen(function* () {
      const { capacity } = playHost()
      const first = yield* ask(capacity, 600)
      const large = yield* ask(capacity, 900)
      const small = yield* ask(capacity, 400)
      yield* Fiber.interrupt(large.fiber)
      yield* Fiber.join(small.fiber)
      assert.strictEqual((yield* capacity.stats).waiting, 0)
      yield* first.release
      yield* small.release
      assert.strictEqual((yield* capacity.stats).held.vms, 0)
    })
  )

  it.effect("counts the memory that is really free, less what was reserved and not touched", () =>
    Effect.gen(function* () {
      const { capacity, host, touched } = playHost()
      const first = yield* ask(capacity, 600)
      const reservation = yield* Fiber.join(first.fiber)
      reservation.usedBy(42)
      // It has touched 500 of its 600; others took 300.
      touched.set(42, 500)
      host.freeMemoryMiB = 200
      const fits = yield* ask(capacity, 100)
      assert.isTrue(fits.admitted())
      const not = yield* ask(capacity, 1)
      assert.isFalse(not.admitted())
      // Other processes free memory, which only polling can notice.
      host.freeMemoryMiB = 300
      yield* TestClock.adjust("250 millis")
      assert.isTrue(not.admitted())
    })
  )

  it.effect("limits VMs by cores, and admits none under memory pressure", () =>
    Effect.gen(function* () {
      const { capacity, host } = playHost({ cpuOvercommit: 2 })
      const one = yield* ask(capacity, 1)
      yield* ask(capacity, 1)
      const third = yield* ask(capacity, 1)
      assert.isFalse(third.admitted())
      host.memoryPressure = 10.5
      yield* one.release
      assert.isFalse(third.admitted())
      host.memoryPressure = 9.5
      yield* TestClock.adjust("250 millis")
      assert.isTrue(third.admitted())
    })
  )

  it.effect("spare requests wait behind every caller, without a bound; listeners are called when a caller waits", () =>
    Effect.gen(function* () {
      const { capacity } = playHost()
      let calls = 0
      yield* capacity.onWaiting(() => void calls++)
      const first = yield* ask(capacity, 900)
      const spare = yield* ask(capacity, 100, true)
      assert.isTrue(spare.admitted())
      const refill = yield* ask(capacity, 500, true)
      yield* TestClock.adjust("1 hour")
      assert.isFalse(refill.admitted())
      assert.strictEqual(calls, 0)
      const caller = yield* ask(capacity, 600)
      assert.isAbove(calls, 0)
      yield* first.release
      assert.deepStrictEqual([caller.admitted(), refill.admitted()], [true, false])
      yield* caller.release
      assert.isTrue(refill.admitted())
    })
  )

  const Event = Schema.Struct({
    kind: Schema.Literals(["ask", "ask", "spare", "leave", "leave", "admit"]),
    pick: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 100 })),
    memoryMiB: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 100 }))
  })

  it.effect.prop(
    "admission: in order, never more than the host has, and every request gets its turn",
    [Arbitrary.array(Arbitrary.schema(Event), { maxLength: 100 })],
    ([events]) =>
      Effect.sync(() => {
        const total = { memoryMiB: 100, cpus: 4 }
        let state = Admission.empty
        let nextId = 1
        const callers: Array<number> = []
        const spares: Array<number> = []
        const held = new Map<number, number>()
        const sizes = new Map<number, number>()
        const admit = (): void => {
          const used = [...held.values()].reduce((sum, it) => sum + it, 0)
          const [next, ids] = Admission.admit(state, { memoryMiB: total.memoryMiB - used, cpus: total.cpus })
          state = next
          for (const id of ids) {
            // The first caller, or the first spare request if no caller waits.
            assert.strictEqual(callers.length > 0 ? callers.shift() : spares.shift(), id)
            held.set(id, sizes.get(id) ?? 0)
          }
          const charged = Admission.sum(state.held.values())
          assert.isAtMost(charged.memoryMiB, total.memoryMiB)
          assert.isAtMost(charged.cpus, total.cpus)
          assert.deepStrictEqual([...state.held.keys()], [...held.keys()])
          // The first in line does not fit, or it would have been admitted.
          const first = Admission.head(state)
          if (first !== undefined) {
            const fits =
              first.memoryMiB <= total.memoryMiB - charged.memoryMiB && first.cpus <= total.cpus - charged.cpus
            assert.isFalse(fits)
          }
        }
        for (const { kind, memoryMiB, pick } of events) {
          if (kind === "ask" || kind === "spare") {
            const id = nextId++
            sizes.set(id, memoryMiB)
            ;(kind === "spare" ? spares : callers).push(id)
            state = Admission.ask(state, { id, memoryMiB, cpus: 1, spare: kind === "spare" })
          } else if (kind === "leave") {
            const all = [...held.keys(), ...callers, ...spares]
            const id = all[pick % Math.max(1, all.length)]
            if (id === undefined) continue
            held.delete(id)
            for (const list of [callers, spares]) if (list.includes(id)) list.splice(list.indexOf(id), 1)
            state = Admission.leave(state, id)
          }
          admit()
        }
        // As VMs end, every request is admitted, in order.
        while (held.size > 0) {
          const [id] = held.keys()
          held.delete(id as number)
          state = Admission.leave(state, id as number)
          admit()
        }
        assert.deepStrictEqual([callers, spares], [[], []])
      }),
    { arbitrary: { runs: 500 } }
  )
})

/** A directory with the kernel's files of a host. */
const hostOf = (files: Readonly<Record<string, string>>): string => {
  const root = fs.mkdtempSync(path.join(os.tmpdir(), "host-"))
  for (const [name, text] of Object.entries(files)) {
    fs.mkdirSync(path.dirname(path.join(root, name)), { recursive: true })
    fs.writeFileSync(path.join(root, name), text)
  }
  return root
}

const read = (files: Readonly<Record<string, string>>): HostResources => {
  const root = hostOf({
    "proc/meminfo": "MemTotal:        8192000 kB\nMemFree: 1 kB\nMemAvailable:    4096000 kB\n",
    ...files
  })
  try {
    return readHostResources(root)
  } finally {
    fs.rmSync(root, { recursive: true })
  }
}

const mebibyte = 1024 * 1024

describe("readHostResources", () => {
  it("without cgroups: what the kernel reports as available", () => {
    assert.deepStrictEqual(read({}), {
      totalMemoryMiB: 8000,
      freeMemoryMiB: 4000,
      cores: os.availableParallelism(),
      memoryPressure: null
    })
  })

  it("cgroup v2: the lowest limit of the group and its parents; page cache counts as free; pressure", () => {
    const found = read({
      "proc/self/cgroup": "0::/a/b\n",
      "proc/pressure/memory":
        "some avg10=9.00 avg60=0 avg300=0 total=1\nfull avg10=4.25 avg60=0.00 avg300=0.00 total=1\n",
      "sys/fs/cgroup/a/memory.max": `${1000 * mebibyte}\n`,
      "sys/fs/cgroup/a/memory.current": `${900 * mebibyte}\n`,
      "sys/fs/cgroup/a/memory.stat": `anon 5\ninactive_file ${200 * mebibyte}\nactive_file ${100 * mebibyte}\n`,
      "sys/fs/cgroup/a/b/memory.max": "max\n",
      "sys/fs/cgroup/a/b/memory.current": `${900 * mebibyte}\n`,
      "sys/fs/cgroup/a/b/cpu.max": "50000 100000\n"
    })
    assert.deepStrictEqual(found, { totalMemoryMiB: 1000, freeMemoryMiB: 400, cores: 0.5, memoryPressure: 4.25 })
  })

  it("cgroup v1, also where the host's path is not mounted", () => {
    const limits = {
      "memory.limit_in_bytes": `${2000 * mebibyte}\n`,
      "memory.usage_in_bytes": `${500 * mebibyte}\n`,
      "memory.stat": `inactive_file 7\ntotal_inactive_file ${mebibyte}\ntotal_active_file 0\n`
    }
    const at = (directory: string) =>
      Object.fromEntries(Object.entries(limits).map(([name, text]) => [`sys/fs/cgroup/${directory}/${name}`, text]))
    const cgroup = { "proc/self/cgroup": "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n0::/\n" }
    for (const directory of ["memory/docker/1", "memory"]) {
      const found = read({
        ...cgroup,
        ...at(directory),
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "25000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n"
      })
      assert.deepStrictEqual([found.totalMemoryMiB, found.freeMemoryMiB, found.cores], [2000, 1501, 0.25])
    }
    const unlimited = read({
      ...cgroup,
      ...at("memory"),
      "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"
    })
    assert.strictEqual(unlimited.totalMemoryMiB, 8000)
  })

  it("this host and this process", () => {
    const found = readHostResources()
    assert.isAbove(found.freeMemoryMiB, 0)
    assert.isAtLeast(found.totalMemoryMiB, found.freeMemoryMiB)
    assert.isAbove(found.cores, 0)
    if (process.platform === "linux") assert.isAbove(privateMemoryMiB(process.pid), 10)
    assert.strictEqual(privateMemoryMiB(2 ** 30), 0)
  })
})
