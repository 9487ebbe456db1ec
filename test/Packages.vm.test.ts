/** Packages from the real registries: installed once, warm in every session after that. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import { createHash } from "node:crypto"
import * as http from "node:http"
import * as NetworkPolicy from "../src/NetworkPolicy.ts"
import * as Packages from "../src/Packages.ts"
import { configured, Finder } from "../src/egress/Registries.ts"
import { fromApt, Mirror } from "../src/internal/DebianMirror.ts"
import * as PackageInstall from "../src/packages/Install.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { Template } from "../src/Template.ts"
import { Host } from "../src/Host.ts"
import { Image } from "../src/Image.ts"
import { tarball } from "./support/archives.ts"
import { ended, stdout } from "./support/executions.ts"
import { startRegistry } from "./support/registry.ts"
import { listening } from "./support/servers.ts"

/** A Debian package with a setgid program; it floats, because Debian decides which version exists. */
const packages: Packages.Packages = {
  python: ["six==1.17.0"],
  javascript: ["ms@2.1.3", "@local/thing@1.0.0"],
  debian: ["libutempter0"],
  floating: true
}

/** A policy that allows them, and a package that does not exist. */
const policy = Packages.only({
  python: ["six", "exec-sandbox-no-such-package"],
  javascript: ["ms", "@local/thing"],
  debian: ["libutempter0"]
})
const live = Sandbox.layerTemplate.pipe(
  Layer.provideMerge(Template.layer),
  Layer.provideMerge(Image.layer),
  Layer.provideMerge(Host.layer),
  Layer.provide(Layer.succeed(Packages.Policy, policy))
)

/**
 * A private registry for one scope of npm packages: it answers requests with this host's token. Runs an effect for
 * which it is `registry.example`, and also gives the tokens that it received. It answers the first requests that it is busy.
 */
const withPrivateRegistry = Effect.fnUntraced(function* <A, E, R>(effect: Effect.Effect<A, E, R>) {
  const token = "private-registry-token"
  const thing = { name: "@local/thing", version: "1.0.0" }
  const archive = tarball({ "package.json": JSON.stringify(thing), "index.js": "exports.thing = 7" })
  const shown = new Set<string | undefined>()
  /** How many requests it fails before it works. */
  let busy = 2
  const dist = {
    tarball: "https://registry.example/thing.tgz",
    shasum: createHash("sha1").update(archive).digest("hex")
  }
  const page = { name: thing.name, "dist-tags": { latest: "1.0.0" }, versions: { "1.0.0": { ...thing, dist } } }
  const settings = {
    "npm_config_@local:registry": "https://registry.example/",
    "npm_config_//registry.example/:_authToken": token
  }
  const using = yield* startRegistry("registry.example", settings, ({ headers, url }, response) => {
    shown.add(headers.authorization)
    if (headers.authorization !== `Bearer ${token}`) return void response.writeHead(401).end()
    if (busy-- > 0) return void response.writeHead(503).end()
    if (url?.endsWith(".tgz")) return void response.end(archive)
    response.writeHead(200, { "content-type": "application/json" })
    response.end(JSON.stringify(page))
  })
  const result = yield* using(effect)
  return { result, shown: [...shown], token }
})

