/** Snapshots and forks of real sessions: what comes along, what does not, what is fresh, and what can go wrong. */
import { assert, describe, layer } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { execFileSync, spawn } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import * as readline from "node:readline"
import { setTimeout } from "node:timers/promises"
import { fileURLToPath } from "node:url"
import { vi } from "vitest"
import * as Capacity from "../src/Capacity.ts"
import { Sandbox, type SessionOptions } from "../src/Sandbox.ts"
import { SandboxError } from "../src/SandboxError.ts"
import type { Session } from "../src/Session.ts"
import * as Copies from "../src/Snapshot.ts"
import { Snapshot, Snapshots, StoreLimit } from "../src/Snapshot.ts"
import { quickCodes, values } from "./support/generators.ts"
import { qemus } from "./support/processes.ts"
import { layerAt } from "./support/snapshots.ts"

const retry = (error: unknown) => (error instanceof SandboxError ? error.retry : undefined)

const home = fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-snapshots-"))
const store = path.join(home, "snapshots")

const here = Layer.effectDiscard(
  Effect.addFinalizer(() => Effect.sync(() => fs.rmSync(home, { recursive: true, force: true })))
).pipe(Layer.provideMerge(layerAt(home)))

const session = (options?: SessionOptions) => Sandbox.use((sandbox) => sandbox.session(options))
const python = (it: Session, code: string) => Effect.map(it.exec({ language: "python", code }), ({ stdout }) => stdout)
const bash = (it: Session, code: string) => Effect.map(it.exec({ language: "bash", code }), ({ stdout }) => stdout)
const javascript = (it: Session, code: string) =>
  Effect.map(it.exec({ language: "javascript", code }), ({ stdout }) => stdout)

const failureOf = <A, R>(effect: Effect.Effect<A, unknown, R>) =>
  Effect.map(Effect.flip(effect), (error) => {
    assert.instanceOf(error, SandboxError)
    return (error as SandboxError).reason
  })
const kindOf = <A, R>(effect: Effect.Effect<A, unknown, R>) =>
  Effect.map(failureOf(effect), (reason) => {
    assert.strictEqual(reason._tag, "SnapshotFailed", reason.message)
    return reason._tag === "SnapshotFailed" ? reason.kind : undefined
  })
/** What a descriptor of this process is open at; nothing for one that was closed meanwhile. */
const linkOf = (fd: string): string => {
  try {
    return fs.readlinkSync(`/proc/self/fd/${fd}`)
  } catch {
    return ""
  }
}
/** The descriptors of parked machines' files. */
const files = () => fs.readdirSync("/proc/self/fd").filter((fd) => linkOf(fd).startsWith(`${store}/.parked-`))
/** A process that has the store as well; see `support/shareSnapshots`. */
const another = (directory: string, from: string) =>
  Effect.map(
    Effect.acquireRelease(
      Effect.sync(() =>
        spawn(
          process.execPath,
          [fileURLToPath(new URL("./support/shareSnapshots.ts", import.meta.url)), directory, from],
          {
            stdio: ["pipe", "pipe", "inherit"]
          }
        )
      ),
      (child) => Effect.sync(() => child.kill("SIGKILL"))
    ),
    (child) => {
      const lines = readline.createInterface({ input: child.stdout })[Symbol.asyncIterator]()
      return {
        tell: () => void child.stdin.write("on\n"),
        says: Effect.map(
          Effect.promise(() => lines.next()),
          (line) => line.value
        )
      }
    }
  )
const leftovers = (directory = store): ReadonlyArray<string> =>
  fs.existsSync(directory) ? fs.readdirSync(directory).filter((name) => /^\.(building|removed)/.test(name)) : []

