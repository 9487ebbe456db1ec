/** Counts what goes through a session's ports, and says for a stretch of time what went. */
import type { PortUse } from "../Receipt.ts"

/** One port that is open, with what has gone through it so far. */
export type Use = { -readonly [K in keyof PortUse]: PortUse[K] }

export interface PortLedger {
  /** A port from now on, until `end`. */
  readonly begin: (guestPort: number, host: string | null, port: number | null) => Use
  readonly end: (use: Use) => void
  /** Begins a stretch of time. */
  readonly record: () => Recording
}

/** `uses` is what has happened since it began, until `stop`. */
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
            // Without a port on the host there is nothing to tell but what went through.
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
