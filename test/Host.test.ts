/** Which QEMU a host has, what it remembers of it, and its directories. */
import { assert, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import { describe } from "vitest"
import { Bound } from "../src/internal/BoundedProcess.ts"
import { findExecutable } from "../src/internal/Files.ts"
import { kvmDevice } from "../src/host/State.ts"
import { familyOf } from "../src/host/Install.ts"
import { parseTscKhz } from "../src/host/TimeStampCounter.ts"
import {
  askQemu,
  cacheOf,
  directory,
  environmentOf,
  eventually,
  fakeQemu,
  findPath,
  greeting,
  hostWith,
  isGone,
  mode,
  searchPath,
  unsupported
} from "./support/fakeHost.ts"

describe("QEMU", () => {
  it.live("missing: the error has a command that installs it", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const reason = yield* unsupported(askQemu({ ...environmentOf(home), PATH: home }))
      assert.strictEqual(reason.requirement, "QEMU")
      assert.strictEqual(reason.found, null)
      assert.strictEqual(reason.needed, ">= 7.2")
      assert.match(reason.fix, /qemu/)
    })
  )

  it.live("chosen by EXEC_SANDBOX_QEMU but missing: no other is used instead", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const chosen = path.join(home, "no-qemu")
      const reason = yield* unsupported(askQemu({ ...environmentOf(home), EXEC_SANDBOX_QEMU: chosen }))
      assert.strictEqual(reason.found, null)
      assert.strictEqual(
        reason.fix,
        `EXEC_SANDBOX_QEMU names ${chosen}, which is not an executable file: correct or unset it`
      )
    })
  )

  it.live("too old: the error has its version, and no machine was started", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const fake = fakeQemu(home, "QEMU emulator version 7.1.0 (Debian 1:7.1)")
      const reason = yield* unsupported(askQemu({ ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path }))
      assert.strictEqual(reason.found, "7.1.0")
      assert.strictEqual(reason.needed, ">= 7.2")
      assert.deepStrictEqual(fake.launches(), ["--version"])
    })
  )

  it.live("a program that is not QEMU is rejected", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const fake = fakeQemu(home, "Hello, world 9.1")
      const reason = yield* unsupported(askQemu({ ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path }))
      assert.strictEqual(reason.found, `${fake.path}, which does not report its version ("Hello, world 9.1")`)
    })
  )

  it.live("refuses every accelerator: the error has its output", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const fake = fakeQemu(home, "QEMU emulator version 9.1.2", "echo 'no firmware' >&2; exit 1")
      const reason = yield* unsupported(askQemu({ ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path }))
      assert.strictEqual(reason.found, "9.1.2, which does not start (no firmware)")
    })
  )

  it.live("exits with 0 but never greets: does not count as started", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const fake = fakeQemu(home, "QEMU emulator version 9.1.2", "echo '{\"QMP\": {}}'; exit 0")
      const reason = yield* unsupported(askQemu({ ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path }))
      assert.strictEqual(reason.found, "9.1.2, which does not start (it ended without a greeting)")
    })
  )

  it.live("refuses the system call filter: works, and reports that there is none", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const refuse = `case " $* " in *" -sandbox "*) echo "seccomp support is disabled" >&2; exit 1;; esac`
      const fake = fakeQemu(
        home,
        "QEMU emulator version 9.1.2",
        `${refuse}; echo '${greeting}'; read -r a; read -r b; exit 0`
      )
      const qemu = yield* askQemu({ ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path })
      assert.strictEqual(qemu.seccomp, false)
      assert.strictEqual(qemu.version, "9.1.2")
    })
  )

  it.live("refuses hardware acceleration: falls back to TCG with the reason", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const refuse = `case " $* " in *" kvm "*|*" hvf "*) echo "no acceleration here" >&2; exit 1;; esac`
      const fake = fakeQemu(
        home,
        "QEMU emulator version 9.1.2",
        `${refuse}; echo '${greeting}'; read -r a; read -r b; exit 0`
      )
      const qemu = yield* askQemu({ ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path })
      assert.strictEqual(qemu.accelerator, "tcg")
      assert.deepStrictEqual(
        qemu.missedAccelerators,
        process.platform === "darwin"
          ? [{ name: "hvf", reason: "no acceleration here" }]
          : [{ name: "kvm", reason: kvmDevice() === null ? "this host has no /dev/kvm" : "no acceleration here" }]
      )
      assert.strictEqual(qemu.seccomp, process.platform === "linux")
    })
  )

  it.live("hangs: the check times out and leaves no process", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const pids = path.join(home, "pids")
      fs.writeFileSync(pids, "")
      fs.chmodSync(pids, 0o666)
      const fake = fakeQemu(
        home,
        "QEMU emulator version 9.1.2",
        `sleep 600 & echo $! >> ${pids}; echo $$ >> ${pids}; wait`
      )
      const reason = yield* unsupported(askQemu({ ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path })).pipe(
        Effect.provideService(Bound, "1 second"),
        Effect.timeout("8 seconds")
      )
      assert.strictEqual(reason.found, "9.1.2, which does not start (no answer in time)")
      const started = fs.readFileSync(pids, "utf8").trim().split("\n").map(Number)
      assert.isAtLeast(started.length, 2)
      yield* eventually(() => started.every(isGone))
    })
  )

  it.live("interrupting the check ends the process that it started", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const pids = path.join(home, "pids")
      fs.writeFileSync(pids, "")
      fs.chmodSync(pids, 0o666)
      const fake = fakeQemu(home, "QEMU emulator version 9.1.2", `echo $$ > ${pids}; exec sleep 600`)
      const asking = yield* Effect.forkChild(askQemu({ ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path }))
      yield* eventually(() => fs.readFileSync(pids, "utf8").endsWith("\n"))
      yield* Fiber.interrupt(asking)
      yield* eventually(() => isGone(Number(fs.readFileSync(pids, "utf8"))))
    })
  )

  it.effect("a chosen binary is used for the architecture in its name, else for that of this host", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const arm = fakeQemu(home, "", "", "qemu-system-aarch64").path
      const unnamed = fakeQemu(home, "", "", "my-qemu").path
      assert.strictEqual(yield* findPath("arm64", arm), fs.realpathSync(arm))
      assert.strictEqual(yield* findPath("amd64", unnamed), fs.realpathSync(unnamed))
      assert.strictEqual(yield* findPath("arm64", unnamed), null)
    })
  )
})

