/**
 * What a session tried to reach, attempt by attempt: for the receipts of the executions during which it happened, and the
 * latest ones for whoever asks.
 */
import type { NetworkAttempt } from "../Receipt.ts"

/** An attempt while it goes on. */
export interface Entry {
  readonly name: string
  readonly port: number
  decision: "allow" | "deny"
  rule: string
  reason: string | null
  bytesIn: number
  bytesOut: number
  /** What would have allowed it, of one that was refused. */
  grant: string | null
  /** What the guest's connect was answered with, of one that was refused; ECONNRESET after it was connected. */
  errno: string | null
  /** Secrets that were put into what the guest sent, where there are any for the host. */
  secrets?: ReadonlyArray<string>
}

/** Attempts kept for each receipt, and for the session; what is beyond is counted. */
const maxEntries = 200
/** Attempts kept beside the first ones, because a task fails with one of its last. */
const maxLast = 64

export interface Watch {
  readonly attempts: () => ReadonlyArray<NetworkAttempt>
  readonly omitted: () => number
  /** Those that were refused, of the first and the last ones. */
  readonly refused: () => ReadonlyArray<Entry>
  readonly stop: () => void
}

export interface Ledger {
  readonly open: (name: string, port: number) => Entry
  /** Gathers from now on. */
  readonly watch: () => Watch
  /** The latest attempts of all, the oldest first. */
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
