/** An HTTP client over connections into the guest. A module of its own, so that Node's client is loaded only when it is used. */
import * as NodeHttpClient from "@effect/platform-node/NodeHttpClient"
import * as Effect from "effect/Effect"
import type * as HttpClient from "effect/http/HttpClient"
import * as http from "node:http"
import * as https from "node:https"
import type { Duplex } from "node:stream"

/** How many connections are open at one time; more requests wait. */
const maxSockets = 64

class GuestAgent extends http.Agent {
  readonly #dial: (port: number) => Duplex

  constructor(dial: (port: number) => Duplex) {
    super({ keepAlive: false, maxSockets, maxTotalSockets: maxSockets })
    this.#dial = dial
  }

  override createConnection(options: http.ClientRequestArgs): Duplex {
    return this.#dial(Number(options.port ?? 80))
  }
}

export const makeClient = (dial: (port: number) => Duplex): Effect.Effect<HttpClient.HttpClient> =>
  Effect.provideService(NodeHttpClient.makeNodeHttp, NodeHttpClient.HttpAgent, {
    http: new GuestAgent(dial),
    https: https.globalAgent
  })
