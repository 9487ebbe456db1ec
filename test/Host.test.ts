import { assert, it } from "@effect/vitest"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import type { Scope } from "effect/Scope"
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import * as path from "node:path"
import { describe } from "vitest"
import { addChecks, Host, Report } from "../src/Host.ts"
import { Bound } from "../src/internal/BoundedProcess.ts"
import { findExecutable } from "../src/internal/Files.ts"
import { kvmDevice } from "../src/host/State.ts"
import { familyOf } from "../src/host/Install.ts"
import { findQemu } from "../src/host/QemuProbe.ts"
import { parseTscKhz } from "../src/host/TimeStampCounter.ts"
import type { HostUnsupported, SandboxError } from "../src/SandboxError.ts"

const searchPath = "/usr/local/bin:/usr/bin:/bin"
const greeting = JSON.stringify({ QMP: { version: { qemu: { major: 9, minor: 1, micro: 2 } }, capabilities: [] } })

/** A temporary directory that QEMU's unprivileged user can reach. */
const directory: Effect.Effect<string, never, Scope> = Effect.acquireRelease(
  Effect.sync(() => {
    const made = fs.mkdtempSync("/tmp/exec-sandbox-host-")
    fs.chmodSync(made, 0o755)
    return made
  }),
  (made) => Effect.sync(() => fs.rmSync(made, { recursive: true, force: true }))
)

interface Fake {
  readonly path: string
  /** The argument lines of all launches so far. */
  readonly launches: () => ReadonlyArray<string>
}

/** A shell script in place of QEMU: prints `version`, or runs `body`, which by default greets and quits on request. */
const fakeQemu = (
  home: string,
  version: string,
  body = `echo '${greeting}'; read -r a; read -r b; exit 0`,
  name = process.arch === "arm64" ? "qemu-system-aarch64" : "qemu-system-x86_64"
): Fake => {
  const log = path.join(home, "launches")
  fs.writeFileSync(log, "")
  fs.chmodSync(log, 0o666)
  const script = path.join(home, name)
  fs.writeFileSync(
    script,
    `#!/bin/sh\necho "$*" >> ${log}\nif [ "$1" = --version ]; then echo "${version}"; exit 0; fi\n${body}\n`
  )
  fs.chmodSync(script, 0o755)
  return { path: script, launches: () => fs.readFileSync(log, "utf8").split("\n").slice(0, -1) }
}

/** A new `Host`, as in a new process. */
const hostWith = (env: Record<string, string>) =>
  Effect.provide(
    Host.use(Effect.succeed),
    Layer.provide(Layer.fresh(Host.layer), ConfigProvider.layer(ConfigProvider.fromEnv({ env })))
  )

const environmentOf = (home: string): Record<string, string> => ({
  PATH: searchPath,
  HOME: home,
  EXEC_SANDBOX_CACHE_DIR: path.join(home, "cache"),
  EXEC_SANDBOX_RUN_DIR: path.join(home, "run")
})

const askQemu = (env: Record<string, string>) => Effect.flatMap(hostWith(env), (host) => host.qemu(host.arch))

const unsupported = (effect: Effect.Effect<unknown, SandboxError>): Effect.Effect<HostUnsupported, unknown> =>
  Effect.flatMap(Effect.flip(effect), ({ reason }) =>
    reason._tag === "HostUnsupported" ? Effect.succeed(reason) : Effect.fail(`another reason: ${reason._tag}`)
  )

const findPath = (guest: "amd64" | "arm64", override: string) =>
  Effect.match(findQemu({ guest, arch: "amd64", override, search: [] }), {
    onFailure: () => null,
    onSuccess: (found) => found.path
  })

const mode = (file: string): number => fs.statSync(file).mode & 0o777

const cacheOf = (env: Record<string, string>) =>
  Effect.map(hostWith({ PATH: "/nowhere", HOME: "/h", ...env }), (host) => host.cacheDirectory)

const statuses = (report: Report) => Object.fromEntries(report.checks.map(({ name, status }) => [name, status]))

