/**
 * A fake QEMU whose guest misbehaves as no real one can be made to. It speaks QMP on its standard input and output and the
 * channel on descriptor 3. Its first argument names the misbehaviour.
 */
import * as fs from "node:fs"
import * as net from "node:net"

const mode = process.argv[2]
fs.writeFileSync(process.argv[3], `${process.pid}`)

const channel = new net.Socket({ fd: 3 })
const frame = (kind, stream, flags, payload) => {
  const header = Buffer.alloc(12)
  header.writeUInt32LE(payload.length, 0)
  header.writeUInt32LE(stream, 4)
  header[8] = kind
  header[9] = flags
  return Buffer.concat([header, payload])
}
const json = (kind, stream, value) => frame(kind, stream, 0, Buffer.from(JSON.stringify(value)))
const acknowledged = {
  clock: true,
  entropy: true,
  hostname: true,
  machineId: true,
  env: true,
  limits: true,
  network: true
}
const hello = (refused) => ({
  protocol: 1,
  ready: true,
  acknowledged: { ...acknowledged, ...refused },
  languages: ["python", "javascript", "typescript"],
  kernel: "fake",
  agent: "fake"
})
const evidence = {
  exitCode: 0,
  signal: null,
  exception: null,
  commands: [],
  limits: [],
  state: "kept",
  result: null,
  usage: { cpuMs: 1, peakMemoryBytes: 1, wallMs: 1 }
}
/** What the guest does when it gets code. */
const onExec = {
  "impossible-exit": () => channel.write(json(6, 1, { ...evidence, exitCode: 256 })),
  "negative-usage": () => channel.write(json(6, 1, { ...evidence, usage: { ...evidence.usage, cpuMs: -1 } })),
  // Its answer about files: data on sub-stream 4, then the end.
  "read-lies": () =>
    channel.write(Buffer.concat([frame(3, 1, 4, Buffer.from("abc")), json(6, 1, { size: 3, bytes: 4 })])),
  "read-more": () => channel.write(frame(3, 1, 4, Buffer.alloc(100_000))),
  "stat-lies": () => channel.write(json(6, 1, { type: "file", size: -1, mode: 0, modified: 0, uid: 0, gid: 0 })),
  "list-garbage": () => channel.write(frame(3, 1, 4, Buffer.from('{"name":"../x","type":"file","size":0}\n'))),
  "list-endless": () => channel.write(frame(3, 1, 4, Buffer.alloc(200_000, 0x41))),
  "endless-depth": () => {
    const deep = `{"repr":"","json":${"[".repeat(100_000)}${"]".repeat(100_000)}}`
    channel.write(frame(6, 1, 0, Buffer.from(JSON.stringify(evidence).replace('"result":null', `"result":${deep}`))))
  },
  "bad-evidence": () => channel.write(json(6, 1, { exitCode: "zero" })),
  "no-evidence": () => channel.write(frame(6, 1, 0, Buffer.from("{"))),
  "never-ends": () => setInterval(() => channel.write(frame(9, 0, 0, Buffer.alloc(8))), 5),
  "reseed-failed": () => channel.write(json(7, 1, { code: "failed", message: "python did not reseed" })),
  "dies-in-the-middle": () =>
    channel.write(
      Buffer.concat([json(5, 1, { event: "started" }), json(7, 1, { code: "failed", message: "it died" })])
    ),
  refuses: () => channel.write(json(7, 1, { code: "invalid", message: "cwd: /nowhere does not exist" })),
  "dies-at-once": () => process.exit(1)
}

let greeted = false
let opened = false
channel.on("data", (bytes) => {
  const at = bytes.indexOf("exec-sandbox")
  if (!greeted && at !== -1) {
    greeted = true
    if (mode === "silent") return
    const head = Buffer.concat([
      Buffer.from([255, 255, 255, 255]),
      Buffer.from("exec-sandbox"),
      bytes.subarray(at + 12, at + 20)
    ])
    channel.write(Buffer.concat([head, json(1, 0, hello(mode === "refuses-entropy" ? { entropy: false } : {}))]))
    if (mode === "garbage") channel.write(Buffer.alloc(100, 0x41))
  } else if (!opened && greeted) {
    opened = true
    onExec[mode]?.()
  }
})
channel.on("error", () => {})

const monitor = (value) => process.stdout.write(`${JSON.stringify(value)}\n`)
monitor({ QMP: {} })
let rest = ""
process.stdin.setEncoding("utf8").on("data", (text) => {
  if (mode === "no-monitor") return
  rest += text
  for (let at = rest.indexOf("\n"); at !== -1; at = rest.indexOf("\n")) {
    const { execute, id } = JSON.parse(rest.slice(0, at))
    rest = rest.slice(at + 1)
    monitor({ return: {}, id })
    if (execute !== "migrate-incoming") continue
    if (mode === "wrong-state") {
      process.stderr.write("qemu: Size mismatch: pc.bios\n")
      process.exit(1)
    }
    const loaded = () =>
      monitor({ event: "MIGRATION", data: { status: mode === "load-fails" ? "failed" : "completed" } })
    // As from a busy disk.
    if (mode === "slow-disk") setTimeout(loaded, 400)
    else loaded()
  }
})
process.stdin.on("end", () => process.exit(0))