describe("the record on disk", () => {
  it.live("a second process starts no QEMU until the binary changes", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const fake = fakeQemu(home, "QEMU emulator version 9.1.2")
      const env = { ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path }
      const cold = yield* askQemu(env)
      const launches = fake.launches().length
      assert.isAtLeast(launches, 2)
      const warm = yield* askQemu(env)
      assert.strictEqual(fake.launches().length, launches)
      assert.deepStrictEqual({ ...warm, atLeast: null }, { ...cold, atLeast: null })

      const changed = fakeQemu(home, "QEMU emulator version 10.0.3")
      const upgraded = yield* askQemu(env)
      assert.strictEqual(upgraded.version, "10.0.3")
      assert.strictEqual(changed.launches()[0], "--version")
      assert.notStrictEqual(upgraded.identity, cold.identity)
    })
  )

  it.live("a record that is damaged or that other users may write to is ignored", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const fake = fakeQemu(home, "QEMU emulator version 9.1.2")
      const env = { ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path }
      yield* askQemu(env)
      const records = path.join(home, "cache", "host")
      const files = fs.readdirSync(records).map((name) => path.join(records, name))
      const cold = fake.launches().length
      for (const file of files) fs.writeFileSync(file, '{"version":"9.1')
      assert.strictEqual((yield* askQemu(env)).version, "9.1.2")
      assert.strictEqual(fake.launches().length, 2 * cold)
      for (const file of files) fs.chmodSync(file, 0o666)
      yield* askQemu(env)
      assert.strictEqual(fake.launches().length, 3 * cold)
    })
  )

  it.live("concurrent callers of one host share one probe", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const fake = fakeQemu(home, "QEMU emulator version 9.1.2")
      const host = yield* hostWith({ ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path })
      yield* Effect.all(
        Array.from({ length: 8 }, () => host.qemu(host.arch)),
        { concurrency: "unbounded" }
      )
      assert.strictEqual(fake.launches().filter((line) => line === "--version").length, 1)
    })
  )
})

