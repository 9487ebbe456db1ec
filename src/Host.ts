/**
 * What this host can do: which QEMU it has, which accelerator QEMU can use, and how QEMU is isolated from this process.
 *
 * Everything is tried out: an accelerator works when QEMU, launched as it is for a VM, started on it. Results are stored in
 * the cache directory per binary and host state, so a probe takes some hundred milliseconds once and about ten after that.
 * What is missing is reported with its reason.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Semaphore from "effect/Semaphore"
import { delimiter } from "node:path"
import { cacheDirectory, ensureCacheDirectory } from "./host/CacheDirectory.ts"
import { inspectHost, packageVersion } from "./host/Doctor.ts"
import { variable } from "./internal/Environment.ts"
import { probeLauncher } from "./host/LauncherProbe.ts"
import { findQemu, probeQemu, qemuKey } from "./host/QemuProbe.ts"
import { addChecks, type Architecture, Check, type Launcher, type Qemu, Report } from "./host/Model.ts"
import { ensureRunDirectory, runDirectory } from "./host/RunDirectory.ts"
import { tscKhz } from "./host/TimeStampCounter.ts"
import type { SandboxError } from "./SandboxError.ts"

export { addChecks, type Architecture, Check, type Launcher, type Qemu, Report }

/**
 * What this host can do. Building the layer never fails, so `doctor` works on a broken host too; what is missing is an error
 * when it is first needed.
 *
 * The layer reads, once: `EXEC_SANDBOX_QEMU` (path of a QEMU binary, used for the architecture in its name, else for the
 * host's), `EXEC_SANDBOX_CACHE_DIR`, `EXEC_SANDBOX_RUN_DIR`, `XDG_CACHE_HOME`, `XDG_RUNTIME_DIR`,
 * `HOME`, `TMPDIR` and `PATH`.
 *
 * @since 0.1.0
 * @category services
 */
export class Host extends Context.Service<
  Host,
  {
    /** This host's architecture, and the default one of guests. */
    readonly arch: Architecture
    /** Absolute. Holds images, templates and the results of probes. Exists once `qemu` succeeded. */
    readonly cacheDirectory: string
    /**
     * Absolute. Holds sockets and device states while a machine is being saved: `/run/exec-sandbox` (0711) for root,
     * `$XDG_RUNTIME_DIR/exec-sandbox` or `exec-sandbox-<uid>` in the temporary directory (0700) for others. Once `qemu`
     * succeeded, it exists and only we can write to it.
     */
    readonly runDirectory: string
    /** What to put before the QEMU binary. */
    readonly launcher: Launcher
    /**
     * The QEMU for guests of this architecture, probed at most once per binary and host state. Also creates the cache
     * and run directories. Fails with `HostUnsupported` when QEMU is missing, older than 7.2 or does not start, and when
     * one of the directories cannot be used.
     */
    readonly qemu: (arch: Architecture) => Effect.Effect<Qemu, SandboxError>
    /**
     * The frequency of this host's time stamp counter in kHz, for the guest's `tsc_early_khz` under TCG; `null` where the
     * kernel does not report it (arm64, macOS).
     */
    readonly tscKhz: Effect.Effect<number | null>
    /** Probes QEMU again, whatever the cache says, and reports everything above. Never fails. */
    readonly doctor: Effect.Effect<Report>
  }
>()("exec-sandbox/Host") {
  static readonly layer: Layer.Layer<Host> = Layer.effect(
    this,
    Effect.gen(function* () {
      const arch: Architecture = process.arch === "arm64" ? "arm64" : "amd64"
      const uid = process.geteuid?.() ?? 0
      const search = ((yield* variable("PATH")) ?? "/usr/local/bin:/usr/bin:/bin").split(delimiter)
      const override = yield* variable("EXEC_SANDBOX_QEMU")
      const cache = yield* cacheDirectory
      const run = yield* runDirectory(uid)
      const launcher = yield* probeLauncher({ cache, search, uid })
      const known = new Map<string, Qemu>()
      const lock = Semaphore.makeUnsafe(1)

      const qemu = (guest: Architecture, fresh: boolean) =>
        Effect.gen(function* () {
          const found = yield* findQemu({ guest, arch, override, search })
          yield* ensureCacheDirectory(cache)
          yield* ensureRunDirectory(run, uid)
          const key = qemuKey(found, guest, launcher)
          const before = known.get(key)
          if (before !== undefined && !fresh) return before
          return yield* lock.withPermits(1)(
            Effect.gen(function* () {
              const meanwhile = known.get(key)
              if (meanwhile !== undefined && !fresh) return meanwhile
              const probed = yield* probeQemu({ found, guest, launcher, search, cache, key, fresh })
              known.set(key, probed)
              return probed
            })
          )
        })

      return Host.of({
        arch,
        cacheDirectory: cache,
        runDirectory: run,
        launcher,
        qemu: Effect.fn("Host.qemu")((guest) => qemu(guest, false)),
        tscKhz,
        doctor: Effect.gen(function* () {
          const base = { ok: true, version: yield* packageVersion, platform: process.platform, arch, checks: [] }
          const checks = yield* inspectHost({ arch, cache, run, uid, launcher, search, qemu: qemu(arch, true) })
          return addChecks(base, checks)
        }).pipe(Effect.withSpan("Host.doctor"))
      })
    })
  )
}