layer(here, { excludeTestServices: true, timeout: "240 seconds" })("Snapshot", (it) => {
  it.effect(
    "a session goes on from where it was saved, in as many copies as wanted, each for itself",
    () =>
      Effect.gen(function* () {
        const parent = yield* session({ env: { SECRET: "parent's" }, limits: { memoryMiB: 256 } })
        yield* python(
          parent,
          "import os\nx = 42\nopen('/tmp/open', 'w').write('abc'); f = open('/tmp/open'); f.read(2)"
        )
        // One that was started anew in this session, when SECRET was known.
        yield* Effect.flip(bash(parent, "kill -9 $BASHPID"))
        yield* bash(
          parent,
          'cd /tmp; v=(1 2); python3 -c \'import os, time\nn = 0\nwhile 1:\n  n += 1; open("/tmp/tick", "w").write(str(n)); os.rename("/tmp/tick", "/tmp/ticks"); time.sleep(0.2)\' & until test -s ticks; do sleep 0.05; done'
        )
        yield* javascript(parent, "const n = 7; crypto.randomUUID()")
        const spawned = yield* parent.spawn("echo $$ > /tmp/spawned; echo x; exec sleep 1000")
        yield* Stream.runHead(spawned.stdout)
        const snapshot = yield* parent.snapshot({ name: "work" })
        assert.deepStrictEqual(
          yield* Schema.decodeUnknownEffect(Snapshot)(JSON.parse(JSON.stringify(snapshot))),
          snapshot
        )
        assert.match(snapshot.id, /^snap-[0-9a-f]{16}$/)
        assert.deepInclude(snapshot, { name: "work", session: parent.id, parent: null, memoryMiB: 256 })
        assert.isAbove(snapshot.pausedMs, 0)
        assert.isAbove(snapshot.bytes, 32 * 1024 * 1024)
        assert.isBelow(snapshot.bytes, 384 * 1024 * 1024)
        const { list, verify } = yield* Snapshots
        assert.deepStrictEqual((yield* list).at(0), snapshot)
        assert.strictEqual(yield* verify("work"), undefined)

        const children = [
          yield* session({ from: snapshot, env: { SECRET: "first's" } }),
          yield* session({ from: "work", limits: { memoryMiB: 128, processes: 100 } })
        ]
        const secrets = ["first's", "None"]
        for (const [index, child] of children.entries()) {
          const looked = yield* child.exec({
            language: "python",
            code: "print(x, f.read(), os.environ.get('SECRET'))\nopen('/tmp/mine', 'x').write('1')"
          })
          assert.strictEqual(looked.stdout, `42 c ${secrets[index]}\n`)
          assert.deepStrictEqual(looked.receipt.startPath, { kind: "snapshot", from: snapshot.id, missed: [] })
          assert.strictEqual(looked.receipt.template, null)
          assert.strictEqual(looked.receipt.sequence, 1)
          assert.strictEqual(looked.receipt.limits.memoryBytes, (index === 0 ? 256 : 128) * 1024 * 1024)
          assert.strictEqual(
            yield* bash(child, 'echo "$PWD ${v[1]} ${SECRET-none}"'),
            `/tmp 2 ${index === 0 ? "first's" : "none"}\n`
          )
          assert.strictEqual(yield* javascript(child, "console.log(n)"), "7\n")
          // What somebody else had spawned runs on, too, with nobody to read it.
          yield* bash(child, "cat /tmp/ticks > /tmp/then; kill -0 $(cat /tmp/spawned)")
        }
        // The copies are each for itself, and the session has noticed nothing.
        assert.strictEqual(
          yield* python(parent, "print(x, f.read(), os.path.exists('/tmp/mine'), os.environ['SECRET'])"),
          "42 c False parent's\n"
        )
        yield* spawned.signal("SIGKILL")
        assert.strictEqual((yield* spawned.exit).signal, "SIGKILL")

        // Of a copy there can be copies, and the first snapshot may be gone by then.
        const second = children[1] ?? parent
        yield* python(second, "x += 1")
        const again = yield* second.snapshot()
        assert.deepInclude(again, { name: null, parent: snapshot.id, memoryMiB: 128 })
        yield* Snapshots.use((it) => it.remove("work"))
        yield* Effect.gen(function* () {
          const grandchild = yield* session({ from: again })
          assert.strictEqual(yield* python(grandchild, "print(x, f.tell(), open('/tmp/mine').read())"), "43 3 1\n")
          assert.strictEqual(yield* bash(grandchild, "kill -0 $(cat /tmp/spawned) && echo alive"), "alive\n")
        }).pipe(Effect.scoped)

        // Everything random differs between all of them.
        const all = [parent, ...children]
        for (const language of ["python", "javascript", "bash"] as const) {
          const seen = yield* Effect.forEach(all, (one) =>
            Effect.map(one.exec({ language, code: quickCodes[language] }), (result) =>
              values(language, language === "bash" ? result.stdout : result.result?.json)
            )
          )
          const names = Object.keys(seen[0] ?? {})
          assert.isAtLeast(names.length, 8)
          for (const name of names) {
            const shown = seen.map((it) => it[name])
            assert.isTrue(
              shown.every((value) => value !== undefined && value !== "" && value !== null),
              name
            )
            // The time of the kernel's start is part of the machine that was copied.
            if (name === "boot_id") continue
            assert.strictEqual(new Set(shown).size, shown.length, `${name}: ${JSON.stringify(shown)}`)
          }
        }
        for (const child of children) {
          assert.strictEqual(yield* bash(child, "test $(cat /tmp/ticks) -gt $(cat /tmp/then) && echo more"), "more\n")
          const now = Number(yield* bash(child, "echo $EPOCHREALTIME"))
          assert.isAtMost(Math.abs(now - Date.now() / 1000), 5)
        }
        yield* Snapshots.use((it) => it.remove(again.id))
        assert.deepStrictEqual(leftovers(), [])
      }).pipe(Effect.scoped),
    180_000
  )

  it.effect(
    "forks are sessions by themselves, of one moment, and leave nothing in the store",
    () =>
      Effect.gen(function* () {
        const parent = yield* session({ env: { A: "1" }, limits: { memoryMiB: 256, timeMs: 25_000 } })
        yield* bash(
          parent,
          "n=1; dd if=/dev/urandom of=/tmp/data bs=1M count=4 2> /dev/null; sha256sum < /tmp/data > /tmp/sum"
        )
        // One that is under way is interrupted in the copies, and ends as ever in the session.
        const started = yield* Deferred.make<void>()
        const under = yield* parent
          .stream({
            language: "python",
            code: "import time\nn = 0\nprint('start', flush=True)\nwhile n < 100:\n  n += 1; time.sleep(0.02)\nopen('/tmp/end', 'w')\nprint('end')"
          })
          .pipe(
            Stream.tap(() => Deferred.succeed(started, undefined)),
            Stream.runLast,
            Effect.forkScoped({ startImmediately: true })
          )
        yield* Deferred.await(started)
        const begun = yield* parent.spawn(["sleep", "60"])
        const forks = yield* parent.fork(2, { env: { B: "2" } })
        assert.deepStrictEqual(forks.map(Result.isSuccess), [true, true])
        const children = forks.map(Result.getOrThrow)
        const left = yield* Effect.forEach(children, (child, index) =>
          Effect.gen(function* () {
            yield* bash(child, `echo ${index} > /tmp/mine; n=$((n + ${index}))`)
            assert.strictEqual(
              yield* bash(
                child,
                "cat /tmp/mine; echo $n ${A-none} $B; sha256sum < /tmp/data | cmp - /tmp/sum && echo same"
              ),
              `${index}\n${1 + index} none 2\nsame\n`
            )
            assert.strictEqual(yield* bash(child, `kill -0 ${begun.pid} && echo alive`), "alive\n")
            const looked = yield* child.exec({ language: "python", code: "print(globals().get('n', 0) < 100)" })
            assert.deepStrictEqual(looked.receipt.startPath, { kind: "snapshot", from: parent.id, missed: [] })
            assert.strictEqual(looked.receipt.limits.timeMs, 25_000)
            return looked.stdout
          })
        )
        assert.deepStrictEqual(left, ["True\n", "True\n"])
        const last = Option.getOrUndefined(yield* Fiber.join(under))
        assert.strictEqual(last?._tag === "Done" ? last.result.stdout : undefined, "start\nend\n")
        assert.strictEqual(yield* bash(parent, "ls /tmp/mine 2> /dev/null; echo $n $A"), "1 1\n")
        const youngest = children[1] ?? parent
        const grandchildren = (yield* youngest.fork(1)).map(Result.getOrThrow)
        assert.strictEqual(
          yield* bash(grandchildren[0] ?? parent, "cat /tmp/mine; echo $n $B; ls /tmp/end 2> /dev/null || true"),
          "1\n2 2\n"
        )
        assert.deepStrictEqual(leftovers(), [])
      }).pipe(Effect.scoped),
    180_000
  )

  it.effect(
    "race: the first child that satisfies wins and the others are gone; promote: it takes its parent's place",
    () =>
      Effect.gen(function* () {
        const before = new Set(qemus())
        const ours = () => qemus().filter((pid) => !before.has(pid)).length
        const parent = yield* session({ limits: { memoryMiB: 256 } })
        yield* bash(parent, "n=20")
        const attempts = [
          (child: Session) => bash(child, "echo $((n + 1))"),
          (child: Session) => bash(child, "sleep 60"),
          (child: Session) => bash(child, "sleep 0.5; n=$((n + 22)); echo $n")
        ]
        const winner = Option.getOrThrow(yield* Copies.race(parent, attempts, (text) => text === "42\n"))
        assert.deepInclude(winner, { index: 2, value: "42\n" })
        assert.strictEqual(ours(), 2)
        assert.deepStrictEqual(yield* Copies.race(parent, attempts.slice(0, 1), () => false), Option.none())
        const error = yield* Effect.flip(Copies.race(parent, [(child) => bash(child, "exit 3")]))
        assert.strictEqual(error._tag, "TaskFailed")
        const promoted = yield* Copies.promote(parent, winner.session)
        assert.strictEqual(ours(), 1)
        assert.strictEqual((yield* Capacity.Capacity.use((it) => it.stats)).held.vms, 1)
        assert.strictEqual(yield* bash(promoted, "echo $n"), "42\n")
        assert.strictEqual((yield* failureOf(bash(parent, "echo")))._tag, "SessionClosed")
      }).pipe(Effect.scoped)
  )

  it.effect("a parked session has no process, and goes on as it was when it is used", () =>
    Effect.gen(function* () {
      const before = new Set(qemus())
      const ours = () => qemus().filter((pid) => !before.has(pid))
      const held = Capacity.Capacity.use((it) => Effect.map(it.stats, (stats) => stats.held.vms))
      const parent = yield* session({ env: { A: "1" }, limits: { memoryMiB: 256 } })
      const asleep = Effect.gen(function* () {
        // A connection that has ended here may still be one there.
        yield* Effect.repeat(parent.park, { until: (parked) => parked, schedule: Schedule.spaced("5 millis") })
        assert.deepStrictEqual([ours(), yield* held, files().length], [[], 0, 1])
        assert.deepStrictEqual(
          fs.readdirSync(store).filter((name) => name.startsWith(".parked")),
          []
        )
      })
      yield* python(parent, "import os, random\nrandom.seed(5); first = random.random()")
      yield* bash(parent, "cd /tmp; v=(1 2)")
      // Something that runs in the background: it counts, it serves, and it writes when it is told to.
      yield* javascript(
        parent,
        `const fs = require("node:fs"), http = require("node:http"), n = 7; let ticks = 0
        setInterval(() => { if (ticks++ >= 0 && fs.existsSync("/tmp/go")) { fs.rmSync("/tmp/go"); console.log("late") } }, 20)
        http.createServer((_, answer) => answer.end(String(ticks))).listen(8000)`
      )
      const { port } = yield* parent.ports.expose(8000)
      const ask = Effect.promise(() =>
        fetch(`http://127.0.0.1:${port}/`, { headers: { connection: "close" } }).then((answer) => answer.text())
      )
      const then = Number(yield* ask)
      const mark = yield* parent.mark
      const names = yield* bash(parent, "cat /etc/machine-id /proc/sys/kernel/hostname; echo $$ $PWD ${v[1]}")
      yield* Effect.gen(function* () {
        yield* parent.spawn(["sleep", "1000"])
        assert.isFalse(yield* parent.park)
      }).pipe(Effect.scoped)
      yield* asleep
      const woken = yield* parent.exec({ language: "python", code: "print(random.random(), os.environ['A'])" })
      assert.strictEqual(woken.stdout, "0.7417869892607294 1\n")
      assert.isAbove(woken.receipt.timing.wakeMs ?? 0, 0)
      assert.deepStrictEqual([ours().length, yield* held, files()], [1, 1, []])
      assert.strictEqual(
        yield* bash(parent, "cat /etc/machine-id /proc/sys/kernel/hostname; echo $$ $PWD ${v[1]}"),
        names
      )
      const now = Number(yield* bash(parent, "echo $EPOCHREALTIME"))
      assert.isAtMost(Math.abs(now - Date.now() / 1000), 5)
      // Whatever is asked of it wakes it, also from outside.
      yield* asleep
      assert.isAbove(Number(yield* ask), then)
      yield* asleep
      yield* parent.files.write("/tmp/go", "")
      const late = yield* Stream.runHead(parent.output)
      assert.deepStrictEqual(Option.getOrUndefined(late), { _tag: "Stdout", sequence: 3, bytes: Buffer.from("late\n") })
      const { files: changed } = yield* parent.changes({ since: mark, patches: false })
      assert.deepStrictEqual(changed, [])
      // What is copied of it is what it is now.
      yield* asleep
      const [child] = (yield* parent.fork(1)).map(Result.getOrThrow)
      assert.strictEqual(yield* javascript(child ?? parent, "console.log(n, ticks > 0)"), "7 true\n")
      yield* (child ?? parent).close

      // Who kills its QEMU while it wakes has changed nothing: it can be woken again.
      yield* asleep
      const waking = yield* Effect.forkScoped(Effect.flip(bash(parent, "echo")), { startImmediately: true })
      yield* Effect.sync(ours).pipe(
        Effect.tap(([pid]) => Effect.sync(() => pid !== undefined && process.kill(pid, "SIGKILL"))),
        Effect.repeat({ until: (pids) => pids.length > 0, schedule: Schedule.spaced("1 millis") })
      )
      assert.strictEqual(retry(yield* Fiber.join(waking)), "safe")
      assert.strictEqual(yield* bash(parent, "echo ${v[1]}"), "2\n")
      // Also at the moment when its memory is put back.
      yield* asleep
      const open = fs.promises.open.bind(fs.promises)
      const opened = vi.spyOn(fs.promises, "open").mockImplementationOnce(async (...args) => {
        const memory = await open(...args)
        for (const pid of ours()) process.kill(pid, "SIGKILL")
        while (ours().length > 0) await setTimeout(1)
        return memory
      })
      assert.strictEqual(retry(yield* Effect.flip(bash(parent, "echo"))), "safe")
      assert.match(String(opened.mock.calls[0]?.[0]), /^\/proc\/\d+\/mem$/)
      opened.mockRestore()
      assert.strictEqual(yield* bash(parent, "echo ${v[1]}"), "2\n")
      // A file that is not what was written is not run, and the session is over.
      yield* asleep
      fs.ftruncateSync(Number(files()[0]), 1_000_000)
      assert.strictEqual(yield* kindOf(bash(parent, "echo")), "damaged")
      assert.deepStrictEqual([ours(), yield* held, files()], [[], 0, []])
      yield* Effect.flip(bash(parent, "echo"))
      // One that ends while it is parked leaves nothing.
      yield* Effect.gen(function* () {
        const other = yield* session({ parkAfterMs: 1, limits: { memoryMiB: 256 } })
        yield* Effect.sync(() => files().length).pipe(
          Effect.repeat({ until: (count) => count === 1, schedule: Schedule.spaced("5 millis") })
        )
        yield* other.close
        assert.deepStrictEqual([ours(), files()], [[], []])
      }).pipe(Effect.scoped)
    }).pipe(Effect.scoped)
  )

  describe("bad input and faults", () => {
    it.effect("are typed, and the session runs on", () =>
      Effect.gen(function* () {
        const parent = yield* session({ limits: { memoryMiB: 256 } })
        yield* bash(parent, "n=1")
        for (const n of [0, -1, 1.5, 101, 1000]) {
          assert.strictEqual((yield* failureOf(Effect.scoped(parent.fork(n))))._tag, "InvalidInput", `${n}`)
        }
        for (const name of ["", "-x", "a/b", "..", "x".repeat(65), "snap-0123456789abcdef"]) {
          assert.strictEqual((yield* failureOf(parent.snapshot({ name })))._tag, "InvalidInput", name)
        }
        assert.strictEqual(yield* kindOf(session({ from: "nobody" })), "unknown")
        assert.strictEqual(yield* kindOf(session({ from: "../../etc" })), "unknown")

        const one = yield* parent.snapshot({ name: "one" })
        assert.strictEqual(yield* kindOf(parent.snapshot({ name: "one" })), "exists")
        const tooMuch = yield* failureOf(session({ from: "one", limits: { memoryMiB: 512 } }))
        assert.deepInclude(tooMuch, { _tag: "InvalidInput", field: "limits.memoryMiB" })

        const directory = path.join(store, one.id)
        const manifest = path.join(directory, "manifest.json")
        const kept = fs.readFileSync(manifest, "utf8")
        // Another QEMU has another key; so has another kind of host.
        fs.writeFileSync(manifest, kept.replace(/"machine": "[0-9a-f]+"/, `"machine": "${"0".repeat(32)}"`))
        assert.strictEqual(yield* kindOf(session({ from: "one" })), "foreign")
        fs.writeFileSync(manifest, kept.replaceAll(one.image, "0".repeat(32)))
        assert.strictEqual(yield* kindOf(session({ from: "one" })), "foreign")
        fs.writeFileSync(manifest, kept)
        const whole = yield* session({ from: "one" })
        const ram = fs.openSync(path.join(directory, "ram"), "r+")
        fs.writeSync(ram, Buffer.from([0x5a]), 0, 1, 4096)
        fs.closeSync(ram)
        assert.strictEqual(yield* kindOf(session({ from: one })), "damaged")
        assert.strictEqual(yield* Snapshots.use((it) => it.verify("one")), "ram was changed")
        fs.writeFileSync(manifest, "{")
        assert.strictEqual(yield* kindOf(session({ from: one.id })), "damaged")
        assert.strictEqual(yield* kindOf(Snapshots.use((it) => it.remove(one.id))), "damaged")
        assert.strictEqual(yield* kindOf(session({ from: one.id })), "unknown")
        assert.strictEqual(yield* kindOf(Snapshots.use((it) => it.remove(one.id))), "unknown")
        assert.strictEqual(yield* bash(whole, "echo $n"), "1\n")

        // Interrupted at whatever point: nothing is left, and the session runs on.
        const others = new Set(qemus())
        for (const ms of [5, 60, 150, 300, 600]) {
          yield* Effect.ignore(Effect.timeout(Effect.scoped(parent.fork(1)), ms))
          assert.deepStrictEqual(leftovers(), [], `${ms}`)
          assert.deepStrictEqual(
            qemus().filter((pid) => !others.has(pid)),
            [],
            `${ms}`
          )
        }
        assert.strictEqual(yield* bash(parent, "echo $n"), "1\n")
      }).pipe(Effect.scoped)
    )

    it.effect("a VM that is killed meanwhile fails the snapshot and closes the session", () =>
      Effect.gen(function* () {
        const before = new Set(qemus())
        const parent = yield* session({ limits: { memoryMiB: 256 } })
        yield* bash(parent, "echo")
        const pid = qemus().find((it) => !before.has(it)) ?? 0
        // The second QEMU, which has a place of its own, is not the session.
        const failing = yield* Effect.forkScoped(kindOf(Effect.scoped(parent.fork(1))), { startImmediately: true })
        const second = yield* Effect.sync(() => qemus().find((it) => !before.has(it) && it !== pid)).pipe(
          Effect.repeat({ until: (it) => it !== undefined, schedule: Schedule.spaced("1 millis") })
        )
        assert.strictEqual((yield* Capacity.Capacity.use((it) => it.stats)).held.vms, 2)
        process.kill(second ?? 0, "SIGKILL")
        assert.strictEqual(yield* Fiber.join(failing), "capture")
        assert.deepStrictEqual(leftovers(), [])
        assert.strictEqual((yield* Capacity.Capacity.use((it) => it.stats)).held.vms, 1)
        yield* bash(parent, "echo")
        const forking = yield* Effect.forkScoped(Effect.exit(Effect.scoped(parent.fork(1))), { startImmediately: true })
        yield* Effect.sync(() => leftovers().length > 0).pipe(
          Effect.repeat({ until: (it) => it, schedule: Schedule.spaced("1 millis") })
        )
        process.kill(pid, "SIGKILL")
        const exit = yield* Fiber.join(forking)
        assert.isTrue(Exit.isFailure(exit))
        assert.deepStrictEqual(leftovers(), [])
        yield* Effect.flip(bash(parent, "echo"))
        assert.strictEqual((yield* failureOf(Effect.scoped(parent.fork(1))))._tag, "SessionClosed")
        assert.deepStrictEqual(
          qemus().filter((it) => !before.has(it)),
          []
        )
      }).pipe(Effect.scoped)
    )

    it.effect(
      "two processes save, load, list and remove in one store, and each sees what the other did, or nothing",
      () =>
        Effect.gen(function* () {
          const store = path.join(home, "shared")
          yield* Effect.gen(function* () {
            const { list, remove, verify } = yield* Snapshots
            const parent = yield* session({ limits: { memoryMiB: 128 } })
            yield* python(parent, "x = 42")
            yield* parent.snapshot({ name: "first" })
            const other = yield* another(store, "first")
            const mine = yield* session({ from: "first" })
            assert.strictEqual(yield* python(mine, "x += 2; print(x)"), "44\n")
            assert.strictEqual(yield* other.says, "first: 43")

            // Both save under one name at once: one of them has it, and what is stored is that one's.
            other.tell()
            const saved = yield* Effect.match(mine.snapshot({ name: "both" }), {
              onSuccess: () => "took it",
              onFailure: ({ reason }) => (reason._tag === "SnapshotFailed" ? reason.kind : reason._tag)
            })
            const theirs = yield* other.says
            assert.sameMembers([saved, theirs], ["took it", "exists"])
            assert.isUndefined(yield* verify("both"))
            const child = yield* session({ from: "both" })
            assert.strictEqual(yield* python(child, "print(x)"), saved === "took it" ? "44\n" : "43\n")

            // What is removed here is gone there, and who had started from it runs on.
            yield* remove("first")
            assert.strictEqual(yield* kindOf(session({ from: "first" })), "unknown")
            other.tell()
            assert.strictEqual(yield* other.says, "both: 43, whole")
            assert.strictEqual(yield* python(mine, "print(x)"), "44\n")
            yield* remove("both")
            assert.deepStrictEqual([yield* list, leftovers(path.join(store, "snapshots"))], [[], []])
          }).pipe(Effect.scoped, Effect.provide(layerAt(store)))
        })
    )

    it.effect("a full store and a full disk say so", () =>
      Effect.gen(function* () {
        const before = yield* Snapshots.use((it) => it.list)
        const other = fs.mkdtempSync(path.join(os.tmpdir(), "exec-sandbox-full-"))
        execFileSync("mount", ["-t", "tmpfs", "-o", "size=60m", "tmpfs", other])
        yield* Effect.addFinalizer(() => Effect.sync(() => execFileSync("umount", ["-l", other])))
        yield* Effect.gen(function* () {
          const parent = yield* session({ limits: { memoryMiB: 256 } })
          yield* bash(parent, "n=1")
          assert.strictEqual(yield* kindOf(parent.snapshot()), "store-full")
          assert.strictEqual(yield* kindOf(Effect.scoped(parent.fork(1))), "store-full")
          assert.deepStrictEqual(leftovers(path.join(other, "snapshots")), [])
          assert.throws(() => fs.writeFileSync(path.join(other, "full"), Buffer.alloc(61 * 1024 * 1024)), "ENOSPC")
          assert.strictEqual(yield* kindOf(parent.park), "store-full")
          assert.strictEqual(yield* bash(parent, "echo $n"), "1\n")
        }).pipe(Effect.scoped, Effect.provide(layerAt(other)))
        yield* Effect.gen(function* () {
          const parent = yield* session({ limits: { memoryMiB: 256 } })
          assert.strictEqual(yield* kindOf(parent.snapshot()), "store-full")
          assert.strictEqual(yield* kindOf(parent.park), "store-full")
          assert.deepStrictEqual(yield* Snapshots.use((it) => it.list), before)
          assert.deepStrictEqual(leftovers(), [])
        }).pipe(
          Effect.scoped,
          Effect.provide(layerAt(home).pipe(Layer.provide(Layer.succeed(StoreLimit, 1024 * 1024))))
        )
      }).pipe(Effect.scoped)
    )
  })
})
