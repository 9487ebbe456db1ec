/** Connections from a session to a server on this host: the time to connect, bytes both ways, and many at once. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as net from "node:net"
import * as NetworkPolicy from "../src/NetworkPolicy.ts"
import { Sandbox } from "../src/Sandbox.ts"

const mebibytes = 16

/** A server: the client sends two 8-byte counts, then bytes up to the second count, and gets bytes up to the first. */
const server = Effect.acquireRelease(
  Effect.callback<{ readonly port: number; readonly server: net.Server }>((resume) => {
    const chunk = Buffer.alloc(64 * 1024, "x")
    const it = net.createServer((socket) => {
      let head = Buffer.alloc(0)
      let awaited = 0
      let left = 0
      const give = (): void => {
        while (left > 0) {
          const size = Math.min(left, chunk.length)
          left -= size
          if (!socket.write(chunk.subarray(0, size))) return void socket.once("drain", give)
        }
        socket.end()
      }
      socket.on("error", () => {})
      socket.on("data", (bytes) => {
        let rest: Buffer = bytes
        if (head.length < 16) {
          head = Buffer.concat([head, bytes])
          if (head.length < 16) return
          left = Number(head.readBigUInt64LE(0))
          awaited = Number(head.readBigUInt64LE(8))
          rest = head.subarray(16)
        }
        awaited -= rest.length
        if (awaited <= 0) give()
      })
    })
    it.listen(0, "127.0.0.1", () => {
      const address = it.address()
      if (typeof address === "object" && address !== null) resume(Effect.succeed({ port: address.port, server: it }))
    })
  }),
  (it) => Effect.sync(() => it.server.close())
)

const program = (port: number) => `
import socket, struct, threading, time
def exchange(down, up):
    s = socket.create_connection(("host", ${port}))
    s.sendall(struct.pack("<QQ", down, up) + b"x" * up)
    got = 0
    while chunk := s.recv(1 << 18): got += len(chunk)
    assert got == down, got
    s.close()
def taking(work):
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000
def connect():
    socket.create_connection(("host", ${port})).close()
def fifty():
    threads = [threading.Thread(target=exchange, args=(10_000, 10_000)) for _ in range(50)]
    for t in threads: t.start()
    for t in threads: t.join()
`

const Samples = Schema.Array(Schema.Finite)

export const measure = (times: number) =>
  Effect.gen(function* () {
    const { port } = yield* server
    const sandbox = yield* Sandbox
    const network = NetworkPolicy.allow([`host:${port}`])
    const session = yield* sandbox.session({ network, limits: { timeMs: 600_000 } })
    const python = (code: string) => session.exec({ language: "python", code })
    yield* python(program(port))
    const sample = (name: string, work: string, count: number) =>
      python(`${work}\n[taking(lambda: ${work}) for _ in range(${count})]`).pipe(
        Effect.flatMap(({ result }) => Schema.decodeUnknownEffect(Samples)(result?.json)),
        Effect.map((samples) => ({ suite: "egress", name, samples }))
      )
    const bytes = mebibytes * 2 ** 20
    return [
      yield* sample("connect, from inside", "connect()", times * 3),
      yield* sample(`download of ${mebibytes} MiB`, `exchange(${bytes}, 0)`, Math.ceil(times / 10)),
      yield* sample(`upload of ${mebibytes} MiB`, `exchange(0, ${bytes})`, Math.ceil(times / 10)),
      yield* sample("50 connections at a time, 10 kB both ways", "fifty()", Math.ceil(times / 10))
    ]
  }).pipe(Effect.scoped)
