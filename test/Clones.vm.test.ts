/** Clones of one template are identical until they are made different: proof that they are, value by value. */
import { assert, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Sandbox } from "../src/Sandbox.ts"

const python = `
import os, random, secrets, ssl, tempfile, time, uuid, json
json.dumps({
  "os.urandom": os.urandom(16).hex(),
  "random.random": random.random(),
  "random.SystemRandom": random.SystemRandom().random(),
  "new random.Random": random.Random().random(),
  "uuid4": str(uuid.uuid4()),
  "uuid1": str(uuid.uuid1()),
  "secrets": secrets.token_hex(16),
  "ssl.RAND_bytes": ssl.RAND_bytes(16).hex(),
  "tempfile": tempfile.mktemp(),
})`

const javascript = `
const crypto = require("node:crypto")
const { Worker } = require("node:worker_threads")
const vm = require("node:vm")
const hex = (bytes) => Buffer.from(bytes).toString("hex")
const inWorker = await new Promise((resolve, reject) => {
  const worker = new Worker(
    'const c = require("node:crypto"); require("node:worker_threads").parentPort.postMessage([Math.random(), c.randomUUID()])',
    { eval: true })
  worker.once("message", resolve)
  worker.once("error", reject)
})
const ephemeral = crypto.createECDH("prime256v1")
const key = await crypto.webcrypto.subtle.generateKey({ name: "AES-GCM", length: 256 }, true, ["encrypt"])
;({
  "randomUUID": crypto.randomUUID(),
  "webcrypto.randomUUID": crypto.webcrypto.randomUUID(),
  "randomBytes": hex(crypto.randomBytes(16)),
  "randomBytes later": hex(await new Promise((done) => crypto.randomBytes(16, (_, b) => done(b)))),
  "randomInt": crypto.randomInt(2 ** 47),
  "randomInt later": await new Promise((done) => crypto.randomInt(2 ** 47, (_, n) => done(n))),
  "getRandomValues": hex(crypto.webcrypto.getRandomValues(new Uint8Array(16))),
  "subtle.generateKey": hex(await crypto.webcrypto.subtle.exportKey("raw", key)),
  "Math.random": Math.random(),
  "Math.random in a new context": vm.runInNewContext("Math.random()"),
  "Math.random in a worker": inWorker[0],
  "randomUUID in a worker": inWorker[1],
  "ed25519": crypto.generateKeyPairSync("ed25519").publicKey.export({ type: "spki", format: "pem" }),
  "ec": crypto.generateKeyPairSync("ec", { namedCurve: "P-256" }).privateKey.export({ type: "pkcs8", format: "pem" }),
  "ecdh": ephemeral.generateKeys("hex"),
  "mkdtemp": require("node:fs").mkdtempSync("/tmp/x-"),
})`

const bash = `
printf '{"RANDOM":"%s","SRANDOM":"%s","uuid":"%s","boot_id":"%s","hostname":"%s","machine-id":"%s","mktemp":"%s","openssl":"%s"}' \
  "$RANDOM$RANDOM$RANDOM" "$SRANDOM" "$(cat /proc/sys/kernel/random/uuid)" "$(cat /proc/sys/kernel/random/boot_id)" \
  "$(hostname)" "$(cat /etc/machine-id)" "$(mktemp -u)" "$(openssl rand -hex 16)"`

const values = (language: "python" | "javascript" | "bash", text: unknown): Record<string, unknown> =>
  (language === "javascript" ? text : JSON.parse(String(text))) as Record<string, unknown>

/** Everything random or unique that a fresh clone shows in a language, asked twice. */
const fresh = (language: "python" | "javascript" | "bash", code: string) =>
  Effect.gen(function* () {
    const session = yield* Sandbox.use((sandbox) => sandbox.session())
    const first = yield* session.exec({ language, code })
    const second = yield* session.exec({ language, code })
    const read = (result: typeof first) => values(language, language === "bash" ? result.stdout : result.result?.json)
    return [read(first), read(second)] as const
  }).pipe(Effect.scoped)

/** What stays the same within one machine. */
const ofTheMachine = new Set(["hostname", "machine-id", "boot_id"])

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("Clones", (it) => {
  for (const [language, code] of [
    ["python", python],
    ["javascript", javascript],
    ["bash", bash]
  ] as const) {
    it.effect(`${language}: nothing random repeats between three clones, nor in one`, () =>
      Effect.gen(function* () {
        const clones = yield* Effect.forEach([1, 2, 3], () => fresh(language, code), { concurrency: 2 })
        for (const name of Object.keys(clones[0]?.[0] ?? {})) {
          const seen = clones.flatMap(([first, second]) =>
            ofTheMachine.has(name) ? [first[name]] : [first[name], second[name]]
          )
          assert.isTrue(
            seen.every((value) => value !== undefined && value !== "" && value !== null),
            name
          )
          assert.strictEqual(new Set(seen).size, seen.length, `${name}: ${JSON.stringify(seen)}`)
        }
        assert.isAtLeast(Object.keys(clones[0]?.[0] ?? {}).length, 8)
      })
    )
  }

  it.effect("the wall clock is the host's within a second, in every interpreter", () =>
    Effect.gen(function* () {
      const session = yield* Sandbox.use((sandbox) => sandbox.session())
      const codes = [
        ["python", "import time\nprint(time.time())"],
        ["javascript", "console.log(Date.now() / 1000)"],
        ["bash", "echo $EPOCHREALTIME"]
      ] as const
      for (const [language, code] of codes) {
        const before = Date.now() / 1000
        const { stdout } = yield* session.exec({ language, code })
        const after = Date.now() / 1000
        assert.isAtLeast(Number(stdout), before - 1, language)
        assert.isAtMost(Number(stdout), after + 1, language)
      }
    }).pipe(Effect.scoped)
  )
})
