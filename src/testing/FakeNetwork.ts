/** The network of the test kit: a guest's requests for connections, and a world in which nothing is dialled. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as net from "node:net"
import { Dialler, DialFailed } from "../egress/Dial.ts"
import { Finder } from "../egress/Registries.ts"
import { Resolver } from "../egress/Resolver.ts"
import { encodeJson, type Frame, Kind } from "../guest/Frame.ts"
import { connect } from "../guest/Methods.ts"
import type { World } from "./Script.ts"

const decodeNote = Schema.decodeUnknownOption(Schema.fromJsonString(connect.notes))

export interface FakeNetwork {
  /** Asks for a connection: the name of the errno that it fails with, or `null` when it was made. */
  readonly connect: (host: string, port: number) => Effect.Effect<string | null>
  /** Handles a frame on a stream that this guest opened. */
  readonly frame: (frame: Frame) => void
  /** A new epoch: all open requests fail. */
  readonly clear: () => void
}

/** `open` gives the number of a new stream of the guest. */
export const make = (send: (bytes: Uint8Array) => void, open: () => number): FakeNetwork => {
  const asked = new Map<number, (errno: string | null) => void>()
  const answer = (id: number, errno: string | null): void => {
    const tell = asked.get(id)
    asked.delete(id)
    tell?.(errno)
  }
  return {
    connect: (host, port) =>
      Effect.callback((resume) => {
        const id = open()
        asked.set(id, (errno) => resume(Effect.succeed(errno)))
        send(encodeJson(Kind.Open, id, { method: connect.name, host, port }))
        return Effect.sync(() => {
          if (asked.delete(id)) send(encodeJson(Kind.Reset, id, { code: "failed", message: "given up" }))
        })
      }),
    frame: ({ kind, payload, stream }) => {
      if (kind === Kind.Reset) return answer(stream, "ECONNRESET")
      if (kind !== Kind.Note) return
      const note = Option.getOrUndefined(decodeNote(payload.toString("utf8")))
      if (note?.event === "refused") answer(stream, note.errno ?? "ENETUNREACH")
      if (note?.event !== "connected" || !asked.has(stream)) return
      // The connection is closed without sending anything.
      send(encodeJson(Kind.End, stream, {}))
      answer(stream, null)
    },
    clear: () => {
      for (const id of asked.keys()) answer(id, "ENETUNREACH")
    }
  }
}

/** The network outside the host: every name has an address, and `given` decides how a connection to it ends. */
export const world = (given: World): Layer.Layer<never> => {
  const addresses = new Map<string, string>()
  const names = new Map<string, string>()
  const addressOf = (name: string): string => {
    const known = addresses.get(name)
    if (known !== undefined) return known
    const at = addresses.size + 1
    // Addresses that no rule reserves; they are never dialled.
    const address = `11.${(at >> 16) & 255}.${(at >> 8) & 255}.${at & 255}`
    addresses.set(name, address)
    names.set(address, name)
    return address
  }
  return Layer.mergeAll(
    Layer.succeed(Resolver, (name) => Effect.sync(() => [addressOf(name)])),
    Layer.succeed(Dialler, (address, port) =>
      Effect.suspend(() => {
        const code = given(names.get(address) ?? address, port)
        return code === null ? Effect.succeed(new net.Socket()) : Effect.fail(new DialFailed({ code }))
      })
    ),
    // Neither this host's configuration nor a registry is read.
    Layer.succeed(Finder, () => ({ indexes: [], env: {}, trusted: { env: {}, credentials: [] }, withheld: [] }))
  )
}