describe("directories", () => {
  const hopeless: ReadonlyArray<readonly [string, (home: string) => string, string]> = [
    ["below a file", (home) => path.join(home, "file", "cache"), "ENOTDIR"],
    // Node's own recursive mkdir never returns from there.
    ["below /proc", () => "/proc/no/such/place", "ENOENT"]
  ]
  for (const [where, place, code] of hopeless) {
    it.live(`a cache directory that cannot be made is a typed error: ${where}`, () =>
      Effect.gen(function* () {
        const home = yield* directory
        fs.writeFileSync(path.join(home, "file"), "")
        const cache = place(home)
        const env = {
          ...environmentOf(home),
          EXEC_SANDBOX_CACHE_DIR: cache,
          EXEC_SANDBOX_QEMU: fakeQemu(home, "QEMU emulator version 9.1.2").path
        }
        const reason = yield* unsupported(askQemu(env))
        assert.strictEqual(reason.requirement, "cache directory")
        assert.strictEqual(reason.found, `${cache} (${code})`)
      })
    )
  }

  it.live("a run directory that is a link, a file or open to other users is refused", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const env = { ...environmentOf(home), EXEC_SANDBOX_QEMU: fakeQemu(home, "QEMU emulator version 9.1.2").path }
      const run = path.join(home, "run")
      const found = Effect.map(unsupported(askQemu(env)), (reason) => [reason.requirement, reason.found])

      fs.mkdirSync(path.join(home, "elsewhere"))
      fs.symlinkSync(path.join(home, "elsewhere"), run)
      assert.deepStrictEqual(yield* found, ["run directory", `${run} (a symbolic link)`])
      fs.rmSync(run)
      fs.writeFileSync(run, "")
      assert.deepStrictEqual(yield* found, ["run directory", `${run} (not a directory)`])
      fs.rmSync(run)
      fs.mkdirSync(run)
      fs.chmodSync(run, 0o777)
      assert.deepStrictEqual(yield* found, ["run directory", `${run} (mode 777)`])
      if (process.geteuid?.() === 0) {
        fs.chmodSync(run, 0o700)
        fs.chownSync(run, 65534, 65534)
        assert.deepStrictEqual(yield* found, ["run directory", `${run} (owned by uid 65534)`])
      }
    })
  )

  it.live("are created when first needed, without access for other users", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const env = { ...environmentOf(home), EXEC_SANDBOX_QEMU: fakeQemu(home, "QEMU emulator version 9.1.2").path }
      const host = yield* hostWith(env)
      assert.isFalse(fs.existsSync(host.runDirectory))
      yield* host.qemu(host.arch)
      assert.strictEqual(mode(host.runDirectory), process.geteuid?.() === 0 ? 0o711 : 0o700)
      assert.strictEqual(mode(host.cacheDirectory), 0o700)
      fs.rmdirSync(host.runDirectory)
      yield* host.qemu(host.arch)
      assert.isTrue(fs.existsSync(host.runDirectory))
    })
  )

  it.live("the cache directory comes from our variable, then XDG's if absolute, then the home directory", () =>
    Effect.gen(function* () {
      const own = process.platform === "darwin" ? "/h/Library/Caches/exec-sandbox" : "/h/.cache/exec-sandbox"
      assert.strictEqual(yield* cacheOf({}), own)
      assert.strictEqual(yield* cacheOf({ XDG_CACHE_HOME: "relative" }), own)
      assert.strictEqual(yield* cacheOf({ XDG_CACHE_HOME: "/x" }), "/x/exec-sandbox")
      assert.strictEqual(yield* cacheOf({ XDG_CACHE_HOME: "/x", EXEC_SANDBOX_CACHE_DIR: "/e" }), "/e")
    })
  )
})

