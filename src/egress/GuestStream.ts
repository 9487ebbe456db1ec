/** The guest's end of a connection as a Node stream, at the guest's pace in both directions. */
import { Duplex } from "node:stream"
import type { Counts, Peer } from "./Splice.ts"

export class GuestStream extends Duplex {
  readonly #peer: Peer
  readonly #counts: Counts
  /** Bytes from the guest for which it has no new credit yet. */
  #owed = 0
  /** Bytes that the guest has not taken yet, and the callback for when it has. */
  #unsent: Uint8Array | undefined
  #done: ((error?: Error | null) => void) | undefined

  constructor(peer: Peer, counts: Counts) {
    super()
    this.#peer = peer
    this.#counts = counts
  }

  /** Bytes from the guest. */
  receive(bytes: Uint8Array): void {
    this.#owed += bytes.length
    this.#counts.bytesOut += bytes.length
    if (this.push(bytes)) this.#grant()
  }

  /** The guest takes more. */
  room(): void {
    if (this.#unsent !== undefined) this.#send(this.#unsent)
  }

  #grant(): void {
    if (this.#owed > 0) this.#peer.consumed(this.#owed)
    this.#owed = 0
  }

  #send(bytes: Uint8Array): void {
    const sent = this.#peer.send(bytes)
    this.#counts.bytesIn += sent
    this.#unsent = sent < bytes.length ? bytes.subarray(sent) : undefined
    if (this.#unsent !== undefined) return
    const done = this.#done
    this.#done = undefined
    done?.()
  }

  override _read(): void {
    this.#grant()
  }

  override _write(bytes: Uint8Array, _encoding: string, done: (error?: Error | null) => void): void {
    this.#done = done
    this.#send(bytes)
  }

  override _final(done: (error?: Error | null) => void): void {
    this.#peer.end()
    done()
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#unsent = undefined
    this.#done = undefined
    done(error)
  }
}
