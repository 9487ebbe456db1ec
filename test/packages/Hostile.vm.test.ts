/** Packages that attack their installation: nothing of them runs while there is a network, and no credential leaves. */
import { assert, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { createHash } from "node:crypto"
import { rmSync } from "node:fs"
import { join } from "node:path"
import { Host } from "../../src/Host.ts"
import { Image } from "../../src/Image.ts"
import type * as Packages from "../../src/Packages.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { Template } from "../../src/Template.ts"
import { tarball, wheel } from "../support/archives.ts"
import { startRegistry } from "../support/registry.ts"

const live = Sandbox.layerTemplate.pipe(
  Layer.provideMerge(Template.layer),
  Layer.provideMerge(Image.layer),
  Layer.provideMerge(Host.layer)
)

const token = "token-of-this-host"
const name = "registry.example"

/** What a package's code does wherever it runs: it leaves a mark with its user, and asks the registry for something, if it can. */
const python = `import os, urllib.request; open('/var/tmp/ran-' + str(os.getuid()), 'a').close(); urllib.request.urlopen('https://${name}/pip/stolen', timeout=5)`
const script = `#!/bin/sh\nid -u >> /var/tmp/ran-by-path\n`

const evil = wheel("evil", "1.0", {
  "evil/__init__.py": "x = 1\n",
  "evil.pth": `${python}\n`,
  "sitecustomize.py": `${python}\n`,
  "usercustomize.py": `${python}\n`,
  // What a careless import of our own would find.
  "keyring.py": `${python}\n`,
  "pip/__init__.py": `${python}\n`
})
const thing = {
  name: "@local/thing",
  version: "1.0.0",
  bin: { python3: "x", node: "x", "apt-get": "x", dpkg: "x", curl: "x", npm: "x", sh: "x", find: "x", git: "x" },
  scripts: { preinstall: "sh x", install: "sh x", postinstall: "sh x", prepare: "sh x" }
}
const npm = tarball({
  "package.json": JSON.stringify(thing),
  "index.js": "exports.x = 1",
  x: script,
  ".npmrc": "ignore-scripts=false"
})

/** A registry of Python and npm packages that records each request and its credentials. */
const registry = Effect.gen(function* () {
  const asked: Array<{ readonly line: string; readonly authorization: string | undefined }> = []
  const dist = { tarball: `https://${name}/npm/thing.tgz`, shasum: createHash("sha1").update(npm).digest("hex") }
  const page = { name: thing.name, "dist-tags": { latest: "1.0.0" }, versions: { "1.0.0": { ...thing, dist } } }
  const sha256 = createHash("sha256").update(evil).digest("hex")
  const settings = {
    PIP_INDEX_URL: `https://user:${token}@${name}/pip/simple`,
    "npm_config_@local:registry": `https://${name}/npm/`,
    [`npm_config_//${name}/npm/:_authToken`]: token
  }
  const around = yield* startRegistry(name, settings, ({ headers, method, url = "" }, response) => {
    asked.push({ line: `${method} ${url}`, authorization: headers.authorization })
    if (url.endsWith(".whl")) return void response.end(evil)
    if (url.endsWith(".tgz")) return void response.end(npm)
    if (url.startsWith("/npm/")) {
      response.writeHead(200, { "content-type": "application/json" })
      return void response.end(JSON.stringify(page))
    }
    if (url !== "/pip/simple/evil/") return void response.writeHead(404).end()
    response.writeHead(200, { "content-type": "text/html" })
    response.end(`<a href="/pip/files/evil-1.0-py3-none-any.whl#sha256=${sha256}">evil-1.0-py3-none-any.whl</a>`)
  })
  return { asked, around }
})

layer(live, { excludeTestServices: true, timeout: "240 seconds" })("Packages", (it) => {
  it.effect(
    "run none of their code while there is a network, cannot replace our programs, and get no credential of this host",
    () =>
      Effect.gen(function* () {
        const sandbox = yield* Sandbox
        const templates = yield* Template
        const { around, asked } = yield* registry
        const packages: Packages.Packages = {
          python: ["evil==1.0"],
          javascript: ["@local/thing@1.0.0"],
          debian: ["libutempter0"],
          floating: true
        }
        const entry = yield* around(templates.warm(512, packages))
        // So that the next run installs again.
        const { cacheDirectory } = yield* Host
        yield* Effect.addFinalizer(() =>
          Effect.sync(() => rmSync(join(cacheDirectory, "templates", entry.key), { recursive: true, force: true }))
        )
        assert.isAbove(asked.length, 3)
        for (const { line } of asked) assert.match(line, /^(GET|HEAD) \/(pip\/simple|pip\/files|npm)\//)
        assert.isTrue(
          asked.some(({ authorization }) => authorization === `Bearer ${token}`),
          "the registry is shown the credential"
        )
        const session = yield* sandbox.session({ packages })
        // Its modules were imported afterwards, by the user; nothing ran as root, or because PATH led to it.
        const marks = yield* session.run("ls /var/tmp | grep ^ran || true")
        assert.strictEqual(marks.stdout, "ran-1000\n")
        const done = yield* session.run(
          "/usr/bin/python3 -c 'import evil; print(evil.x)' 2>&1 | tail -n 1; readlink /usr/local/bin/python3"
        )
        assert.match(done.stdout, /^1\n.*node_modules\/.bin\/python3\n$/)
      }).pipe(Effect.scoped)
  )
})
