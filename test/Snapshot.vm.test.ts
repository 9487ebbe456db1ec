/** Snapshots and forks of real sessions: what a copy contains, and what is new in it. */
import { assert, layer } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as Capacity from "../src/Capacity.ts"
import type { Session } from "../src/Session.ts"
import * as Copies from "../src/Snapshot.ts"
import { Snapshot, Snapshots } from "../src/Snapshot.ts"
import { bash, failureOf, javascript, leftovers, makeStore, python, session } from "./support/copies.ts"
import { quickCodes, values } from "./support/generators.ts"
import { qemus } from "./support/processes.ts"

const { layer: shared, store } = makeStore()

layer(shared, { excludeTestServices: true, timeout: "240 seconds" })("Snapshot", (it) => {
  it.effect(
    "sessions started from a snapshot continue where it was taken, and do not affect each other",
    () =>
      Effect.gen(function* () {
        const parent = yield* session({ env: { SECRET: "parent's" }, limits: { memoryMiB: 256 } })
        yield* python(
          parent,
          "import os\nx = 42\nopen('/tmp/open', 'w').write('abc'); f = open('/tmp/open'); f.read(2)"
        )
        // A bash that was started again in this session, with SECRET in its environment.
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
          // The program that the parent spawned continues in the copy, too, although it has no handle there.
          yield* bash(child, "cat /tmp/ticks > /tmp/then; kill -0 $(cat /tmp/spawned)")
        }
        // The copies are independent, and the session has not changed.
        assert.strictEqual(
          yield* python(parent, "print(x, f.read(), os.path.exists('/tmp/mine'), os.environ['SECRET'])"),
          "42 c False parent's\n"
        )
        yield* spawned.signal("SIGKILL")
        assert.strictEqual((yield* spawned.exit).signal, "SIGKILL")

        // A copy can be copied again, also when the first snapshot has been removed.
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
            // The kernel's boot id is part of the machine that was copied.
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
        assert.deepStrictEqual(leftovers(store), [])
      }).pipe(Effect.scoped),
    180_000
  )

  it.effect(
    "forks are independent sessions, copied at the same moment, and leave nothing in the store",
    () =>
      Effect.gen(function* () {
        const parent = yield* session({ env: { A: "1" }, limits: { memoryMiB: 256, timeMs: 25_000 } })
        yield* bash(
          parent,
          "n=1; dd if=/dev/urandom of=/tmp/data bs=1M count=4 2> /dev/null; sha256sum < /tmp/data > /tmp/sum"
        )
        // An execution in progress is interrupted in the copies, and ends normally in the session.
        const started = yield* Deferred.make<void>()
        const running = yield* parent
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
        const last = Option.getOrUndefined(yield* Fiber.join(running))
        assert.strictEqual(last?._tag === "Done" ? last.result.stdout : undefined, "start\nend\n")
        assert.strictEqual(yield* bash(parent, "ls /tmp/mine 2> /dev/null; echo $n $A"), "1 1\n")
        const youngest = children[1] ?? parent
        const grandchildren = (yield* youngest.fork(1)).map(Result.getOrThrow)
        assert.strictEqual(
          yield* bash(grandchildren[0] ?? parent, "cat /tmp/mine; echo $n $B; ls /tmp/end 2> /dev/null || true"),
          "1\n2 2\n"
        )
        assert.deepStrictEqual(leftovers(store), [])
      }).pipe(Effect.scoped),
    180_000
  )

  it.effect(
    "race: the first child that satisfies wins, and the others are destroyed; promote: it replaces its parent",
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
})
