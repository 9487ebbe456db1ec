/** Forwarded ports: a connection and its first answer, bytes each way, and many connections at once. */
import * as Effect from "effect/Effect"
import * as net from "node:net"
import { Sandbox } from "../src/Sandbox.ts"
import { type Measurement, repeat } from "./Measure.ts"

const mebibytes = 32

/** One server for all measurements: the client's first byte chooses one. */
const server = `
import asyncio
block = bytes(1024 * 1024)
async def answer(reader, writer):
    order = await reader.readexactly(1)
    if order == b"d":
        for _ in range(${mebibytes}):
            writer.write(block)
            await writer.drain()
    elif order == b"u":
        while await reader.read(262144): pass
        writer.write(b"!")
    else:
        writer.write(b"!")
    await writer.drain()
    writer.close()
async def main():
    await (await asyncio.start_server(answer, "127.0.0.1", 7300, limit=1048576, backlog=200)).serve_forever()
asyncio.run(main())
`

/** Connects, sends bytes, and reads until the end. */
const ask = (port: number, bytes: Uint8Array): Effect.Effect<void> =>
  Effect.callback((resume) => {
    const socket = net.connect({ port, host: "127.0.0.1", allowHalfOpen: true, noDelay: true })
    socket.on("error", (error) => resume(Effect.die(error)))
    socket.on("data", () => {})
    socket.on("close", () => resume(Effect.void))
    socket.end(bytes)
  })

/** A connection is measured until it closes, because the host accepts it before the guest has seen it. */
export const measure = (times: number) =>
  Effect.gen(function* () {
    const session = yield* Sandbox.use((sandbox) => sandbox.session())
    yield* session.files.write("server.py", server)
    yield* session.spawn(["python3", "server.py"])
    yield* session.ports.waitFor(7300, "30 seconds")
    const { port } = yield* session.ports.expose(7300)
    const ping = ask(port, Buffer.from("p"))
    yield* repeat(5, ping)
    const transfers = Math.max(2, Math.ceil(times / 20))
    const upload = Buffer.concat([Buffer.from("u"), Buffer.alloc(mebibytes * 1024 * 1024)])
    const at = (count: number) =>
      Effect.forEach(Array.from({ length: count }), () => ping, { concurrency: "unbounded", discard: true })
    const measurements: ReadonlyArray<Measurement> = [
      { suite: "ports", name: "connect, a byte and back, close", samples: yield* repeat(times, ping) },
      { suite: "ports", name: "50 of them at once, all", samples: yield* repeat(Math.max(3, transfers), at(50)) },
      { suite: "ports", name: `${mebibytes} MiB down`, samples: yield* repeat(transfers, ask(port, Buffer.from("d"))) },
      { suite: "ports", name: `${mebibytes} MiB up`, samples: yield* repeat(transfers, ask(port, upload)) }
    ]
    return measurements
  }).pipe(Effect.scoped)
