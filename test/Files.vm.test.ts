/**
 * Files of real guests: contents, identity, directories, watches, copies and bounds. They stay in one file because they share the
 * helpers below and one warm layer, so that a test costs a clone.
 */
import { assert, describe, layer } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { execFileSync } from "node:child_process"
import { createHash, randomBytes } from "node:crypto"
import * as fs from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { crc32 } from "node:zlib"
import type { Change, FileError, FileFailure } from "../src/Files.ts"
import { Sandbox } from "../src/Sandbox.ts"
import type { Session } from "../src/Session.ts"

const session = Sandbox.use((sandbox) => sandbox.session())

/** Runs a test in a session of its own. */
const withSession = <A, E>(test: (it: Session) => Effect.Effect<A, E, Scope.Scope>) =>
  Effect.scoped(Effect.flatMap(session, test))

const bash = (it: Session, code: string) => it.exec({ language: "bash", code })
const python = (it: Session, code: string) => it.exec({ language: "python", code })

/** The `FileError` that an operation fails with. */
const refused = <A>(effect: Effect.Effect<A, FileFailure>): Effect.Effect<FileError, A | FileFailure> =>
  Effect.filterOrFail(
    Effect.flip(effect),
    (error) => error._tag === "FileError",
    (error) => error
  )
const reason = <A>(effect: Effect.Effect<A, FileFailure>) =>
  Effect.map(refused(effect), (error) => error.reason).pipe(Effect.timeout("10 seconds"))
const tag = <A>(effect: Effect.Effect<A, FileFailure>) => Effect.map(reason(effect), (it) => it._tag)

const sha256 = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex")

