/** How the installers' answers are handled, with a fake machine that gives them. */
import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { TestClock } from "effect/testing"
import { Finder, type Registries } from "../../src/egress/Registries.ts"
import type { NetworkGrant } from "../../src/guest/Hello.ts"
import { Sub } from "../../src/guest/Frame.ts"
import { fromApt, Mirror } from "../../src/internal/DebianMirror.ts"
import { install } from "../../src/packages/Install.ts"
import type { Installer } from "../../src/packages/Network.ts"
import type { Packages } from "../../src/Packages.ts"

const end = {
  exitCode: 0,
  signal: null,
  exception: null,
  commands: [],
  limits: [],
  state: "kept",
  result: null,
  usage: { cpuMs: null, peakMemoryBytes: null, wallMs: null }
}

/** A machine whose installers give these answers in turn; `ran` has the installers that ran. */
const machine = (answers: ReadonlyArray<object>) => {
  const ran: Array<string> = []
  /** The number of handovers before each of them. */
  const greeted: Array<number> = []
  const networks: Array<NetworkGrant | null> = []
  const vm: Installer = {
    accept: () => {},
    handover: ({ network }) =>
      Effect.sync(() => {
        networks.push(network)
        return { protocol: 1, ready: true, languages: [], kernel: "", agent: "" } as const
      }),
    open: (method, request) =>
      Effect.sync(() => {
        const argv =
          typeof request === "object" && request !== null && "argv" in request && Array.isArray(request.argv)
            ? request.argv
            : undefined
        const answer = argv === undefined ? undefined : answers[ran.length]
        if (argv !== undefined) {
          ran.push(String(argv[0]))
          greeted.push(networks.length)
        }
        let taken = false
        const takeAll = Effect.suspend(() => {
          if (taken) return Cause.done()
          taken = true
          const bytes = Buffer.from(JSON.stringify(answer ?? {}))
          return Effect.succeed([
            { _tag: "Data", sub: Sub.stdout, bytes, end: false } as const,
            { _tag: "End", value: end } as const
          ])
        })
        return {
          method,
          id: 1,
          takeAll,
          take: takeAll,
          consumed: () => {},
          write: () => Effect.succeed(true),
          order: () => Effect.void
        }
      })
  }
  return { vm, ran, greeted, networks }
}

const registries = (withheld: ReadonlyArray<string>) => (): Registries => ({
  indexes: [],
  env: {},
  trusted: {
    env: { "npm_config_//npm.example/:_authToken": "stand-in-0" },
    credentials: [{ standIn: "stand-in-0", host: "npm.example", below: "/", value: "s3cret" }]
  },
  withheld
})
const installed = {
  status: "installed",
  resolved: [{ name: "six", version: "1.17.0", integrity: null }],
  modules: ["six"]
}
const trouble = { status: "registry", problem: "the index answers 503" }
const absent = { status: "not-found", name: "six", available: ["1.17.0"] }

/** Installs while the test clock advances. */
const installing = (
  vm: Installer,
  withheld: ReadonlyArray<string> = [],
  packages: Packages = { python: ["six==1.17.0"] }
) =>
  Effect.gen(function* () {
    const fiber = yield* Effect.forkChild(Effect.exit(install(vm, packages, 512)))
    // The programs are read from real files, so the test does not know when the installation begins to wait.
    while (fiber.pollUnsafe() === undefined) {
      yield* TestClock.adjust("1 second")
      yield* TestClock.withLive(Effect.sleep("1 millis"))
    }
    return yield* yield* Fiber.join(fiber)
  }).pipe(
    Effect.provideService(Finder, registries(withheld)),
    Effect.provideService(Mirror, Effect.succeed(fromApt({}, "", { proxy: "", httpsProxy: "" }))),
    Effect.scoped
  )

