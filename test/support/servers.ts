/** Servers on this host that tests use in place of public ones, and certificates for them. */
import * as Effect from "effect/Effect"
import { execFileSync } from "node:child_process"
import * as fs from "node:fs"
import type * as net from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"

/** Listens on a free port of the loopback until the scope closes. */
export const listening = <S extends net.Server>(server: S) =>
  Effect.acquireRelease(
    Effect.callback<number>((resume) => {
      server.listen(0, "127.0.0.1", () => {
        const address = server.address()
        if (typeof address === "object" && address !== null) resume(Effect.succeed(address.port))
      })
    }),
    () => Effect.sync(() => server.close())
  )

/** An authority and, by name, the keys and certificates of servers: files in a directory that is removed with the scope. */
export const certificates = (names: ReadonlyArray<string>) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const directory = fs.mkdtempSync(join(tmpdir(), "sbx-ca-"))
      const request = (line: string) =>
        execFileSync("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", ...line.split(" ")], {
          cwd: directory,
          stdio: ["ignore", "ignore", "pipe"]
        })
      const common = "ec_paramgen_curve:prime256v1 -nodes -days 2"
      request(`${common} -subj /CN=test -keyout ca.key -out ca.pem -addext keyUsage=critical,keyCertSign`)
      const byName = names.map((name) => {
        const subject = `-subj /CN=${name} -addext subjectAltName=DNS:${name} -addext basicConstraints=CA:FALSE`
        request(`${common} -CA ca.pem -CAkey ca.key ${subject} -keyout k.pem -out c.pem`)
        const [key = "", cert = ""] = ["k.pem", "c.pem"].map((file) => fs.readFileSync(join(directory, file), "utf8"))
        return [name, { key, cert }] as const
      })
      return { directory, authority: join(directory, "ca.pem"), byName: new Map(byName) }
    }),
    ({ directory }) => Effect.sync(() => fs.rmSync(directory, { recursive: true, force: true }))
  )
