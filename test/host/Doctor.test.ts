/** What `doctor` reports of a host. */
import { assert, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as fs from "node:fs"
import * as path from "node:path"
import { describe } from "vitest"
import { addChecks, Report } from "../../src/Host.ts"
import { directory, environmentOf, fakeQemu, greeting, hostWith, statuses } from "../support/fakeHost.ts"

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
