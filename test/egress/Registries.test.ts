import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as fs from "node:fs"
import * as http from "node:http"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fromApt, variables } from "../../src/internal/DebianMirror.ts"
import { configured, fileHosts, hostPort } from "../../src/egress/Registries.ts"
import { listening } from "../support/servers.ts"

/** A home directory with these files. */
const home = (files: { readonly [name: string]: string }) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const directory = fs.mkdtempSync(join(tmpdir(), "sbx-home-"))
      for (const [name, text] of Object.entries(files)) {
        fs.mkdirSync(join(directory, name, ".."), { recursive: true })
        fs.writeFileSync(join(directory, name), text)
      }
      return directory
    }),
    (directory) => Effect.sync(() => fs.rmSync(directory, { recursive: true, force: true }))
  )

/** Hides the configuration files of this host. */
const quiet = { npm_config_globalconfig: "/dev/null", UV_CONFIG_FILE: "/dev/null", PIP_INDEX_URL: undefined }

const hosts = (...found: Parameters<typeof configured>) => configured(...found).indexes.map(({ url }) => hostPort(url))

describe("registries", () => {
  it.effect("come from the environment, else from files, else from the tools' defaults", () =>
    Effect.gen(function* () {
      const directory = yield* home({
        ".config/pip/pip.conf":
          "# company\n[global]\nindex-url = https://user:%73ecret%@pip.corp.example/simple\nextra-index-url =\n    http://extra.corp.example/a\n    https://more.corp.example:8443/b\n[list]\nindex-url = https://no.example\n",
        ".npmrc":
          "registry=https://npm.corp.example/r/\n@scope:registry=https://scope.corp.example/\n//npm.corp.example/:_authToken=secret\n"
      })
      const found = configured(["python", "javascript"], quiet, directory)
      assert.deepStrictEqual(
        found.indexes.map(({ url }) => hostPort(url)),
        [
          "pip.corp.example:443",
          "extra.corp.example:80",
          "more.corp.example:8443",
          "npm.corp.example:443",
          "scope.corp.example:443"
        ]
      )
      assert.deepStrictEqual(found.env, {
        PIP_INDEX_URL: "https://pip.corp.example/simple",
        UV_DEFAULT_INDEX: "https://pip.corp.example/simple",
        PIP_EXTRA_INDEX_URL: "http://extra.corp.example/a https://more.corp.example:8443/b",
        UV_INDEX: "http://extra.corp.example/a https://more.corp.example:8443/b",
        NPM_CONFIG_REGISTRY: "https://npm.corp.example/r/",
        "npm_config_@scope:registry": "https://scope.corp.example/"
      })
      assert.deepStrictEqual(found.withheld, [])
      // Tools that run no foreign code get stand-ins, which the border replaces.
      assert.deepStrictEqual(found.trusted.credentials, [
        { standIn: "registry-0-stand-in", host: "pip.corp.example:443", below: "/", value: "secret%" },
        { standIn: "registry-1-stand-in", host: "npm.corp.example:443", below: "/r/", value: "secret" }
      ])
      assert.deepStrictEqual(found.trusted.env, {
        ...found.env,
        PIP_INDEX_URL: "https://user:registry-0-stand-in@pip.corp.example/simple",
        UV_DEFAULT_INDEX: "https://user:registry-0-stand-in@pip.corp.example/simple",
        "npm_config_//npm.corp.example/:_authToken": "registry-1-stand-in"
      })
      assert.notInclude(JSON.stringify(found.env), "secret")
      const env = { ...quiet, PIP_INDEX_URL: "http://127.0.0.1:3141/root", NPM_CONFIG_REGISTRY: "https://env.example" }
      const told = configured(["python", "javascript"], env, directory)
      assert.strictEqual(told.env["PIP_INDEX_URL"], "http://host:3141/root")
      assert.strictEqual(told.env["PIP_TRUSTED_HOST"], "host")
      const insecure = configured(["python"], { ...quiet, PIP_TRUSTED_HOST: "localhost:3141 p.example" }, directory)
      assert.strictEqual(insecure.env["PIP_TRUSTED_HOST"], "host:3141 p.example")
      assert.strictEqual(told.env["NPM_CONFIG_REGISTRY"], "https://env.example/")
      assert.includeMembers(hosts(["python"], env, directory), ["host:3141"])
    })
  )

  it.effect("with credentials on this host are known, but not the credentials", () =>
    Effect.gen(function* () {
      const directory = yield* home({
        ".netrc": "machine a.example\n  login me\n  password secret\nmachine b.example login me password secret\n",
        ".npmrc":
          "registry=https://npm.example/r/\n//npm.example/other/:_authToken=secret\n@a:registry=https://scope.example/a\n@b:registry=https://b.example\n//scope.example/:_password=secret\n"
      })
      const pip = { PIP_CONFIG_FILE: "/dev/null", PIP_INDEX_URL: "https://c.example/simple" }
      const env = { ...quiet, ...pip, PIP_EXTRA_INDEX_URL: "https://a.example/x https://me:secret@d.example" }
      const found = configured(["python", "javascript"], env, directory)
      assert.deepStrictEqual(found.withheld, ["a.example:443", "scope.example:443"])
      assert.notInclude(JSON.stringify(found.env), "secret")
      const token = {
        ...quiet,
        "npm_config_//npm.example/:_authToken": "secret",
        "npm_config_@c:registry": "http://c.example"
      }
      const npm = configured(["javascript"], token, directory)
      assert.deepStrictEqual(npm.withheld, ["scope.example:443"])
      assert.deepInclude(npm.trusted.credentials, {
        standIn: "registry-0-stand-in",
        host: "npm.example:443",
        below: "/r/",
        value: "secret"
      })
      // The border cannot serve registries without TLS, with an address, or with a credential that no header can hold.
      for (const url of [
        "http://u:p@c.example",
        "https://u:p@192.168.0.1",
        "https://u:p@localhost",
        "https://u:%0a@c.example"
      ]) {
        const odd = configured(["python"], { ...quiet, PIP_CONFIG_FILE: "/dev/null", PIP_INDEX_URL: url }, directory)
        assert.deepStrictEqual([odd.trusted.credentials.length, odd.withheld.length], [0, 1], url)
      }
      assert.strictEqual(npm.env["npm_config_@c:registry"], "http://c.example/")
    })
  )

  it.effect("of uv are used if pip has none, and no variable is set if none is configured", () =>
    Effect.gen(function* () {
      const directory = yield* home({
        ".config/uv/uv.toml":
          'native-tls = true\n[[index]]\nname = "a"\nurl = "https://uv.example/simple"\ndefault = true\n\n[[index]]\nurl = "https://second.example/simple"\n[pip]\nindex-url = "https://not.example"\n'
      })
      const env = { npm_config_globalconfig: "/dev/null", PIP_CONFIG_FILE: "/dev/null" }
      assert.deepStrictEqual(hosts(["python"], env, directory), ["uv.example:443", "second.example:443"])
      const bare = yield* home({})
      const none = configured(["python", "javascript"], { ...quiet, PIP_CONFIG_FILE: "/dev/null" }, bare)
      assert.deepStrictEqual(none.env, {})
      assert.lengthOf(none.indexes, 2)
      const odd = { ...env, PIP_INDEX_URL: "ftp://x.example", PIP_EXTRA_INDEX_URL: "not a url" }
      assert.lengthOf(hosts(["python"], odd, bare), 1)
    })
  )

  it("of Debian are apt's mirror, through its proxy, or mmdebstrap's default", () => {
    const mirror = {
      main: "https://user:secret@mirror.corp.example/debian",
      security: "http://localhost:8080/debian-security/",
      proxy: "http://proxy.corp.example:3142",
      httpsProxy: undefined
    }
    const found = configured([], quiet, "/nonexistent", mirror)
    assert.deepStrictEqual(
      found.indexes.map(({ url }) => hostPort(url)),
      ["mirror.corp.example:443", "host:8080", "proxy.corp.example:3142"]
    )
    assert.deepStrictEqual(found.env, {})
    assert.deepStrictEqual(found.trusted, {
      env: {
        EXEC_SANDBOX_DEBIAN_MIRROR: "https://user:registry-0-stand-in@mirror.corp.example/debian",
        EXEC_SANDBOX_DEBIAN_SECURITY_MIRROR: "http://host:8080/debian-security/",
        EXEC_SANDBOX_DEBIAN_PROXY: "http://proxy.corp.example:3142/"
      },
      credentials: [
        { standIn: "registry-0-stand-in", host: "mirror.corp.example:443", below: "/debian/", value: "secret" }
      ]
    })
    const unsaid = { main: undefined, security: undefined, proxy: undefined, httpsProxy: undefined }
    const own = configured(["python"], { ...quiet, PIP_CONFIG_FILE: "/dev/null" }, "/nonexistent", unsaid)
    assert.deepStrictEqual(Object.keys(own.trusted.env), [
      "EXEC_SANDBOX_DEBIAN_MIRROR",
      "EXEC_SANDBOX_DEBIAN_SECURITY_MIRROR"
    ])
    assert.lengthOf(own.indexes, 3)
  })

  it("of Debian are found among all sources of apt", () => {
    const none = { proxy: "", httpsProxy: "" }
    const targets = [
      "https://docker.example/linux/debian Docker",
      "http://ubuntu.example/ubuntu/ Ubuntu",
      "http://a.example/debian/ Debian",
      "http://b.example/debian Debian",
      "http://a.example/debian-security $(ORIGIN)"
    ].join("\n")
    assert.deepStrictEqual(fromApt({}, targets, { proxy: "http://proxy.example:3142\n", httpsProxy: "" }), {
      main: "http://a.example/debian/",
      security: "http://a.example/debian-security",
      proxy: "http://proxy.example:3142",
      httpsProxy: undefined
    })
    const said = { EXEC_SANDBOX_DEBIAN_MIRROR: "http://c.example/debian" }
    assert.deepInclude(fromApt(said, targets, none), { main: "http://c.example/debian", security: undefined })
    const security = { EXEC_SANDBOX_DEBIAN_SECURITY_MIRROR: "http://d.example/security" }
    assert.deepInclude(fromApt(security, targets, none), {
      main: "http://a.example/debian/",
      security: "http://d.example/security"
    })
    const nothing = fromApt({ EXEC_SANDBOX_DEBIAN_MIRROR: " " }, "", none)
    assert.deepStrictEqual(variables(nothing), {})
  })

  it.live("list the hosts of their files, in JSON or in HTML", () =>
    Effect.gen(function* () {
      let asked = 0
      const port = yield* listening(
        http.createServer((request, response) => {
          asked++
          if (request.url === "/html/pip/") {
            response.writeHead(200, { "content-type": "text/html" })
            return void response.end(
              '<a href="https://files.example/a.whl#sha256=1">a</a><a class="x" href="../b.whl">b</a>'
            )
          }
          if (request.url === "/broken/pip/") return void response.destroy()
          response.writeHead(200, { "content-type": "application/json" })
          response.end(
            '{"files":[{"url":"https://cdn.example:8443/x"},{"url": "/y"}],"dist":{"tarball":"http://t.example/z"},"bugs":{"url":"https://no.example"}}'
          )
        })
      )
      const at = (name: string) =>
        configured(
          ["python"],
          { ...quiet, PIP_CONFIG_FILE: "/dev/null", PIP_INDEX_URL: `http://localhost:${port}/${name}` },
          "/nonexistent"
        )
      assert.deepStrictEqual(yield* fileHosts(at("html")), ["files.example:443", `host:${port}`])
      assert.deepStrictEqual(yield* fileHosts(at("json")), ["cdn.example:8443", `host:${port}`, "t.example:80"])
      assert.deepStrictEqual(yield* fileHosts(at("json")), ["cdn.example:8443", `host:${port}`, "t.example:80"])
      assert.strictEqual(asked, 2)
      assert.deepStrictEqual(yield* fileHosts(at("broken")), [])
      assert.deepStrictEqual(yield* fileHosts(at("broken")), [])
      assert.strictEqual(asked, 4)
    })
  )
})