describe("package installers", () => {
  it.effect("run again when a registry fails", () =>
    Effect.gen(function* () {
      const { ran, vm } = machine([trouble, trouble, installed])
      const lock = yield* installing(vm)
      assert.deepStrictEqual(ran, ["/usr/bin/python3", "/usr/bin/python3", "/usr/bin/python3"])
      assert.deepStrictEqual(lock.asked, ["python:six==1.17.0"])
      assert.deepStrictEqual(lock.resolved, [{ ecosystem: "python", name: "six", version: "1.17.0", integrity: null }])
      assert.deepStrictEqual(lock.imported, ["six"])
    })
  )

  it.effect("fail with PackagesUnavailable, which is safe to try again, when the registry keeps failing", () =>
    Effect.gen(function* () {
      const { ran, vm } = machine([trouble, trouble, trouble, installed])
      const error = yield* Effect.flip(installing(vm))
      assert.lengthOf(ran, 3)
      assert.strictEqual(error._tag, "SandboxError")
      if (error._tag !== "SandboxError" || error.reason._tag !== "PackagesUnavailable")
        return assert.fail(error.message)
      assert.strictEqual(error.reason.retry, "safe")
      assert.strictEqual(error.reason.message, "python packages: the index answers 503")
    })
  )

  it.effect("do not run again for a registry that refuses to serve them", () =>
    Effect.gen(function* () {
      const { ran, vm } = machine([{ status: "refused", problem: "the index answers 401" }, installed])
      const error = yield* Effect.flip(installing(vm))
      assert.lengthOf(ran, 1)
      assert.strictEqual(error._tag === "SandboxError" && error.retry, "never")
      assert.strictEqual(error.message, "python packages: the index answers 401")
    })
  )

  it.effect("get a stand-in for each credential, and nothing afterwards", () =>
    Effect.gen(function* () {
      const { networks, vm } = machine([installed])
      yield* installing(vm)
      const [during, after] = networks
      assert.match(during?.env["npm_config_//npm.example/:_authToken"] ?? "", /^exec-sandbox-secret-[0-9a-f]{40}$/)
      assert.include(during?.authorities, "BEGIN CERTIFICATE")
      assert.notInclude(JSON.stringify(networks), "s3cret")
      assert.deepStrictEqual(after, { authorities: "", env: {} })
    })
  )

  it.effect("fetch Debian packages with a network, and run their scripts without one", () =>
    Effect.gen(function* () {
      const jq = { name: "jq", version: "1.7.1-6", integrity: "sha256=0" }
      const fetched = { status: "installed", resolved: [jq], modules: [] }
      const { greeted, networks, ran, vm } = machine([installed, fetched, { ...fetched, resolved: [] }])
      const lock = yield* installing(vm, [], { debian: ["jq=1.7.1-6"], python: ["six==1.17.0"] })
      assert.deepStrictEqual(ran, ["/usr/bin/python3", "/usr/bin/python3", "/usr/bin/python3"])
      assert.deepStrictEqual(greeted, [1, 1, 2])
      assert.deepStrictEqual(networks[1], { authorities: "", env: {} })
      assert.deepStrictEqual(lock.asked, ["python:six==1.17.0", "debian:jq=1.7.1-6"])
      assert.deepStrictEqual(lock.resolved.at(-1), { ecosystem: "debian", ...jq })
      assert.deepStrictEqual(lock.imported, ["six"])

      const broken = machine([fetched, { status: "conflict", problem: "its script failed" }])
      const error = yield* Effect.flip(installing(broken.vm, [], { debian: ["jq=1.7.1-6"] }))
      assert.strictEqual(error.message, 'debian package "jq=1.7.1-6": its script failed')
    })
  )

  it.effect("report missing packages, and credentials that this host has but did not give", () =>
    Effect.gen(function* () {
      const missing = yield* Effect.flip(installing(machine([absent]).vm))
      assert.deepInclude(missing, { _tag: "PackageError", spec: "six==1.17.0" } as const)
      const withheld = yield* Effect.flip(installing(machine([absent]).vm, ["pip.example:443"]))
      assert.strictEqual(withheld._tag, "SandboxError")
      assert.include(
        withheld.message,
        "six==1.17.0 is not publicly available; this host's credentials for pip.example:443"
      )
      const refused = yield* Effect.flip(installing(machine([trouble, trouble, trouble]).vm, ["pip.example:443"]))
      assert.include(
        refused.message,
        "the index answers 503; this host's credentials for pip.example:443 are not given"
      )
    })
  )
})
