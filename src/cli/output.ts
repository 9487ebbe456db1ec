/** Writes exact bytes to the process's own streams, as fast as their reader reads. */
import * as Effect from "effect/Effect"
import type { Writable } from "node:stream"
import { Leave, signalCode } from "./ending.ts"

/** Writes and waits until the bytes are written. When the reader has gone, the process ends silently, as by SIGPIPE. */
export const write = (stream: Writable, data: Uint8Array | string): Effect.Effect<void, Leave> =>
  Effect.callback((resume) => {
    stream.write(data, (error) => {
      if (error === null || error === undefined) return resume(Effect.void)
      const { code } = error as NodeJS.ErrnoException
      const gone = code === "EPIPE" || code === "ERR_STREAM_DESTROYED"
      resume(
        Effect.fail(
          gone
            ? new Leave({ code: signalCode("SIGPIPE") })
            : new Leave({ code: 125, why: `cannot write the output: ${error.message}` })
        )
      )
    })
  })

/** Writes text to stdout. */
export const print = (text: string): Effect.Effect<void, Leave> => write(process.stdout, text)

/** Writes one line of JSON to stdout. */
export const printJson = (value: unknown): Effect.Effect<void, Leave> => print(`${JSON.stringify(value)}\n`)

/** Aligns rows of cells in columns, two spaces apart. */
export const table = (rows: ReadonlyArray<ReadonlyArray<string>>): string => {
  const widths: Array<number> = []
  for (const row of rows) row.forEach((cell, i) => (widths[i] = Math.max(widths[i] ?? 0, cell.length)))
  return rows
    .map(
      (row) =>
        `${row
          .map((cell, i) => cell.padEnd(widths[i] ?? 0))
          .join("  ")
          .trimEnd()}\n`
    )
    .join("")
}

/** A number of bytes as text: `612 B`, `1.4 GiB`. */
export const size = (bytes: number): string => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"]
  const power = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10))
  return power === 0 ? `${bytes} B` : `${(bytes / 1024 ** power).toFixed(1)} ${units[power]}`
}
