/**
 * The floor: restores a template with raw QMP and runs one piece of code in it, without the library. The same run measures the
 * library too, and compares.
 *
 * Called as `node floor.mjs JSON` with { command, template, root, scratch, ramFlags, language, code, times, parallel?,
 * rehearsal? }; prints the milliseconds of every round, as a JSON array. A round lasts from the start of QEMU to the END of the
 * execution. With `rehearsal`, lines as [language, code], the clone runs these first and is paused, as in a pool, and the round
 * starts there. With `parallel`, that number of rounds run at once, and the last number is the time of all of them together.
 */
import { spawn } from "node:child_process"
import { randomBytes } from "node:crypto"
import * as fs from "node:fs"
import { setTimeout as sleep } from "node:timers/promises"

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

/** Restores a clone that is still paused: `monitor` sends commands to QEMU, `hello` and `run` talk to the agent. */
const restore = async (copy) => {
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

  /** Wakes the code that waits for the clone, on every message and on its death. */
  let wake
  let problem
  const until = async (ready) => {
    for (;;) {
      const found = ready()
      if (found !== undefined) return found
      if (problem !== undefined) throw problem
      await new Promise((resolve) => (wake = resolve))
    }
  }
  let said = ""
  qemu.stdout.setEncoding("utf8").on("data", (text) => {
    said += text
    wake?.()
  })
  let received = Buffer.alloc(0)
  channel.on("data", (chunk) => {
    received = Buffer.concat([received, chunk])
    wake?.()
  })
  for (const pipe of [channel, qemu.stdin, qemu.stdio[4]]) pipe.on("error", () => {})
  const dead = new Promise((resolve) => qemu.once("exit", resolve))
  const end = (error) => {
    problem ??= error
    wake?.()
  }
  qemu.once("error", end)
  void dead.then(() => end(new Error("QEMU died")))

  const monitor = (commands, answer) => {
    said = ""
    qemu.stdin.write(commands.map((it) => `${JSON.stringify(it)}\n`).join(""))
    return until(() => (said.includes(answer) ? true : undefined))
  }
  const nextFrame = () =>
    until(() => {
      if (received.length < 12) return undefined
      const size = 12 + received.readUInt32LE(0)
      if (received.length < size) return undefined
      const found = { kind: received[8], payload: received.subarray(12, size) }
      received = received.subarray(size)
      return found
    })
  await monitor(
    [
      { execute: "qmp_capabilities" },
      {
        execute: "migrate-set-capabilities",
        arguments: {
          capabilities: ["events", "x-ignore-shared"].map((capability) => ({ capability, state: true }))
        }
      },
      { execute: "migrate-incoming", arguments: { uri: "fd:10" } }
    ],
    '"completed"'
  )
  let stream = 1
  return {
    monitor,
    resume: () => qemu.stdin.write('{"execute":"cont"}\n'),
    hello: async (purpose) => {
      const hello = {
        protocol: 1,
        purpose,
        clock: `${BigInt(Date.now()) * 1000000n}`,
        entropy: randomBytes(64).toString("hex"),
        hostname: "floor",
        machineId: randomBytes(16).toString("hex"),
        env: {},
        limits: { memoryBytes: 512 * 1024 * 1024, processes: 256 }
      }
      received = Buffer.alloc(0)
      channel.write(
        Buffer.concat([
          Buffer.from([0xff, 0xff, 0xff, 0xff]),
          Buffer.from("exec-sandbox"),
          randomBytes(8),
          frame(1, 0, 0, json(hello))
        ])
      )
      await until(() => (received.length >= 24 ? true : undefined))
      received = received.subarray(24)
      await nextFrame()
      stream = 1
    },
    run: async (language, text, rehearsal) => {
      const code = Buffer.from(text)
      const open = { method: "exec", language, codeBytes: code.length, stdinBytes: 0, timeoutMs: 30000, rehearsal }
      channel.write(Buffer.concat([frame(2, stream, 0, json(open)), frame(3, stream, 0x83, code)]))
      stream += 2
      for (;;) {
        const { kind, payload } = await nextFrame()
        if (kind === 6) return
        if (kind === 7) throw new Error(payload.toString())
      }
    },
    end: () => {
      qemu.kill("SIGKILL")
      return dead
    }
  }
}

let next = 0
const round = async () => {
  let started = performance.now()
  const clone = await restore(`${plan.template}/.clone-${process.pid}-floor${next++}`)
  clone.resume()
  if (plan.rehearsal !== undefined) {
    await clone.hello("rehearsal")
    for (const [language, code] of plan.rehearsal) await clone.run(language, code, true)
    await sleep(150)
    await clone.monitor([{ execute: "stop" }], '"return"')
    await sleep(100)
    started = performance.now()
    clone.resume()
  }
  await clone.hello("session")
  await clone.run(plan.language, plan.code)
  const took = performance.now() - started
  await clone.end()
  return took
}

const took = []
let left = plan.times
const lane = async () => {
  while (left-- > 0) took.push(await round())
}
const started = performance.now()
await Promise.all(Array.from({ length: plan.parallel ?? 1 }, lane))
if (plan.parallel !== undefined) took.push(performance.now() - started)
process.stdout.write(JSON.stringify(took))
