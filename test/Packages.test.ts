import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { decodeInput } from "../src/internal/decodeInput.ts"
import { key } from "../src/packages/Install.ts"
import * as Packages from "../src/Packages.ts"
import { parsePackage } from "../src/cli/packages.ts"

const decode = decodeInput(Packages.Packages, "packages")
const problem = (input: unknown) => Effect.map(Effect.flip(decode(input)), (error) => error.message)

describe("Packages", () => {
  it.effect("takes exact versions, with extras and scopes", () =>
    Effect.gen(function* () {
      const good = {
        python: ["pandas==2.2.3", "uvicorn[standard]==0.34.0", "Zope.Interface==7.2", "x==1!2.0rc1.post2+local.7"],
        javascript: ["lodash@4.17.21", "@scope/x@1.0.0", "JSONStream@1.3.5", "a@1.0.0-beta.2+build"],
        debian: ["graphviz=2.42.4-3", "g++=4:14.2.0-1", "libgmp10=2:6.3.0+dfsg-3+deb13u1~1"]
      }
      assert.deepStrictEqual(yield* decode(good), good)
      const names = Packages.parsed(good).map(({ name }) => name)
      assert.deepStrictEqual(names, [
        ..."pandas uvicorn x zope-interface @scope/x JSONStream a lodash".split(" "),
        ..."g++ graphviz libgmp10".split(" ")
      ])
    })
  )

  it.effect("refuses everything that does not name one version, unless it may float", () =>
    Effect.gen(function* () {
      const floating: ReadonlyArray<readonly [Packages.Ecosystem, string]> = [
        ["python", "pandas"],
        ["python", "pandas>=2, <3"],
        ["python", "pandas[a, b]~=2.2"],
        ["python", "pandas==2.*"],
        ["javascript", "lodash"],
        ["javascript", "lodash@latest"],
        ["javascript", "lodash@^4 || ~3.1"],
        ["javascript", "@scope/x"],
        ["debian", "graphviz"]
      ]
      for (const [ecosystem, spec] of floating) {
        assert.match(yield* problem({ [ecosystem]: [spec] }), /exact versions/, spec)
        assert.deepStrictEqual(yield* decode({ [ecosystem]: [spec], floating: true }), {
          [ecosystem]: [spec],
          floating: true
        })
      }
      const never: ReadonlyArray<readonly [Packages.Ecosystem, string]> = [
        ["python", ""],
        ["python", "--index-url=http://x"],
        ["python", "-r requirements.txt"],
        ["python", "./here"],
        ["python", "pandas @ https://example.org/x.whl"],
        ["python", "git+https://example.org/x"],
        ["python", "pandas==2.2.3; python_version > '3'"],
        ["python", "pandas==2.2.3 --hash=sha256:0"],
        ["python", "pändas==1"],
        ["python", `${"a".repeat(300)}==1`],
        ["python", `x==1${"a".repeat(190)}!`.replace("!", "/")],
        ["javascript", "lodash@file:../x"],
        ["javascript", "lodash@npm:other@1.0.0"],
        ["javascript", "https://example.org/x.tgz"],
        ["javascript", "user/repository"],
        ["javascript", "../x"],
        ["javascript", "--registry=http://x"],
        ["javascript", "@scope/@1.0.0"],
        ["javascript", "a@1.0.0\n"],
        ["debian", "Graphviz=2.42.4-3"],
        ["debian", "graphviz=2.42.4_3"],
        ["debian", "graphviz=v2"],
        ["debian", "graphviz/stable"],
        ["debian", "graphviz:arm64=2.42.4-3"],
        ["debian", "graphviz-"],
        ["debian", "./graphviz.deb"],
        ["debian", "graph*"],
        ["debian", "-oDir=/"]
      ]
      for (const [ecosystem, spec] of never) {
        for (const floating of [false, true]) {
          assert.match(yield* problem({ [ecosystem]: [spec], floating }), /^invalid packages/, spec)
        }
      }
      const twice = yield* problem({ python: ["Zope.Interface==7.2", "zope_interface==7.1"] })
      assert.match(twice, /each package once/)
      const many = Array.from({ length: 101 }, (_, n) => `p${n}==1`)
      assert.match(yield* problem({ python: many }), /at most 100 packages/)
      assert.match(yield* problem({ ruby: ["rails"] }), /invalid ruby/)
      assert.match(
        yield* problem({ debian: ["jq"] }),
        /debian packages with exact versions, such as "graphviz=2.42.4-3", not "jq"/
      )
    })
  )

  it("a policy judges requested packages by their normalized name", () => {
    const asked: Packages.Packages = { python: ["Zope.Interface==7.2"], javascript: ["left-pad@1.3.0"] }
    const target = (policy: Packages.PackagePolicy) => Packages.refused(policy, asked)?.spec
    assert.isUndefined(target(Packages.all))
    assert.strictEqual(target(Packages.only({})), "Zope.Interface==7.2")
    assert.strictEqual(target(Packages.only({ python: ["zope_interface"] })), "left-pad@1.3.0")
    assert.isUndefined(target(Packages.only({ python: ["zope.interface"], javascript: ["left-pad"] })))
    assert.strictEqual(target(Packages.when(({ ecosystem }) => ecosystem === "python")), "left-pad@1.3.0")
    assert.strictEqual(target(Packages.popular), "Zope.Interface==7.2")
    assert.isUndefined(
      Packages.refused(Packages.popular, { python: ["pandas==2.2.3"], javascript: ["lodash@4.17.21"] })
    )
    const debian: Packages.Packages = { debian: ["graphviz=2.42.4-3"] }
    assert.strictEqual(Packages.refused(Packages.only({ python: ["graphviz"] }), debian)?.ecosystem, "debian")
    assert.isUndefined(Packages.refused(Packages.only({ debian: ["graphviz"] }), debian))
    assert.isUndefined(Packages.refused(Packages.popular, debian))
    assert.strictEqual(
      Packages.refused(Packages.only({}), asked)?.message,
      'permission denied: python package "Zope.Interface==7.2" (package policy list); a package policy that allows ' +
        "zope-interface would allow it"
    )
  })

  it.effect("the key is equal for equal packages, however they are written, and different for others", () =>
    Effect.gen(function* () {
      const base = yield* key("base", { python: ["b==1", "a==1"], javascript: ["x@1.0.0"] })
      assert.match(base, /^[0-9a-f]{32}$/)
      assert.strictEqual(yield* key("base", { javascript: ["x@1.0.0"], python: ["a==1", "b==1"] }), base)
      const others: ReadonlyArray<Packages.Packages> = [
        { python: ["a==1", "b==1"] },
        { python: ["a==1", "b==1"], javascript: ["x@1.0.0"], debian: ["jq=1"] },
        { python: ["a==1", "b==2"], javascript: ["x@1.0.0"] },
        { python: ["a==1", "b==1"], javascript: ["x@1.0.0"], floating: true },
        { python: ["a==1", "b==1"], javascript: ["x@1.0.0"], imports: {} },
        { python: ["a==1", "b==1"], javascript: ["x@1.0.0"], imports: { python: ["a"] } }
      ]
      const keys = yield* Effect.forEach(others, (it) => key("base", it))
      keys.push(yield* key("other", { python: ["a==1", "b==1"], javascript: ["x@1.0.0"] }))
      assert.strictEqual(new Set([base, ...keys]).size, others.length + 2)
    })
  )

  it("the command line names the ecosystem first", () => {
    assert.deepStrictEqual(
      [
        "python:pandas==2.2.3",
        "javascript:@a/b@1.0.0",
        "pandas==2.2.3",
        "ruby:rails",
        "debian:git=1:2.47.3-0",
        "python:",
        ":x"
      ].map((text) => {
        const it = parsePackage(text)
        return it._tag === "Some" ? it.value : null
      }),
      [["python", "pandas==2.2.3"], ["javascript", "@a/b@1.0.0"], null, null, ["debian", "git=1:2.47.3-0"], null, null]
    )
  })
})
