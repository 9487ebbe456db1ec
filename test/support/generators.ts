/** Code that prints every random or unique value that an interpreter can produce. */
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

/** The fast part: no worker, no keys. */
const quick = `
const crypto = require("node:crypto")
const hex = (bytes) => Buffer.from(bytes).toString("hex")
;({
  "randomUUID": crypto.randomUUID(),
  "webcrypto.randomUUID": crypto.webcrypto.randomUUID(),
  "randomBytes": hex(crypto.randomBytes(16)),
  "randomBytes later": hex(await new Promise((done) => crypto.randomBytes(16, (_, b) => done(b)))),
  "randomInt": crypto.randomInt(2 ** 47),
  "randomInt later": await new Promise((done) => crypto.randomInt(2 ** 47, (_, n) => done(n))),
  "getRandomValues": hex(crypto.webcrypto.getRandomValues(new Uint8Array(16))),
  "ed25519": crypto.generateKeyPairSync("ed25519").publicKey.export({ type: "spki", format: "pem" }),
  "Math.random": Math.random(),
  "Math.random in a new context": require("node:vm").runInNewContext("Math.random()"),
})`

const bash = `
printf '{"RANDOM":"%s","SRANDOM":"%s","uuid":"%s","boot_id":"%s","hostname":"%s","machine-id":"%s","mktemp":"%s","openssl":"%s"}' \
  "$RANDOM$RANDOM$RANDOM" "$SRANDOM" "$(cat /proc/sys/kernel/random/uuid)" "$(cat /proc/sys/kernel/random/boot_id)" \
  "$(hostname)" "$(cat /etc/machine-id)" "$(mktemp -u)" "$(openssl rand -hex 16)"`

/** By language. */
export const codes = { python, javascript, bash }
/** The same, with the fast part only. */
export const quickCodes = { python, javascript: quick, bash }

/** The output of such code: the value in JavaScript, text in the other languages. */
export const values = (language: "python" | "javascript" | "bash", text: unknown): Record<string, unknown> =>
  (language === "javascript" ? text : JSON.parse(String(text))) as Record<string, unknown>

/** Values that stay the same within one machine. */
export const ofTheMachine = new Set(["hostname", "machine-id", "boot_id"])
