/**
 * Records each attempt of a session to connect, for the receipts of the executions that run meanwhile and for the session's
 * list of the latest attempts.
 */
import type { NetworkAttempt } from "../Receipt.ts"

/** An attempt, updated while it goes on. */
export interface Entry {
  readonly name: string
  readonly port: number
  decision: "allow" | "deny"
  rule: string
  reason: string | null
  bytesIn: number
  bytesOut: number
  /** What would have allowed it; set when it is refused. */
  grant: string | null
  /** The errno of the guest's connect; set when it is refused. ECONNRESET after it was connected. */
  errno: string | null
  /** The secrets that were put into requests; set where there are any for the host. */
  secrets?: ReadonlyArray<string>
}

/** The most attempts recorded for a receipt, and for the session; the rest is only counted. */
const maxEntries = 200
/** The most of the last attempts that are kept in addition, because a task often fails with its last one. */
const maxLast = 64

export interface Watch {
  readonly attempts: () => ReadonlyArray<NetworkAttempt>
  readonly omitted: () => number
  /** The refused ones among the first and the last. */
  readonly refused: () => ReadonlyArray<Entry>
  readonly stop: () => void
}

export interface Ledger {
  readonly open: (name: string, port: number) => Entry
  /** Collects attempts from now on. */
  readonly watch: () => Watch
  /** The session's latest attempts, the oldest first. */
  readonly latest: () => ReadonlyArray<NetworkAttempt>
}

const plain = ({ bytesIn, bytesOut, decision, name, port, reason, rule, secrets }: Entry): NetworkAttempt => ({
  name,
  port,
  decision,
  rule,
  reason,
  bytesIn,
  bytesOut,
  ...(secrets !== undefined && { secrets })
})

export const make = (): Ledger => {
  const watches = new Set<{ readonly entries: Array<Entry>; readonly last: Array<Entry>; omitted: number }>()
  const latest: Array<Entry> = []
  return {
    open: (name, port) => {
      const entry: Entry = {
        name,
        port,
        decision: "deny",
        rule: "undecided",
        reason: null,
        bytesIn: 0,
        bytesOut: 0,
        grant: null,
        errno: null
      }
      latest.push(entry)
      if (latest.length > maxEntries) latest.shift()
      for (const watch of watches) {
        if (watch.entries.length < maxEntries) watch.entries.push(entry)
        else {
          watch.omitted++
          watch.last.push(entry)
          if (watch.last.length > maxLast) watch.last.shift()
        }
      }
      return entry
    },
    watch: () => {
      const watch = { entries: new Array<Entry>(), last: new Array<Entry>(), omitted: 0 }
      watches.add(watch)
      return {
        attempts: () => watch.entries.map(plain),
        omitted: () => watch.omitted,
        refused: () => [...watch.entries, ...watch.last].filter(({ decision }) => decision === "deny"),
        stop: () => {
          watches.delete(watch)
        }
      }
    },
    latest: () => latest.map(plain)
  }
}
