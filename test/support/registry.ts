/** A registry on this machine that a guest's tools reach over TLS under a name of its own. */
import * as Effect from "effect/Effect"
import { readFileSync, writeFileSync } from "node:fs"
import type * as http from "node:http"
import * as https from "node:https"
import { join } from "node:path"
import { Dialler } from "../../src/egress/Dial.ts"
import { configured, Finder } from "../../src/egress/Registries.ts"
import { Resolver } from "../../src/egress/Resolver.ts"
import { certificates, listening } from "./servers.ts"

/** Never dialled: its connections go to the registry. */
const address = "192.0.2.90"

/**
 * Starts a registry of this name, which the host trusts until the scope closes. Returns a function that runs an effect in which
 * the host is configured by `settings` (environment variables of pip and npm) to use it.
 */
export const startRegistry = Effect.fnUntraced(function* (
  name: string,
  settings: Readonly<Record<string, string>>,
  answer: http.RequestListener
) {
  const { authority, byName, directory } = yield* certificates([name])
  const port = yield* listening(https.createServer(byName.get(name) ?? {}, answer))
  // This host trusts it in addition to all others.
  const { NODE_EXTRA_CA_CERTS = "" } = process.env
  const trusted = join(directory, "trusted.pem")
  const before = NODE_EXTRA_CA_CERTS === "" ? "" : readFileSync(NODE_EXTRA_CA_CERTS, "utf8")
  writeFileSync(trusted, `${before}\n${readFileSync(authority, "utf8")}`)
  process.env["NODE_EXTRA_CA_CERTS"] = trusted
  yield* Effect.addFinalizer(() => Effect.sync(() => Object.assign(process.env, { NODE_EXTRA_CA_CERTS })))
  const dial = yield* Dialler
  const resolve = yield* Resolver
  const env = { ...process.env, ...settings }
  return <A, E, R>(effect: Effect.Effect<A, E, R>) =>
    effect.pipe(
      Effect.provideService(Finder, (ecosystems, mirror) => configured(ecosystems, env, undefined, mirror)),
      Effect.provideService(Resolver, (host) => (host === name ? Effect.succeed([address]) : resolve(host))),
      Effect.provideService(Dialler, (to, at) => (to === address ? dial("127.0.0.1", port) : dial(to, at)))
    )
})