const isGone = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
  } catch {
    return true
  }
  // A zombie counts as dead: in some containers no process collects it.
  return process.platform === "linux" && / Z /.test(fs.readFileSync(`/proc/${pid}/stat`, "latin1"))
}

const eventually = (condition: () => boolean) =>
  Effect.sync(condition).pipe(
    Effect.repeat({ until: (met) => met, schedule: Schedule.spaced("10 millis") }),
    Effect.timeout("8 seconds")
  )

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

describe("doctor", () => {
  it.live("reports a host that works, and what it lacks", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const env = { ...environmentOf(home), EXEC_SANDBOX_QEMU: fakeQemu(home, "QEMU emulator version 9.1.2").path }
      const report = yield* (yield* hostWith(env)).doctor
      assert.isTrue(report.ok)
      assert.strictEqual(report.version, "0.1.0")
      assert.deepStrictEqual(
        report.checks.map(({ name }) => name),
        [
          "qemu",
          "accelerator",
          "boundary",
          "seccomp",
          "user",
          "parent death",
          "host cgroup",
          "cache directory",
          "run directory",
          "image tools",
          "memory",
          "cpus"
        ]
      )
      const roundTrip = yield* Schema.decodeEffect(Schema.fromJsonString(Report))(JSON.stringify(report))
      assert.deepStrictEqual(roundTrip, report)
    })
  )

  it.live("warns of TCG: it is not a security boundary", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const refuse = `case " $* " in *" kvm "*|*" hvf "*|*" -sandbox "*) echo "not here" >&2; exit 1;; esac`
      const body = `${refuse}; echo '${greeting}'; read -r a; read -r b; exit 0`
      const fake = fakeQemu(home, "QEMU emulator version 9.1.2", body)
      const report = yield* (yield* hostWith({ ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path })).doctor
      assert.isTrue(report.ok)
      const { accelerator, boundary, seccomp } = statuses(report)
      assert.deepStrictEqual([accelerator, boundary, seccomp], ["warning", "warning", "warning"])
    })
  )

  it.live("checks again instead of reading the record, so it shows what broke since", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const switchFile = path.join(home, "broken")
      const body = `[ -e ${switchFile} ] && { echo "out of order" >&2; exit 1; }; echo '${greeting}'; read -r a; read -r b`
      const fake = fakeQemu(home, "QEMU emulator version 9.1.2", body)
      const host = yield* hostWith({ ...environmentOf(home), EXEC_SANDBOX_QEMU: fake.path })
      yield* host.qemu(host.arch)
      fs.writeFileSync(switchFile, "")
      const report = yield* host.doctor
      assert.isFalse(report.ok)
      assert.include(report.checks[0]?.detail ?? "", "9.1.2, which does not start (out of order)")
    })
  )

  it.live("reports on a host where nothing works", () =>
    Effect.gen(function* () {
      const home = yield* directory
      const file = path.join(home, "file")
      fs.writeFileSync(file, "")
      const broken = path.join(file, "below")
      const report = yield* (yield* hostWith({
        PATH: home,
        HOME: home,
        EXEC_SANDBOX_CACHE_DIR: broken,
        EXEC_SANDBOX_RUN_DIR: broken
      })).doctor
      assert.isFalse(report.ok)
      const all = statuses(report)
      assert.strictEqual(all["qemu"], "failed")
      assert.strictEqual(all["cache directory"], "failed")
      assert.strictEqual(all["run directory"], "failed")
      assert.isTrue(report.checks.every(({ fix, status }) => status !== "failed" || fix !== null))
    })
  )

  it.effect("a report with added checks is not ok if one of them failed", () =>
    Effect.sync(() => {
      const report: Report = { ok: true, version: "0.1.0", platform: "linux", arch: "amd64", checks: [] }
      const image = { name: "image", status: "warning", detail: "none yet", fix: null } as const
      assert.isTrue(addChecks(report, [image]).ok)
      const failed = addChecks(addChecks(report, [{ ...image, status: "failed" }]), [image])
      assert.isFalse(failed.ok)
      assert.strictEqual(failed.checks.length, 2)
    })
  )
})
