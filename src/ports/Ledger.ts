/** Counts connections and bytes through a session's ports, in total and for the time of one execution. */
import type { PortUse } from "../Receipt.ts"

/** A port that is open, with the counts so far. */
export type Use = { -readonly [K in keyof PortUse]: PortUse[K] }

export interface PortLedger {
  /** Adds a port. `host` and `port` are those on the host; `null` for `Session.http`. */
  readonly begin: (guestPort: number, host: string | null, port: number | null) => Use
  /** Removes a port. Recordings that have begun before still contain it. */
  readonly end: (use: Use) => void
  /** Begins a recording. */
  readonly record: () => Recording
}

/** What has gone through the ports since the recording began. `stop` ends it; `uses` is valid until then. */
export interface Recording {
  readonly uses: () => ReadonlyArray<PortUse>
  readonly stop: () => void
}

export const make = (): PortLedger => {
  const uses = new Set<Use>()
  const ended = new Set<Use>()
  let recording = 0

  const since = (use: Use, before: Use | undefined): PortUse => ({
    ...use,
    connections: use.connections - (before?.connections ?? 0),
    refused: use.refused - (before?.refused ?? 0),
    bytesIn: use.bytesIn - (before?.bytesIn ?? 0),
    bytesOut: use.bytesOut - (before?.bytesOut ?? 0)
  })

  return {
    begin: (guestPort, host, port) => {
      const use: Use = { guestPort, host, port, connections: 0, refused: 0, bytesIn: 0, bytesOut: 0 }
      uses.add(use)
      return use
    },
    end: (use) => {
      if (recording > 0) ended.add(use)
      else uses.delete(use)
    },
    record: () => {
      recording++
      const before = new Map([...uses].filter((use) => !ended.has(use)).map((use) => [use, { ...use }]))
      const already = new Set(ended)
      return {
        uses: () =>
          [...uses]
            .filter((use) => !already.has(use))
            .map((use) => since(use, before.get(use)))
            // An exposed port is reported even without traffic, a port of `Session.http` only with traffic.
            .filter((use) => use.port !== null || use.connections + use.bytesIn + use.bytesOut > 0),
        stop: () => {
          if (--recording > 0) return
          for (const use of ended) uses.delete(use)
          ended.clear()
        }
      }
    }
  }
}