const temporary = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(join(tmpdir(), "exec-sandbox-files-"))),
  (directory) => Effect.sync(() => fs.rmSync(directory, { recursive: true, force: true }))
)

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("Files", (it) => {
  describe("read and write", () => {
    it.effect("text, bytes of all values and streams come back as they were; relative paths start at the home", () =>
      withSession((s) =>
        Effect.gen(function* () {
          yield* s.files.write("a.txt", "grüße\n")
          assert.strictEqual(yield* s.files.readText("/home/user/a.txt"), "grüße\n")
          assert.strictEqual(
            (yield* bash(s, "cat a.txt; id -un; stat -c '%U %G %a' a.txt")).stdout,
            "grüße\nuser\nuser user 644\n"
          )
          const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i))
          yield* s.files.write("b", bytes, { mode: 0o600 })
          assert.isTrue(bytes.equals(yield* s.files.read("b")))
          assert.strictEqual((yield* s.files.stat("b")).mode, 0o600)
          yield* s.files.write("x/y/c", Stream.make(bytes, new Uint8Array(), bytes), { createParents: true })
          assert.isTrue(Buffer.concat([bytes, bytes]).equals(yield* s.files.read("x/y/c")))
          const part = yield* Stream.runCollect(s.files.stream("b", { offset: 250, length: 3 }))
          assert.strictEqual(Buffer.concat(part).toString("hex"), "fafbfc")
          yield* s.files.write("empty", "")
          assert.strictEqual((yield* s.files.read("empty")).length, 0)
        })
      )
    )

    it.effect(
      "64 MiB up and down are equal by hash, and memory is bounded by maxBytes",
      () =>
        withSession((s) =>
          Effect.gen(function* () {
            const bytes = randomBytes(64 * 1024 * 1024)
            yield* s.files.write("big", bytes)
            // A hash of 64 MiB takes half a minute in an emulated guest; a checksum does not.
            const sum = yield* python(s, "import zlib\nprint(zlib.crc32(open('big', 'rb').read()))")
            assert.strictEqual(sum.stdout, `${crc32(bytes)}\n`)
            assert.strictEqual(sha256(yield* s.files.read("big")), sha256(bytes))
            assert.deepStrictEqual(yield* reason(s.files.read("big", { maxBytes: 1000 })), {
              _tag: "TooLarge",
              allowed: 1000,
              observed: 64 * 1024 * 1024,
              unit: "bytes"
            })
            // A file of exactly `maxBytes` is read.
            assert.strictEqual((yield* s.files.read("big", { maxBytes: 64 * 1024 * 1024 })).length, bytes.length)
          })
        ),
      240_000
    )

    it.effect("a write replaces a file in one step: a link stays, the mode is kept, and no draft is left", () =>
      withSession((s) =>
        Effect.gen(function* () {
          yield* bash(s, "mkdir d; echo old > d/f; chmod 751 d/f; ln -s d/f link; ln -s nothing dangling")
          yield* s.files.write("link", "new")
          assert.strictEqual(
            (yield* bash(s, "cat d/f; stat -c ' %a' d/f; readlink link; ls -A d")).stdout,
            "new 751\nd/f\nf\n"
          )
          yield* s.files.write("dangling", "made")
          assert.strictEqual(yield* s.files.readText("nothing"), "made")
        })
      )
    )

    it.effect("a cancelled or failed write leaves the old file, and no draft", () =>
      withSession((s) =>
        Effect.gen(function* () {
          yield* s.files.makeDirectory("d")
          yield* s.files.write("d/f", "old")
          const sent = yield* Deferred.make<void>()
          const endless = Stream.make(randomBytes(1024 * 1024)).pipe(
            Stream.concat(Stream.fromEffect(Effect.andThen(Deferred.succeed(sent, undefined), Effect.never)))
          )
          const writing = yield* Effect.forkChild(s.files.write("d/f", endless), { startImmediately: true })
          yield* Deferred.await(sent)
          assert.strictEqual(yield* s.files.readText("d/f"), "old")
          yield* Fiber.interrupt(writing)
          const gone = yield* Effect.flip(
            s.files.write("d/f", Stream.concat(Stream.make(randomBytes(10)), Stream.fail("no more" as const)))
          )
          assert.strictEqual(gone, "no more")
          yield* s.files.list("d").pipe(
            Effect.map((entries) => entries.map((entry) => entry.name)),
            Effect.repeat({ until: (names) => names.length === 1, schedule: Schedule.spaced("20 millis") }),
            Effect.timeout("10 seconds")
          )
          assert.strictEqual(yield* s.files.readText("d/f"), "old")
          // A write that cannot succeed fails at once, however slow its content comes.
          const slow = Stream.concat(Stream.make(randomBytes(10)), Stream.never)
          assert.strictEqual((yield* reason(s.files.write("no/f", slow)))._tag, "NotFound")
          assert.strictEqual((yield* reason(s.files.write("d", Stream.never)))._tag, "IsADirectory")
        })
      )
    )

    it.effect("a full disk is reported with the free bytes, and the old file stays", () =>
      withSession((s) =>
        Effect.gen(function* () {
          const { stdout } = yield* python(
            s,
            "import os, shutil\nopen('/dev/shm/f', 'w').write('old')\n" +
              "free = shutil.disk_usage('/dev/shm').free\n" +
              "os.posix_fallocate(os.open('/dev/shm/fill', os.O_CREAT | os.O_WRONLY), 0, free - 8192)\nprint(free)"
          )
          assert.isAbove(Number(stdout), 1024 * 1024)
          const full = yield* reason(s.files.write("/dev/shm/f", randomBytes(1024 * 1024)))
          assert.strictEqual(full._tag, "DiskFull")
          assert.isAtMost(full._tag === "DiskFull" ? (full.free ?? Number.NaN) : Number.NaN, 8192)
          assert.strictEqual(yield* s.files.readText("/dev/shm/f"), "old")
          assert.deepStrictEqual(
            (yield* s.files.list("/dev/shm")).map((entry) => entry.name),
            ["f", "fill"]
          )
        })
      )
    )

    it.effect("files that cannot be read or written fail at once, each with its own reason", () =>
      withSession((s) =>
        Effect.gen(function* () {
          yield* bash(
            s,
            "mkfifo fifo; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"; mkdir d; echo x > f; " +
              "ln -s loop2 loop1; ln -s loop1 loop2; ln -s fifo tofifo; echo 1 > locked; chmod 0 locked; mkdir shut; chmod 0 shut; " +
              "echo x > readonly; chmod 444 readonly"
          )
          const { files } = s
          assert.deepStrictEqual(yield* reason(files.read("fifo")), { _tag: "NotAFile", type: "fifo" })
          assert.deepStrictEqual(yield* reason(files.read("tofifo")), { _tag: "NotAFile", type: "fifo" })
          assert.deepStrictEqual(yield* reason(files.write("fifo", "x")), { _tag: "NotAFile", type: "fifo" })
          assert.deepStrictEqual(yield* reason(files.read("sock")), { _tag: "NotAFile", type: "socket" })
          for (const device of ["/dev/zero", "/dev/full", "/dev/tty"]) {
            assert.deepStrictEqual(yield* reason(files.read(device)), { _tag: "NotAFile", type: "character-device" })
            assert.deepStrictEqual(yield* reason(files.write(device, "x")), {
              _tag: "NotAFile",
              type: "character-device"
            })
          }
          assert.strictEqual(yield* tag(files.read("d")), "IsADirectory")
          assert.strictEqual(yield* tag(files.write("d", "x")), "IsADirectory")
          assert.strictEqual(yield* tag(files.write("new/", "x")), "IsADirectory")
          assert.strictEqual(yield* tag(files.read("missing")), "NotFound")
          assert.strictEqual(yield* tag(files.write("missing/f", "x")), "NotFound")
          assert.strictEqual(yield* tag(files.read("f/below")), "NotADirectory")
          assert.strictEqual(yield* tag(files.list("f")), "NotADirectory")
          assert.strictEqual(yield* tag(files.read("loop1")), "Loop")
          assert.strictEqual(yield* tag(files.write("loop1", "x")), "Loop")
          assert.strictEqual(yield* tag(files.read("n".repeat(256))), "NameTooLong")
          assert.strictEqual(yield* tag(files.read("n/".repeat(3000))), "NameTooLong")
          for (const denied of [
            files.read("locked"),
            files.list("shut"),
            files.read("shut/x"),
            files.read("/etc/shadow"),
            files.write("/etc/passwd", "x"),
            files.write("/etc/new", "x"),
            files.write("readonly", "x")
          ]) {
            const why = yield* reason(Effect.asVoid(denied))
            assert.deepStrictEqual(why, {
              _tag: "PermissionDenied",
              rule: "EACCES",
              grant: 'use { user: "root" }, which has more rights'
            })
          }
          assert.strictEqual(yield* files.readText("readonly"), "x\n")
          assert.include(yield* files.readText("/etc/shadow", { user: "root" }), "root:")
          const error = yield* refused(files.read("fifo"))
          assert.strictEqual(error.message, 'read "fifo": it is a fifo, not a file')
        })
      )
    )

    it.effect("files of /proc are read to their end, and a growing file up to its size when it was opened", () =>
      withSession((s) =>
        Effect.gen(function* () {
          assert.include(yield* s.files.readText("/proc/meminfo"), "MemTotal:")
          assert.strictEqual(
            yield* s.files
              .readText("/sys/kernel/mm/transparent_hugepage/enabled")
              .pipe(Effect.map((it) => it.endsWith("\n"))),
            true
          )
          yield* python(
            s,
            "import threading\nstop = False\nf = open('growing', 'wb', buffering=0)\nf.write(b'0' * 1_000_000)\n" +
              "def grow():\n  while not stop: f.write(b'1' * 65536)\nthreading.Thread(target=grow, daemon=True).start()"
          )
          const { size } = yield* s.files.stat("growing")
          const read = yield* Stream.runFold(
            s.files.stream("growing"),
            () => 0,
            (sum, bytes) => sum + bytes.length
          ).pipe(Effect.timeout("30 seconds"))
          const after = yield* s.files.stat("growing")
          assert.isAtLeast(read, size)
          assert.isBelow(read, after.size)
          yield* python(s, "stop = True")
        })
      )
    )

    it.effect("a file that is replaced while it is read is read as it was", () =>
      withSession((s) =>
        Effect.gen(function* () {
          const old = randomBytes(4 * 1024 * 1024)
          yield* s.files.write("f", old)
          let replaced = false
          const read = yield* s.files.stream("f").pipe(
            Stream.tap(() =>
              replaced
                ? Effect.void
                : Effect.andThen(
                    s.files.write("f", "new"),
                    Effect.sync(() => (replaced = true))
                  )
            ),
            Stream.runCollect
          )
          assert.isTrue(old.equals(Buffer.concat(read)))
          assert.strictEqual(yield* s.files.readText("f"), "new")
        })
      )
    )

    it.effect("a reader that stops reading blocks no other operation", () =>
      withSession((s) =>
        Effect.gen(function* () {
          yield* s.files.write("big", randomBytes(16 * 1024 * 1024))
          const stuck = yield* Deferred.make<void>()
          const reading = yield* Effect.forkChild(
            Stream.runForEach(s.files.stream("big"), () =>
              Effect.andThen(Deferred.succeed(stuck, undefined), Effect.never)
            ),
            { startImmediately: true }
          )
          yield* Deferred.await(stuck)
          yield* s.files.write("small", "x").pipe(Effect.timeout("10 seconds"))
          assert.strictEqual(yield* s.files.readText("small").pipe(Effect.timeout("10 seconds")), "x")
          assert.strictEqual((yield* bash(s, "echo ok")).stdout, "ok\n")
          yield* Fiber.interrupt(reading)
        })
      )
    )
  })

  describe("identity", () => {
    it.effect("a link planted by user code leads nowhere that user code cannot go", () =>
      withSession((s) =>
        Effect.gen(function* () {
          yield* bash(
            s,
            "ln -s /etc/shadow shadow; ln -s /etc/passwd passwd; ln -s /etc etc; ln -s /proc/1/environ init; ln -s /proc/1/root/etc/shadow root"
          )
          const before = (yield* bash(s, "sha256sum /etc/passwd")).stdout
          assert.strictEqual(yield* tag(s.files.read("shadow")), "PermissionDenied")
          assert.strictEqual(yield* tag(s.files.write("passwd", "x")), "PermissionDenied")
          assert.strictEqual(yield* tag(s.files.write("etc/new", "x")), "PermissionDenied")
          assert.strictEqual(yield* tag(s.files.remove("etc/passwd")), "PermissionDenied")
          assert.include(["PermissionDenied", "NotFound"], yield* tag(s.files.read("init")))
          assert.include(["PermissionDenied", "NotFound"], yield* tag(s.files.read("root")))
          assert.strictEqual((yield* bash(s, "sha256sum /etc/passwd")).stdout, before)
        })
      )
    )

    it.effect("the process that does the work has no privilege, in any thread, and user code cannot touch it", () =>
      withSession((s) =>
        Effect.gen(function* () {
          const tasks = yield* s.files.list("/proc/self/task")
          assert.isAbove(tasks.length, 1)
          for (const { name } of tasks) {
            const status = yield* s.files.readText(`/proc/self/task/${name}/status`)
            assert.match(status, /^Uid:\t64999\t1000\t64999\t1000$/m)
            assert.match(status, /^Gid:\t1000\t1000\t1000\t1000$/m)
            assert.match(status, /^Groups:\t ?$/m)
            assert.match(status, /^CapPrm:\t0+$/m)
            assert.match(status, /^CapEff:\t0+$/m)
          }
          const open = yield* s.files.list("/proc/self/fd")
          assert.notInclude(open.map((it) => it.target).join(" "), "vport")
          const pid = (yield* s.files.readText("/proc/self/stat")).split(" ")[0]
          // The second command also ends the shell itself. Only the helper's survival matters.
          assert.strictEqual((yield* bash(s, `kill -STOP ${pid} 2>/dev/null; echo $?`)).stdout, "1\n")
          yield* Effect.exit(bash(s, "kill -9 -1"))
          assert.strictEqual((yield* s.files.readText("/proc/self/stat")).split(" ")[0], pid)
          assert.strictEqual(yield* tag(s.files.read("/proc/self/mem")), "PermissionDenied")
        })
      )
    )

    it.effect("root is used only when it is requested", () =>
      withSession((s) =>
        Effect.gen(function* () {
          yield* s.files.write("/etc/made", "by root", { user: "root" })
          const made = yield* s.files.stat("/etc/made")
          assert.deepStrictEqual([made.uid, made.gid, made.mode], [0, 0, 0o644])
          assert.strictEqual(yield* tag(s.files.remove("/etc/made")), "PermissionDenied")
          yield* s.files.remove("/etc/made", { user: "root" })
          assert.isFalse(yield* s.files.exists("/etc/made"))
          // A file keeps its owner.
          yield* s.files.write("mine", "1")
          yield* s.files.write("mine", "2", { user: "root" })
          assert.strictEqual((yield* s.files.stat("mine")).uid, 1000)
        })
      )
    )
  })

  describe("directories", () => {
    it.effect("list, stat and exists report what is there, links as links", () =>
      withSession((s) =>
        Effect.gen(function* () {
          yield* bash(
            s,
            "mkdir d; cd d; printf abc > f; chmod 640 f; touch -d @1700000000.25 f; ln -s f l; mkdir sub; mkfifo p; chmod 1777 sub"
          )
          const entries = yield* s.files.list("d")
          assert.deepStrictEqual(
            entries.map(({ mode, name, target, type }) => ({ name, type, mode, target })),
            [
              { name: "f", type: "file", mode: 0o640, target: undefined },
              { name: "l", type: "symlink", mode: 0o777, target: "f" },
              { name: "p", type: "fifo", mode: 0o644, target: undefined },
              { name: "sub", type: "directory", mode: 0o1777, target: undefined }
            ]
          )
          const file = {
            type: "file",
            size: 3,
            mode: 0o640,
            modified: 1_700_000_000_250,
            uid: 1000,
            gid: 1000
          } as const
          assert.deepStrictEqual(yield* s.files.stat("d/f"), file)
          assert.deepStrictEqual(yield* s.files.stat("d/l"), file)
          const link = yield* s.files.stat("d/l", { followLinks: false })
          assert.deepStrictEqual([link.type, link.target], ["symlink", "f"])
          assert.isTrue(yield* s.files.exists("d/l"))
          assert.isFalse(yield* s.files.exists("d/nothing"))
          assert.isFalse(yield* s.files.exists("d/f/below"))
          assert.deepStrictEqual(yield* s.files.list("d/sub"), [])
        })
      )
    )

    it.effect("any name that Linux allows can be listed and used again", () =>
      withSession((s) =>
        Effect.gen(function* () {
          const names = [
            "-rf",
            " ",
            "new\nline",
            "\t",
            "\\x41",
            '"quoted"',
            "%41",
            "ünï\u{1f600}",
            "a\udcff",
            "\udc80\udcc3(",
            "n".repeat(255),
            "*",
            "\u0001",
            "\ufeffbom"
          ]
          for (const name of names) yield* s.files.write(`d/${name}`, name.slice(0, 3), { createParents: true })
          const hex = (yield* python(s, "import os\nfor n in sorted(os.listdir(b'd')): print(n.hex())")).stdout
            .trim()
            .split("\n")
          assert.includeMembers(hex, ["61ff", "80c328", "2d7266", "6e65770a6c696e65", "efbbbf626f6d"])
          const listed = (yield* s.files.list("d")).map((entry) => entry.name)
          assert.sameMembers(listed, names)
          for (const name of listed) {
            assert.strictEqual((yield* s.files.read(`d/${name}`)).length > 0, true)
            yield* s.files.rename(`d/${name}`, `d/${name.slice(0, 80)}${name.length}`)
            yield* s.files.remove(`d/${name.slice(0, 80)}${name.length}`)
          }
          assert.deepStrictEqual(yield* s.files.list("d"), [])
        })
      )
    )

    it.effect("lists ten thousand entries, and no more than `maxEntries`", () =>
      withSession((s) =>
        Effect.gen(function* () {
          yield* python(s, "import os\nos.mkdir('/dev/shm/m')\nfor i in range(10_000): os.mknod(f'/dev/shm/m/{i:05}')")
          const entries = yield* s.files.list("/dev/shm/m")
          assert.strictEqual(entries.length, 10_000)
          assert.strictEqual(entries[9_999]?.name, "09999")
          assert.deepStrictEqual(yield* reason(s.files.list("/dev/shm/m", { maxEntries: 100 })), {
            _tag: "TooLarge",
            allowed: 100,
            observed: null,
            unit: "entries"
          })
        })
      )
    )

    it.effect("makeDirectory, rename and remove work, or fail with the right reason", () =>
      withSession((s) =>
        Effect.gen(function* () {
          const { files } = s
          yield* files.makeDirectory("d", { mode: 0o700 })
          assert.strictEqual((yield* files.stat("d")).mode, 0o700)
          assert.strictEqual(yield* tag(files.makeDirectory("d")), "AlreadyExists")
          assert.strictEqual(yield* tag(files.makeDirectory("x/y/z")), "NotFound")
          yield* files.makeDirectory("x/y/z", { createParents: true })
          yield* files.makeDirectory("x/y/z", { createParents: true })
          yield* files.write("d/f", "1")
          assert.strictEqual(yield* tag(files.makeDirectory("d/f", { createParents: true })), "AlreadyExists")
          assert.strictEqual(yield* tag(files.rename("d/nothing", "e")), "NotFound")
          assert.strictEqual(yield* tag(files.rename("x", "d")), "NotEmpty")
          yield* files.rename("d/f", "d/g")
          assert.deepStrictEqual(
            (yield* files.list("d")).map((it) => it.name),
            ["g"]
          )
          assert.strictEqual(yield* tag(files.remove("d")), "NotEmpty")
          assert.strictEqual(yield* tag(files.remove("nothing")), "NotFound")
          yield* files.remove("nothing", { force: true, recursive: true })
          yield* files.remove("x/y/z")
          // The targets of links stay.
          yield* bash(s, "mkdir keep; echo 1 > keep/f; ln -s ../keep d/link; ln -s keep top")
          yield* files.remove("d", { recursive: true })
          yield* files.remove("top", { recursive: true })
          assert.strictEqual((yield* bash(s, "ls -d d top 2>/dev/null; cat keep/f")).stdout, "1\n")
        })
      )
    )

    it.effect(
      "a watch reports what is made, changed, renamed and removed, and ends when what it watches is removed",
      () =>
        withSession((s) =>
          Effect.gen(function* () {
            yield* bash(s, "mkdir w; echo 1 > w/old; mkdir other")
            const seen = yield* Queue.unbounded<Change>()
            const watching = yield* Effect.forkChild(
              Stream.runForEach(s.files.watch("w"), (change) => Queue.offer(seen, change)),
              { startImmediately: true }
            )
            const next = Effect.timeout(Queue.take(seen), "10 seconds")
            const w = "/home/user/w"
            assert.deepStrictEqual(yield* next, { kind: "start", path: w })
            yield* bash(s, "mkdir w/dir")
            assert.deepStrictEqual(yield* next, { kind: "create", path: `${w}/dir` })
            yield* bash(s, "echo 2 >> w/old")
            assert.deepStrictEqual(yield* next, { kind: "modify", path: `${w}/old` })
            yield* bash(s, "mv w/old w/young")
            assert.deepStrictEqual(yield* next, { kind: "rename", path: `${w}/young`, from: `${w}/old` })
            yield* s.files.write("w/atomic", "x")
            assert.deepStrictEqual(yield* next, { kind: "create", path: `${w}/atomic` })
            yield* bash(s, "mv w/young other/")
            assert.deepStrictEqual(yield* next, { kind: "remove", path: `${w}/young` })
            yield* s.files.remove("w/atomic")
            assert.deepStrictEqual(yield* next, { kind: "remove", path: `${w}/atomic` })
            yield* s.files.remove("w", { recursive: true })
            assert.deepStrictEqual(yield* next, { kind: "remove", path: `${w}/dir` })
            assert.deepStrictEqual(yield* next, { kind: "remove", path: w })
            yield* Effect.timeout(Fiber.join(watching), "10 seconds")
            assert.strictEqual(yield* tag(Stream.runDrain(s.files.watch("w"))), "NotFound")
          })
        )
    )

    it.effect("a recursive watch follows directories that are made, moved in, moved and moved out", () =>
      withSession((s) =>
        Effect.gen(function* () {
          yield* bash(s, "mkdir -p w/a/b t")
          const seen = yield* Queue.unbounded<Change>()
          yield* Effect.forkChild(
            Stream.runForEach(s.files.watch("w", { recursive: true }), (change) => Queue.offer(seen, change)),
            { startImmediately: true }
          )
          /** All changes until one of this path. */
          const until = (path: string) =>
            Effect.gen(function* () {
              const all: Array<string> = []
              for (;;) {
                const { from, kind, path: at } = yield* Effect.timeout(Queue.take(seen), "10 seconds")
                all.push([kind, ...(from === undefined ? [] : [from]), at].join(" ").replaceAll("/home/user/w", ""))
                if (at.endsWith(path)) return all
              }
            })
          assert.deepStrictEqual(yield* until("w"), ["start "])
          yield* bash(s, ": > w/a/b/1")
          assert.deepStrictEqual(yield* until("/1"), ["create /a/b/1"])
          yield* bash(s, "for n in $(seq 50); do mkdir -p w/n$n/d/e; : > w/n$n/d/e/f; done; mkdir w/last")
          const changes = yield* until("/last")
          const made = Array.from({ length: 50 }, (_, n) =>
            ["", "/d", "/d/e", "/d/e/f"].map((it) => `create /n${n + 1}${it}`)
          )
          assert.sameMembers(
            changes.filter((it) => !it.startsWith("modify")),
            [...made.flat(), "create /last"]
          )
          yield* bash(s, "mv w/n1/d w/a/moved; mv w/n2 t; : > t/n2/d/x; : > w/a/moved/e/2")
          assert.deepStrictEqual(yield* until("/2"), ["rename /n1/d /a/moved", "remove /n2", "create /a/moved/e/2"])
          yield* bash(s, "rm -r w/a/moved")
          assert.include(yield* until("/moved"), "remove /a/moved/e/2")
          yield* python(s, "import os\nfor n in range(4096): os.mkdir(f't/{n}')")
          assert.deepStrictEqual(yield* reason(Stream.runDrain(s.files.watch("t", { recursive: true }))), {
            _tag: "TooLarge",
            allowed: 4096,
            observed: null,
            unit: "entries"
          })
        })
      )
    )

    it.effect("a watch that is not read reports an overflow, and blocks nothing", () =>
      withSession((s) =>
        Effect.gen(function* () {
          yield* bash(s, "mkdir /dev/shm/w")
          const start = yield* Deferred.make<void>()
          const go = yield* Deferred.make<void>()
          const kinds = new Set<string>()
          const watching = yield* s.files.watch("/dev/shm/w").pipe(
            Stream.tap(() => Effect.andThen(Deferred.succeed(start, undefined), Deferred.await(go))),
            Stream.runForEach((change) => Effect.sync(() => kinds.add(change.kind))),
            Effect.forkChild({ startImmediately: true })
          )
          yield* Deferred.await(start)
          yield* python(
            s,
            "import os\nfor i in range(14_000):\n  os.mknod(f'/dev/shm/w/{i % 2}{\"n\" * 200}')\n  os.unlink(f'/dev/shm/w/{i % 2}{\"n\" * 200}')\nos.rmdir('/dev/shm/w')"
          )
          yield* Deferred.succeed(go, undefined)
          yield* Effect.timeout(
            Effect.sync(() => kinds.has("overflow")).pipe(
              Effect.repeat({ until: (it) => it, schedule: Schedule.spaced("20 millis") })
            ),
            "20 seconds"
          )
          yield* Fiber.interrupt(watching)
          assert.includeMembers([...kinds], ["start", "create", "remove", "overflow"])
        })
      )
    )
  })

  describe("trees", () => {
    it.effect("go in and come out with modes, times, links and names as they were", () =>
      withSession((s) =>
        Effect.gen(function* () {
          const host = yield* temporary
          const source = join(host, "source")
          fs.mkdirSync(join(source, "deep/er"), { recursive: true })
          fs.writeFileSync(join(source, "deep/er/data"), randomBytes(300_000), { mode: 0o640 })
          fs.writeFileSync(join(source, "run"), "#!/bin/sh\n")
          fs.chmodSync(join(source, "run"), 0o755)
          fs.utimesSync(join(source, "run"), 1_600_000_000, 1_600_000_000)
          fs.writeFileSync(join(source, "-dash\nline"), "")
          fs.writeFileSync(Buffer.concat([Buffer.from(`${source}/bin`), Buffer.from([0xff, 0x80])]), "odd")
          fs.writeFileSync(join(source, `${"long".repeat(50)}`), "long")
          fs.symlinkSync("deep/er/data", join(source, "link"))
          fs.symlinkSync("/etc/passwd", join(source, "absolute"))
          execFileSync("mkfifo", [join(source, "fifo")])
          fs.mkdirSync(join(source, "shut"), { mode: 0o500 })
          fs.utimesSync(join(source, "deep"), 1_500_000_000, 1_500_000_000)

          const into = yield* s.files.copyIn(source, "some/tree")
          assert.deepStrictEqual(into, { entries: 11, bytes: 300_000 + 10 + 3 + 4, skipped: 1 })
          const listing = (yield* bash(
            s,
            "cd some/tree; stat -c '%n %a %Y %U' run deep shut deep/er/data; readlink link absolute; sha256sum < deep/er/data; cd"
          )).stdout
          const mtime = Math.floor(fs.statSync(join(source, "shut")).mtimeMs / 1000)
          const data = Math.floor(fs.statSync(join(source, "deep/er/data")).mtimeMs / 1000)
          assert.strictEqual(
            listing,
            `run 755 1600000000 user\ndeep 755 1500000000 user\nshut 500 ${mtime} user\ndeep/er/data 640 ${data} user\n` +
              `deep/er/data\n/etc/passwd\n${sha256(fs.readFileSync(join(source, "deep/er/data")))}  -\n`
          )

          // A link that leads out of the tree is refused.
          assert.deepStrictEqual(yield* reason(s.files.copyOut("some/tree", join(host, "out"))), {
            _tag: "Unsafe",
            entry: "absolute",
            problem: "is a link that leads outside"
          })
          assert.deepStrictEqual(fs.readdirSync(host), ["source"])
          const out = yield* s.files.copyOut("some/tree", join(host, "out"), { outsideLinks: "skip" })
          assert.deepStrictEqual(out, { entries: 10, bytes: into.bytes, skipped: 1 })
          fs.unlinkSync(join(source, "absolute"))
          fs.unlinkSync(join(source, "fifo"))
          execFileSync("diff", ["-r", "--no-dereference", source, join(host, "out")])
          const stats = (path: string) => {
            const { mode, mtimeMs } = fs.lstatSync(join(host, path))
            return [mode, Math.floor(mtimeMs / 1000)]
          }
          for (const path of ["run", "deep", "shut", "deep/er/data"]) {
            assert.deepStrictEqual(stats(`out/${path}`), stats(`source/${path}`))
          }
        })
      )
    )

    it.effect("single files go in and out without setuid bits; a target is replaced whole or not at all", () =>
      withSession((s) =>
        Effect.gen(function* () {
          const host = yield* temporary
          fs.writeFileSync(join(host, "f"), "content", { mode: 0o750 })
          fs.chmodSync(join(host, "f"), 0o750)
          assert.deepStrictEqual(yield* s.files.copyIn(join(host, "f"), "new/f"), { entries: 1, bytes: 7, skipped: 0 })
          assert.strictEqual((yield* s.files.stat("new/f")).mode, 0o750)
          yield* bash(
            s,
            "chmod 6755 new/f; touch -d @1700000000 new/f; mkdir t; cp -p new/f t/suid; chmod 4711 t/suid; mkfifo p"
          )
          yield* s.files.copyOut("new/f", join(host, "g"))
          assert.strictEqual(fs.statSync(join(host, "g")).mode & 0o7777, 0o755)
          assert.strictEqual(fs.statSync(join(host, "g")).mtimeMs, 1_700_000_000_000)
          yield* s.files.copyOut("new/f", join(host, "f"))
          assert.strictEqual(fs.statSync(join(host, "f")).mode & 0o7777, 0o755)
          yield* s.files.copyOut("t", join(host, "t"))
          assert.strictEqual(fs.statSync(join(host, "t/suid")).mode & 0o7777, 0o711)
          assert.deepStrictEqual(yield* reason(s.files.copyOut("p", join(host, "p"))), {
            _tag: "NotAFile",
            type: "fifo"
          })
          assert.strictEqual(yield* tag(s.files.copyOut("nothing", join(host, "n"))), "NotFound")
          assert.strictEqual(yield* tag(s.files.copyOut("t", join(host, "t"))), "NotEmpty")
          assert.strictEqual(yield* tag(s.files.copyOut("t", join(host, "f"))), "AlreadyExists")
          assert.strictEqual(yield* tag(s.files.copyOut("new/f", join(host, "t"))), "IsADirectory")
          assert.deepStrictEqual(yield* reason(s.files.copyOut("new", join(host, "b"), { maxBytes: 6 })), {
            _tag: "TooLarge",
            allowed: 6,
            observed: null,
            unit: "bytes"
          })
          assert.strictEqual(yield* tag(s.files.copyOut("new", join(host, "b"), { maxEntries: 1 })), "TooLarge")
          const missing = yield* refused(s.files.copyIn(join(host, "missing"), "x"))
          assert.deepStrictEqual([missing.side, missing.reason._tag], ["host", "NotFound"])
          assert.sameMembers(fs.readdirSync(host), ["f", "g", "t"])
        })
      )
    )

    it.effect("a copy into an existing tree replaces links there instead of following them", () =>
      withSession((s) =>
        Effect.gen(function* () {
          const host = yield* temporary
          fs.mkdirSync(join(host, "src/dir"), { recursive: true })
          fs.writeFileSync(join(host, "src/file"), "new")
          fs.writeFileSync(join(host, "src/dir/f"), "new")
          yield* bash(s, "mkdir t victim; echo old > target; ln -s ../target t/file")
          yield* s.files.copyIn(join(host, "src"), "t", { user: "root" })
          assert.strictEqual((yield* bash(s, "cat target t/file")).stdout, "old\nnew")
          yield* bash(s, "rm -rf t 2>/dev/null; mkdir t2; ln -s ../victim t2/dir")
          assert.strictEqual(yield* tag(s.files.copyIn(join(host, "src"), "t2", { user: "root" })), "NotADirectory")
          assert.deepStrictEqual(yield* s.files.list("victim"), [])
        })
      )
    )

    it.effect("the error names what could not be read in a tree", () =>
      withSession((s) =>
        Effect.gen(function* () {
          const host = yield* temporary
          yield* bash(s, "mkdir -p t/a; echo 1 > t/a/locked; chmod 0 t/a/locked")
          const error = yield* refused(s.files.copyOut("t", join(host, "t")))
          assert.deepStrictEqual([error.path, error.reason._tag], ["/home/user/t/a/locked", "PermissionDenied"])
          assert.deepStrictEqual(fs.readdirSync(host), [])
        })
      )
    )
  })

  describe("bounds", () => {
    it.effect("refuses invalid paths and options before anything is done", () =>
      withSession((s) =>
        Effect.gen(function* () {
          for (const bad of [
            s.files.readText(""),
            s.files.readText("a\0b"),
            s.files.readText("a\ud800"),
            s.files.rename("a", ""),
            s.files.write("f", "x", { mode: 0o10000 }),
            s.files.readText("f", { maxBytes: -1 })
          ]) {
            const error = yield* Effect.flip(Effect.asVoid(bad))
            assert.strictEqual(error._tag === "SandboxError" ? error.reason._tag : error._tag, "InvalidInput")
          }
        })
      )
    )

    it.effect("operations fail at once in a closed session or after the VM was lost", () =>
      Effect.gen(function* () {
        const scope = yield* Scope.make()
        const s = yield* Scope.provide(session, scope)
        yield* s.files.write("f", "x")
        const waiting = yield* Effect.forkChild(Effect.flip(Stream.runDrain(s.files.watch("f"))), {
          startImmediately: true
        })
        yield* s.files.readText("f")
        yield* Scope.close(scope, Exit.void)
        for (const error of [
          yield* Effect.timeout(Fiber.join(waiting), "10 seconds"),
          yield* Effect.flip(s.files.read("f"))
        ]) {
          assert.strictEqual(error._tag === "SandboxError" ? error.reason._tag : error._tag, "SessionClosed")
        }
      })
    )
  })
})