layer(live, { excludeTestServices: true, timeout: "240 seconds" })("Packages", (it) => {
  describe("real registries", () => {
    it.effect(
      "are installed once; every session after that has them warm, for import and require, and no network",
      () =>
        Effect.gen(function* () {
          const sandbox = yield* Sandbox
          const templates = yield* Template
          const before = yield* templates.list
          const { result: entry, shown, token } = yield* withPrivateRegistry(templates.warm(512, packages))
          // For a template left by an earlier run, that run used the registry.
          const left = before.some(({ key }) => key === entry.key)
          assert.deepStrictEqual(shown, left ? [] : [`Bearer ${token}`])
          assert.deepStrictEqual(entry.packages?.asked, [
            "python:six==1.17.0",
            "javascript:@local/thing@1.0.0",
            "javascript:ms@2.1.3",
            "debian:libutempter0"
          ])
          assert.deepStrictEqual(entry.packages?.imported, ["six", "@local/thing", "ms"])
          const [six, thing, ms, utempter, ...others] = entry.packages?.resolved ?? []
          assert.deepInclude(thing, { ecosystem: "javascript", name: "@local/thing", version: "1.0.0" })
          assert.deepInclude(six, { ecosystem: "python", name: "six", version: "1.17.0" })
          assert.match(six?.integrity ?? "", /^sha256=[0-9a-f]{64}$/)
          assert.deepInclude(ms, { ecosystem: "javascript", name: "ms", version: "2.1.3" })
          assert.match(ms?.integrity ?? "", /^sha512-/)
          assert.deepInclude(utempter, { ecosystem: "debian", name: "libutempter0" })
          assert.match(utempter?.integrity ?? "", /^sha256=[0-9a-f]{64}$/)
          assert.deepStrictEqual(others, [])

          const session = yield* sandbox.session({ packages, limits: { timeMs: 120_000 } })
          const python = yield* session.exec({
            language: "python",
            code: "import sys\nwarm = 'six' in sys.modules\nnames = [n for n in dir() if n[0] != '_']\nimport six\n[warm, names, six.__version__]"
          })
          assert.deepStrictEqual(python.result?.json, [true, ["sys", "warm"], "1.17.0"])
          assert.deepStrictEqual(python.receipt.startPath.kind, "restore")
          assert.strictEqual(python.receipt.template, entry.key)
          const javascript = yield* session.exec({
            language: "javascript",
            code: "import ms from 'ms'; [Object.keys(require.cache).some((it) => it.includes('/ms/')), require('ms')('2 days'), ms('1h')]"
          })
          assert.deepStrictEqual(javascript.result?.json, [true, 172_800_000, 3_600_000])
          // Also for programs, for files in any directory, and for an interpreter that was restarted.
          const elsewhere = yield* session.run(
            "cd /tmp && echo 'console.log(require(\"ms\")(\"1s\"))' > a.cjs && node a.cjs && python3 -c 'import six; print(six.PY3)'"
          )
          assert.strictEqual(elsewhere.stdout, "1000\nTrue\n")
          yield* Effect.flip(session.exec({ language: "python", code: "import os; os._exit(1)" }))
          const again = yield* session.exec({ language: "python", code: "import six; six.__version__" })
          assert.strictEqual(again.result?.json, "1.17.0")
          const alone = yield* Effect.flip(
            session.exec({
              language: "python",
              code: "import urllib.request as r; r.urlopen('http://192.0.2.1', timeout=9)"
            })
          )
          assert.deepInclude(alone, { _tag: "PermissionDenied", operation: "network", rule: "none" } as const)
          // dpkg lists it, none of its programs gains privileges, and apt's files are removed.
          const debian = yield* session.run(
            `dpkg-query -W libutempter0; ls /usr/lib/*/utempter/utempter; find /usr -xdev -perm /6000
ls -A /var/lib/apt/lists /var/cache/apt/archives /var/tmp; test ! -e /usr/sbin/policy-rc.d`,
            { user: "root" }
          )
          assert.match(
            debian.stdout,
            /^libutempter0:\S+\t\S+\n\/usr\/lib\/[^/]+\/utempter\/utempter\n\/var\/cache\/apt\/archives:\n\n\/var\/lib\/apt\/lists:\n\n\/var\/tmp:\n$/
          )
          assert.include(debian.stdout, `\t${utempter?.version}\n`)
          const tidy = yield* session.run(
            `ls -A /tmp; ls -d ~/.cache ~/.npm 2>/dev/null; env | grep -c -i -E 'registry|index_url|_cert'; node -p 'require("@local/thing").thing'`
          )
          assert.strictEqual(tidy.stdout, "a.cjs\n0\n7\n")
          // Neither the token nor its stand-in is on the disk.
          const found = yield* Effect.flip(
            session.run("grep -rlE 'private-registry-token|exec-sandbox-secret-' /home /root /tmp /etc /usr/local", {
              user: "root"
            })
          )
          assert.strictEqual(found._tag !== "SandboxError" && found.stdout, "")

          // A fork of the session has them too.
          const saved = yield* session.snapshot()
          const copy = yield* sandbox.session({ from: saved, limits: { timeMs: 120_000 } })
          const kept = yield* copy.exec({
            language: "python",
            code: "import sys; [six.__version__, sys.modules['six'] is six]"
          })
          assert.deepStrictEqual(kept.result?.json, ["1.17.0", true])
          assert.strictEqual(yield* stdout(copy.run(`node -p 'require("ms")("1s")'`)), "1000\n")

          // The template without packages has none of this.
          const plain = yield* Effect.flip(sandbox.run({ language: "python", code: "import six" }))
          assert.strictEqual(plain._tag, "UnsupportedCommand")
        }).pipe(Effect.scoped),
      600_000
    )

    it.effect(
      "a package that the policy refuses, and one that does not exist",
      () =>
        Effect.gen(function* () {
          const sandbox = yield* Sandbox
          const refused = yield* Effect.flip(
            sandbox.run({ language: "python", code: "1" }, { packages: { python: ["pandas==2.2.3"] } })
          )
          assert.strictEqual(refused._tag, "PermissionDenied")
          if (refused._tag !== "PermissionDenied") return
          const { grant, operation, rule, target } = refused
          assert.deepStrictEqual([operation, target, rule], ["package", "python:pandas==2.2.3", "package policy list"])
          assert.strictEqual(grant, "a package policy that allows pandas would allow it")
          assert.deepInclude(refused.receipt, { outcome: "PermissionDenied", stopReason: "permission", exitCode: null })

          const bad = yield* Effect.flip(sandbox.session({ packages: { python: ["six"] } }))
          assert.strictEqual(bad._tag === "SandboxError" && bad.reason._tag, "InvalidInput")

          const missing = yield* Effect.flip(
            sandbox.run({ language: "python", code: "1" }, { packages: { python: ["six==99.0"] } })
          )
          assert.strictEqual(missing._tag, "UnsupportedCommand")
          if (missing._tag !== "UnsupportedCommand") return
          assert.deepStrictEqual([missing.kind, missing.name], ["module", "python:six==99.0"])
          assert.include(missing.available, "1.17.0")
        }).pipe(Effect.scoped),
      600_000
    )

    it.effect(
      "a registry that keeps failing may be tried again, one that refuses credentials not",
      () =>
        Effect.gen(function* () {
          const { vm } = yield* (yield* Template).clone(512)
          let asked = 0
          const port = yield* listening(
            http.createServer(({ url }, response) => {
              asked++
              response.writeHead(url?.startsWith("/busy/") ? 503 : 401).end()
            })
          )
          const failing = (place: string) => {
            const told = { PIP_CONFIG_FILE: "/dev/null", PIP_INDEX_URL: `http://127.0.0.1:${port}/${place}/` }
            return PackageInstall.install(vm, { python: ["six==1.17.0"] }, 512, Schedule.recurs(0)).pipe(
              Effect.provideService(Finder, (ecosystems) => configured(ecosystems, told)),
              Effect.flip
            )
          }
          const refused = yield* failing("private")
          assert.strictEqual(refused.message, "python packages: the index answers 401")
          assert.strictEqual(refused._tag === "SandboxError" && refused.retry, "never")
          assert.strictEqual(asked, 1)
          const busy = yield* failing("busy")
          assert.match(busy.message, /^python packages: the index cannot be read: .*\b503\b/)
          assert.strictEqual(busy._tag === "SandboxError" && busy.retry, "safe")
          // pip itself retried.
          assert.strictEqual(asked, 4)
          // The same for a mirror of Debian.
          for (const [mirror, problem] of [
            [`http://127.0.0.1:${port}/debian`, /^debian packages: .* 401 +Unauthorized/],
            ["file:/srv/debian", /^debian packages: this host's mirror of Debian is no address of http/]
          ] as const) {
            const told = fromApt({ EXEC_SANDBOX_DEBIAN_MIRROR: mirror }, "", { proxy: "", httpsProxy: "" })
            const error = yield* PackageInstall.install(vm, { debian: ["libutempter0"] }, 512, Schedule.recurs(0)).pipe(
              Effect.provideService(Mirror, Effect.succeed(told)),
              Effect.flip
            )
            assert.match(error.message, problem)
            assert.strictEqual(error._tag === "SandboxError" && error.retry, "never")
          }
        }).pipe(Effect.scoped),
      300_000
    )

    it.effect(
      "are all that a session's own tools can reach with the network `packages`",
      () =>
        Effect.gen(function* () {
          const sandbox = yield* Sandbox
          const session = yield* sandbox.session({ network: NetworkPolicy.packages(), limits: { timeMs: 280_000 } })
          const index = `
import os, urllib.request
index = os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"
print(b"six-1.17.0" in urllib.request.urlopen(index.rstrip("/") + "/six/").read())`
          const page = yield* session.exec({ language: "python", code: index })
          assert.strictEqual(page.stdout, "True\n")
          const done = yield* ended(
            session.exec({
              language: "bash",
              code: `cd && npm install --silent left-pad@1.3.0 && jq -r .version node_modules/left-pad/package.json
curl -sS -m 60 https://registry.example/`
            })
          )
          assert.strictEqual(done.stdout, "1.3.0\n", done.stderr)
          assert.deepInclude(done, { _tag: "PermissionDenied", target: "registry.example:443", rule: "not-granted" })
          const egress = [...(page.receipt.egress ?? []), ...(done.receipt.egress ?? [])]
          assert.deepStrictEqual(
            egress.filter(({ decision }) => decision === "deny").map(({ name, rule }) => [name, rule]),
            [["registry.example", "not-granted"]]
          )
          assert.isTrue(egress.every(({ decision, rule }) => decision === "deny" || rule.startsWith("packages: ")))
        }).pipe(Effect.scoped),
      300_000
    )
  })
})
