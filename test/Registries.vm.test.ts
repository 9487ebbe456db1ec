import { assert, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as NetworkPolicy from "../src/NetworkPolicy.ts"
import { Sandbox } from "../src/Sandbox.ts"
import { ended } from "./support/executions.ts"

/** npm takes half a minute to start on a busy host under emulation. */
const limits = { timeMs: 280_000 }

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("package registries", (it) => {
  it.effect(
    "pip and npm install from the real ones, and nothing else is reached",
    () =>
      Effect.gen(function* () {
        const session = yield* Sandbox.use((sandbox) => sandbox.session({ network: NetworkPolicy.packages(), limits }))
        const done = yield* ended(
          session.exec({
            language: "bash",
            code: `cd && pip install --quiet --no-input --no-deps six==1.17.0 && python3 -c 'import six; print(six.__version__)'
npm install --silent left-pad@1.3.0 && cat node_modules/left-pad/package.json | jq -r .version
curl -sS -m 60 https://registry.example/ 2>/dev/null; echo $?`
          })
        )
        assert.strictEqual(done.stdout, "1.17.0\n1.3.0\n7\n", done.stderr)
        const { egress } = done.receipt
        assert.deepStrictEqual(
          egress?.filter(({ decision }) => decision === "deny").map(({ name, rule }) => [name, rule]),
          [["registry.example", "not-granted"]]
        )
        assert.isTrue(egress?.every(({ decision, rule }) => decision === "deny" || rule.startsWith("packages: ")))
      }),
    300_000
  )
})
