/** The machine as its programs see it: its own name is its loopback, and its kernel gives the user no more than it must. */
import { assert, describe, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as NetworkPolicy from "../../src/NetworkPolicy.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { stdout } from "../support/executions.ts"

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("the machine", (it) => {
  describe("37: its own host name is a loopback address under every network policy", () => {
    const policies = { none: NetworkPolicy.none, all: NetworkPolicy.all() }
    for (const [name, network] of Object.entries(policies)) {
      it.effect(`policy ${name}`, () =>
        Effect.gen(function* () {
          const session = yield* Sandbox.use((sandbox) => sandbox.session({ network }))
          const code = `import socket
own = socket.gethostname()
server = socket.create_server((own, 0))
client = socket.create_connection((own, server.getsockname()[1]))
[socket.gethostbyname(own), client.getpeername()[0], socket.gethostbyname('localhost'),
  sorted({it[4][0] for it in socket.getaddrinfo('localhost', 80)}), own in open('/etc/hosts').read()]`
          const python = yield* session.exec({ language: "python", code })
          assert.deepStrictEqual(python.result?.json, [
            "127.0.0.1",
            "127.0.0.1",
            "127.0.0.1",
            ["127.0.0.1", "::1"],
            true
          ])
          assert.strictEqual(yield* stdout(session.run("hostname -i")), "127.0.0.1\n")
          const node =
            "const dns = require('node:dns/promises'); (await dns.lookup(require('node:os').hostname())).address"
          const javascript = yield* session.exec({ language: "javascript", code: node })
          assert.strictEqual(javascript.result?.json, "127.0.0.1")
        }).pipe(Effect.scoped)
      )
    }

    it.effect("forks have names of their own, which resolve too", () =>
      Effect.gen(function* () {
        const session = yield* Sandbox.use((sandbox) => sandbox.session())
        const [child] = yield* session.fork(1)
        if (child?._tag !== "Success") return assert.fail("no fork")
        const ask = "hostname; hostname -i; grep -c sbx- /etc/hosts"
        const [parents, childs] = [yield* stdout(session.run(ask)), yield* stdout(child.success.run(ask))]
        assert.match(childs, /^sbx-[0-9a-f]{8}\n127\.0\.0\.1\n1\n$/)
        assert.notStrictEqual(parents, childs)
      }).pipe(Effect.scoped)
    )
  })

  describe("38: the kernel's doors that a user does not need are closed", () => {
    it.effect("no user namespaces, and no process traces another that it did not start; root may allow them", () =>
      Effect.gen(function* () {
        const session = yield* Sandbox.use((sandbox) => sandbox.session())
        const unshare = "unshare --user --map-root-user true 2>/dev/null; echo $?"
        assert.strictEqual(yield* stdout(session.run(unshare)), "1\n")
        const trace = `sleep 60 & python3 -c 'import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(16, int(sys.argv[1]), 0, 0), ctypes.get_errno())' $!; kill $!`
        assert.strictEqual(yield* stdout(session.run(trace)), "-1 1\n")
        yield* session.run("echo 100 > /proc/sys/user/max_user_namespaces", { user: "root" })
        assert.strictEqual(yield* stdout(session.run(unshare)), "0\n")
      }).pipe(Effect.scoped)
    )
  })
})
