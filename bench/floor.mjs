/**
 * The floor: restores a template with raw QMP and runs one piece of code in it, with nothing of the library. What the
 * library adds is measured against this, in the same run.
 *
 * Called as `node floor.mjs JSON` with { command, template, root, scratch, ramFlags, language, code, times, parallel? }; prints
 * the milliseconds from the start of QEMU to the END of the execution, one number a round, as a JSON array. With `parallel`
 * so many rounds run at once, and the last number is what all of them together took.
 */
import { spawn } from "node:child_process"
import { randomBytes } from "node:crypto"
import * as fs from "node:fs"

const plan = JSON.parse(process.argv[2])

const frame = (kind, stream, flags, payload) => {
  const header = Buffer.alloc(12)
  header.writeUInt32LE(payload.length, 0)
  header.writeUInt32LE(stream, 4)
  header[8] = kind
  header[9] = flags
  return Buffer.concat([header, payload])
}
const json = (value) => Buffer.from(JSON.stringify(value))

let next = 0
const round = () =>
  new Promise((resolve, reject) => {
    const started = performance.now()
    const copy = `${plan.template}/.clone-${process.pid}-floor${next++}`
    fs.copyFileSync(`${plan.template}/overlay.qcow2`, copy)
    const overlay = fs.openSync(copy, "r+")
    fs.unlinkSync(copy)
    const files = [
      fs.openSync(`${plan.template}/ram`, plan.ramFlags),
      fs.openSync(plan.root, "r"),
      fs.openSync(plan.scratch, "r"),
      overlay,
      fs.openSync(`${plan.template}/disk.qcow2`, "r"),
      fs.openSync(`${plan.template}/state`, "r")
    ]
    const [command, ...args] = plan.command
    const qemu = spawn(command, args, { stdio: ["pipe", "pipe", "ignore", "pipe", "pipe", ...files], detached: true })
    for (const fd of files) fs.closeSync(fd)
    const channel = qemu.stdio[3]
    qemu.stdio[4].resume()
    qemu.stdin.write(
      '{"execute":"qmp_capabilities"}\n' +
        '{"execute":"migrate-set-capabilities","arguments":{"capabilities":[{"capability":"events","state":true},{"capability":"x-ignore-shared","state":true}]}}\n' +
        '{"execute":"migrate-incoming","arguments":{"uri":"fd:10"}}\n'
    )
    let said = ""
    const onMonitor = (text) => {
      said += text
      if (!said.includes('"completed"')) return
      qemu.stdout.off("data", onMonitor)
      qemu.stdout.resume()
      qemu.stdin.write('{"execute":"cont"}\n')
      const hello = {
        protocol: 1,
        purpose: "session",
        clock: `${BigInt(Date.now()) * 1000000n}`,
        entropy: randomBytes(64).toString("hex"),
        hostname: "floor",
        machineId: randomBytes(16).toString("hex"),
        env: {},
        limits: { memoryBytes: 512 * 1024 * 1024, processes: 256 }
      }
      channel.write(
        Buffer.concat([
          Buffer.from([0xff, 0xff, 0xff, 0xff]),
          Buffer.from("exec-sandbox"),
          randomBytes(8),
          frame(1, 0, 0, json(hello))
        ])
      )
    }
    qemu.stdout.setEncoding("utf8").on("data", onMonitor)

    const code = Buffer.from(plan.code)
    let received = Buffer.alloc(0)
    let greeted = false
    channel.on("data", (chunk) => {
      received = Buffer.concat([received, chunk])
      if (!greeted && received.length >= 36) {
        greeted = true
        received = received.subarray(24)
        const open = {
          method: "exec",
          language: plan.language,
          codeBytes: code.length,
          stdinBytes: 0,
          env: {},
          cwd: null
        }
        channel.write(
          Buffer.concat([
            frame(2, 1, 0, json({ ...open, timeoutMs: 30000, memoryBytes: null })),
            frame(3, 1, 0x83, code),
            frame(3, 1, 0x80, Buffer.alloc(0))
          ])
        )
      }
      while (received.length >= 12) {
        const size = 12 + received.readUInt32LE(0)
        if (received.length < size) break
        if (received[8] === 6) {
          const took = performance.now() - started
          qemu.once("exit", () => resolve(took))
          qemu.kill("SIGKILL")
          return
        }
        if (received[8] === 7) reject(new Error(received.subarray(12, size).toString()))
        received = received.subarray(size)
      }
    })
    for (const pipe of [channel, qemu.stdin, qemu.stdio[4]]) pipe.on("error", () => {})
    qemu.once("error", reject)
  })

const took = []
let left = plan.times
const lane = async () => {
  while (left-- > 0) took.push(await round())
}
const started = performance.now()
await Promise.all(Array.from({ length: plan.parallel ?? 1 }, lane))
if (plan.parallel !== undefined) took.push(performance.now() - started)
process.stdout.write(JSON.stringify(took))
