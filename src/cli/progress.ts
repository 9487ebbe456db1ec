/** Draws the library's progress on stderr: one changing line on a terminal, a line per step elsewhere. */
import * as Effect from "effect/Effect"
import type { WriteStream } from "node:tty"
import { Progress, type ProgressEvent } from "../internal/Progress.ts"

const barWidth = 24

/** A step as one line of at most `columns` characters, with a bar if its size is known. */
export const draw = ({ done, message, stage, total }: ProgressEvent, columns: number): string => {
  const text = `${stage}: ${message}`
  if (done === undefined || total === undefined || total <= 0) return text.slice(0, columns)
  const part = Math.min(1, done / total)
  const filled = Math.floor(part * barWidth)
  const bar = ` [${"#".repeat(filled)}${" ".repeat(barWidth - filled)}] ${Math.floor(part * 100)}%`
  return `${text.slice(0, Math.max(0, columns - bar.length))}${bar}`.slice(0, columns)
}

/** Shows progress. `clear` erases the changing line before other output is written. */
export interface Drawer {
  readonly show: (event: ProgressEvent) => Effect.Effect<void>
  readonly clear: Effect.Effect<void>
}

/** Draws on a stream. */
export const make = (stream: Pick<WriteStream, "write" | "isTTY" | "columns">): Drawer => {
  const terminal = stream.isTTY
  let shown = ""
  return {
    show: (event) =>
      Effect.sync(() => {
        const next = terminal ? draw(event, (stream.columns || 80) - 1) : `${event.stage}: ${event.message}`
        if (next === shown) return
        shown = next
        stream.write(terminal ? `\r\x1b[K${next}` : `${next}\n`)
      }),
    clear: Effect.sync(() => {
      if (terminal && shown !== "") stream.write("\r\x1b[K")
      shown = ""
    })
  }
}

const silent: Drawer = { show: () => Effect.void, clear: Effect.void }

/** Runs an effect with progress on stderr, unless `quiet`. */
export const withProgress = <A, E, R>(
  quiet: boolean,
  body: (drawer: Drawer) => Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> => {
  const drawer = quiet ? silent : make(process.stderr)
  return body(drawer).pipe(Effect.provideService(Progress, drawer.show), Effect.ensuring(drawer.clear))
}
