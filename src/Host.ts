/**
 * What this host can do: which QEMU there is, what it can run on, and how it is kept apart from us.
 *
 * Everything is found out by trying: an accelerator counts as working when this QEMU, launched the way a VM is launched,
 * came up on it. Results are kept in the cache directory per binary and host state, so that the question costs some
 * hundred milliseconds once and about ten afterwards. What is missing is reported with its reason, never silently.
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
 * What this host can do. Building the layer never fails, so `doctor` answers on a broken host too; what is missing shows
 * when it is first needed.
 *
 * The layer reads, once: `EXEC_SANDBOX_QEMU` (path of a QEMU binary, used for the architecture its name tells, for the
 * host's when it tells none), `EXEC_SANDBOX_CACHE_DIR`, `EXEC_SANDBOX_RUN_DIR`, `XDG_CACHE_HOME`, `XDG_RUNTIME_DIR`,
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
    /** Absolute. Holds images, templates and what was learnt about this host. Exists once `qemu` succeeded. */
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
     * The QEMU for guests of this architecture, tried out at most once per binary and host state. Also creates the cache
     * and run directories. Fails with `HostUnsupported` when QEMU is missing, older than 7.2 or does not start, and when
     * one of the directories cannot be used.
     */
    readonly qemu: (arch: Architecture) => Effect.Effect<Qemu, SandboxError>
    /**
     * The frequency of this host's time stamp counter in kHz, for the guest's `tsc_early_khz` under TCG; `null` where the
     * kernel does not tell (arm64, macOS).
     */
    readonly tscKhz: Effect.Effect<number | null>
    /** Tries QEMU out anew, whatever the cache says, and reports everything above. Never fails. */
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