describe("this machine", () => {
  const withQemu = findExecutable(
    process.arch === "arm64" ? "qemu-system-aarch64" : "qemu-system-x86_64",
    searchPath.split(":")
  )

  it.live.runIf(withQemu !== null)("its QEMU starts, and a second check is fast", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const env = environmentOf(home)
      const cold = yield* askQemu(env)
      assert.isTrue(cold.atLeast(7, 2))
      assert.isFalse(cold.atLeast(99, 0))
      assert.strictEqual(cold.path, fs.realpathSync(withQemu ?? ""))
      assert.match(cold.identity, /^[0-9a-f]{64}$/)
      assert.strictEqual(cold.accelerator === "tcg", cold.missedAccelerators.length === 1)
      const warm = yield* askQemu(env)
      assert.deepStrictEqual({ ...warm, atLeast: null }, { ...cold, atLeast: null })
      // Starting QEMU takes 40 ms or more. On a busy machine at least one of several tries is undisturbed.
      const tries = yield* Effect.forEach([1, 2, 3, 4, 5, 6, 7, 8], () => Effect.timed(askQemu(env)))
      assert.isBelow(Math.min(...tries.map(([took]) => Duration.toMillis(took))), 40)
    })
  )

  const linux = process.platform === "linux" && findExecutable("setpriv", searchPath.split(":")) !== null
  it.live.runIf(linux)("a launched program cannot gain privileges, and dies with its parent", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const { launcher } = yield* hostWith(environmentOf(home))
      assert.isTrue(launcher.parentDeath)
      const script = `
        const { spawn } = require("node:child_process")
        const child = spawn(process.argv[1], [...process.argv.slice(2), "sleep", "600"], { stdio: "ignore", detached: true })
        child.on("spawn", () => console.log(child.pid))
        setInterval(() => {}, 1000)`
      const parent = yield* Effect.acquireRelease(
        Effect.sync(() => spawn(process.execPath, ["-e", script, ...launcher.argv], { stdio: "pipe" })),
        (spawned) => Effect.sync(() => spawned.kill("SIGKILL"))
      )
      let said = ""
      parent.stdout.on("data", (bytes: Buffer) => {
        said += bytes.toString()
      })
      yield* eventually(() => said.endsWith("\n"))
      const pid = Number(said)
      yield* Effect.addFinalizer(() => Effect.sync(() => void (isGone(pid) || process.kill(pid, "SIGKILL"))))
      // setpriv has replaced itself by sleep, which now has the privileges that QEMU would have.
      yield* eventually(() => fs.readFileSync(`/proc/${pid}/comm`, "latin1") === "sleep\n")
      const status = fs.readFileSync(`/proc/${pid}/status`, "latin1")
      assert.match(status, /^NoNewPrivs:\t1$/m)
      if (launcher.uid !== null) {
        assert.match(status, /^Uid:\t65534\t65534\t65534\t65534$/m)
        assert.match(status, /^Gid:\t65534\t65534\t65534\t65534$/m)
        assert.match(status, /^CapEff:\t0+$/m)
        assert.notMatch(status, /^Groups:.*\b0\b/m)
      }
      parent.kill("SIGKILL")
      yield* eventually(() => isGone(pid))
    })
  )

  it.live("its time stamp counter has a plausible frequency, or none", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const khz = yield* (yield* hostWith(environmentOf(home))).tscKhz
      if (khz !== null) {
        assert.isTrue(Number.isInteger(khz))
        assert.isAbove(khz, 500_000)
        assert.isBelow(khz, 10_000_000)
      }
    })
  )
})

it.effect("the frequency of the time stamp counter: the base frequency where clocks scale, else the first core's", () =>
  Effect.sync(() => {
    assert.strictEqual(parseTscKhz("cpu MHz\t\t: 2599.998\n", null), 2_599_998)
    assert.strictEqual(parseTscKhz("cpu MHz\t\t: 800.021\ncpu MHz\t\t: 4700.000\n", "2800000\n"), 2_800_000)
    assert.strictEqual(parseTscKhz("BogoMIPS\t: 50.00\n", null), null)
    assert.strictEqual(parseTscKhz(null, ""), null)
  })
)

it.effect("the family of a system: its ID first, then ID_LIKE", () =>
  Effect.sync(() => {
    assert.strictEqual(familyOf('ID=linuxmint\nID_LIKE="ubuntu debian"\n'), "debian")
    assert.strictEqual(familyOf('ID="rocky"\nID_LIKE="rhel centos fedora"\n'), "fedora")
    assert.strictEqual(familyOf('ID="opensuse-tumbleweed"\n'), "suse")
    assert.strictEqual(familyOf("ID=alpine\n"), "alpine")
    assert.strictEqual(familyOf("NAME=Something\n"), "other")
  })
)
