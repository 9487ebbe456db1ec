/** The servers of the test kit. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { once } from "node:events"
import * as net from "node:net"
import { Sandbox } from "../../src/Sandbox.ts"
import type { Session } from "../../src/Session.ts"
import * as Testing from "../../src/Testing.ts"
import { kit, python } from "../support/kit.ts"

/** The status and text that the server on port 8080 answers. */
const ask = (session: Session, path: string) =>
  Effect.flatMap(session.http.get(`http://localhost:8080${path}`), (answer) =>
    Effect.map(answer.text, (text) => [answer.status, text])
  )
/** The handler of that server. */
const answer: Testing.HttpHandler = (request) => {
  const { pathname, search } = new URL(request.url)
  if (pathname === "/throw") throw new RangeError("my mistake")
  if (pathname === "/effect") return Effect.succeed(new Response("made"))
  return new Response(`${pathname}${search}`)
}

/** The error while no server listens there. */
const noServer = (session: Session) => Effect.flip(session.ports.waitFor(8080, 0))

describe("servers of the test kit", () => {
  it.effect(
    "servers live as long as the interpreter or process that started them, and are in forks and parked sessions",
    () =>
      Effect.gen(function* () {
        const it = yield* Sandbox.use((sandbox) => sandbox.session())
        assert.strictEqual((yield* it.exec(python("serve"))).stdout, "at your service\n")
        assert.deepStrictEqual(yield* ask(it, "/a?b=c"), [200, "/a?b=c"])
        const [status, text] = yield* ask(it, "/throw")
        assert.strictEqual(status, 500)
        assert.include(text, "RangeError: my mistake")
        assert.deepStrictEqual(yield* ask(it, "/effect"), [200, "made"])
        // As in a guest, the port is in use.
        const again = yield* Effect.flip(it.exec({ language: "bash", code: "serve" }))
        assert.strictEqual(again._tag, "TaskFailed")
        assert.isTrue(yield* it.park)
        assert.deepStrictEqual(yield* ask(it, "/"), [200, "/"])
        const [fork = it] = (yield* it.fork(1)).map(Result.getOrThrow)
        assert.deepStrictEqual(yield* ask(fork, "/"), [200, "/"])
        yield* Effect.flip(it.exec(python("die")))
        assert.strictEqual((yield* noServer(it)).reason._tag, "NotListening")
        assert.deepStrictEqual(yield* ask(fork, "/"), [200, "/"])
        const process = yield* it.spawn(["serve"])
        yield* it.ports.waitFor(8080, 0)
        yield* process.signal("SIGTERM")
        yield* process.exit
        assert.strictEqual((yield* noServer(it)).reason._tag, "NotListening")
      }).pipe(
        kit({
          script: ({ argv, code, ports }) => {
            if (argv?.[0] === "serve") {
              assert.isTrue(ports.listen(8080, answer))
              return Testing.hangs
            }
            return code === "serve"
              ? Testing.serves(8080, answer, { stdout: "at your service\n" })
              : Testing.killedBy("SIGKILL")
          }
        })
      )
  )

  it.effect("a server waits for a client that does not read, and a handler ends with its connection", () =>
    Effect.suspend(() => {
      const ended = Deferred.makeUnsafe<void>()
      let written = 0
      const flood = Testing.tcp((connection) =>
        Effect.callback<void>((resume) => {
          connection.write(Buffer.alloc(1024 * 1024), () => {
            written++
            resume(Effect.void)
          })
        }).pipe(Effect.forever, Effect.ensuring(Deferred.succeed(ended, undefined)))
      )
      return Effect.gen(function* () {
        const it = yield* Sandbox.use((sandbox) => sandbox.session())
        yield* it.exec(python("serve"))
        const { port } = yield* it.ports.expose(7000)
        const client = net.connect({ port, host: "127.0.0.1" })
        yield* Effect.promise(() => once(client, "readable"))
        client.destroy()
        yield* Deferred.await(ended)
        // Only what the host's kernel buffers for the client.
        assert.isBelow(written, 32)
      }).pipe(kit({ script: () => Testing.serves(7000, flood) }))
    })
  )
})
