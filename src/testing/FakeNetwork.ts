/** The network of the test kit: connects that a guest asks the host for, and a world in which nothing is dialled. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as net from "node:net"
import { Dialler, DialFailed } from "../egress/Dial.ts"
import { Finder } from "../egress/Registries.ts"
import { Resolver } from "../egress/Resolver.ts"
import { encodeJson, type Frame, Kind } from "../guest/Frame.ts"
import type { World } from "./Script.ts"

const decodeNote = Schema.decodeUnknownOption(
  Schema.fromJsonString(
    Schema.Struct({ event: Schema.Literals(["connected", "refused"]), errno: Schema.optionalKey(Schema.String) })
  )
)

export interface FakeNetwork {
  /** The name of the errno that a connect fails with; `null` when it does not. */
  readonly connect: (host: string, port: number) => Effect.Effect<string | null>
  /** A frame on a stream that this guest has opened. */
  readonly frame: (frame: Frame) => void
  /** A new epoch: nobody answers any more. */
  readonly clear: () => void
}

/** `open` gives a number of the guest's own. */
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
        send(encodeJson(Kind.Open, id, { method: "connect", host, port }))
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
      // Nothing is said on it.
      send(encodeJson(Kind.End, stream, {}))
      answer(stream, null)
    },
    clear: () => {
      for (const id of asked.keys()) answer(id, "ENETUNREACH")
    }
  }
}

/** What lies beyond the host: every name has an address, and what happens at it is the test's to say. */
export const world = (given: World): Layer.Layer<never> => {
  const addresses = new Map<string, string>()
  const names = new Map<string, string>()
  const addressOf = (name: string): string => {
    const known = addresses.get(name)
    if (known !== undefined) return known
    const at = addresses.size + 1
    // Addresses that nobody guards; they mean nothing out there.
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
    // Nobody looks into this host's configuration, or asks a registry.
    Layer.succeed(Finder, () => ({ indexes: [], env: {}, trusted: { env: {}, credentials: [] }, withheld: [] }))
  )
}
