/** Reads the input of `run` before it starts: code from a file or stdin, and stdin for the code. */
import * as Effect from "effect/Effect"
import * as Stdio from "effect/Stdio"
import * as Stream from "effect/Stream"
import { readFile } from "node:fs/promises"
import { Leave } from "./ending.ts"
import type { Source } from "./source.ts"

/** The most that the library accepts, in bytes. */
const maxInput = 16 * 1024 * 1024

const unreadable = (name: string, problem: string): Leave =>
  new Leave({ code: 2, why: `cannot read ${name}: ${problem}` })

/** Reads stdin to its end. `waiting` runs when nothing has arrived within a second. */
export const readStdin = <R>(
  waiting: Effect.Effect<void, never, R>
): Effect.Effect<Uint8Array, Leave, Stdio.Stdio | R> =>
  Effect.gen(function* () {
    const { stdin } = yield* Stdio.Stdio
    const chunks: Array<Uint8Array> = []
    let bytes = 0
    const read = stdin.pipe(
      Stream.mapError((error) => unreadable("stdin", error.message)),
      Stream.runForEach((chunk) => {
        chunks.push(chunk)
        bytes += chunk.length
        return bytes > maxInput ? Effect.fail(unreadable("stdin", `it has more than ${maxInput} bytes`)) : Effect.void
      })
    )
    const hint = Effect.sleep("1 second").pipe(
      Effect.andThen(Effect.suspend(() => (bytes === 0 ? waiting : Effect.void))),
      Effect.andThen(Effect.never)
    )
    yield* Effect.raceFirst(read, hint)
    return Buffer.concat(chunks, bytes)
  })

const decode = (name: string, bytes: Uint8Array): Effect.Effect<string, Leave> =>
  Effect.try({
    try: () => new TextDecoder("utf-8", { fatal: true }).decode(bytes),
    catch: () => unreadable(name, "it is not UTF-8 text")
  })

/** Reads the code. */
export const readCode = <R>(
  source: Source,
  waiting: Effect.Effect<void, never, R>
): Effect.Effect<string, Leave, Stdio.Stdio | R> => {
  switch (source._tag) {
    case "Code":
      return Effect.succeed(source.code)
    case "Stdin":
      return Effect.flatMap(readStdin(waiting), (bytes) => decode("the code on stdin", bytes))
    case "File": {
      const name = JSON.stringify(source.file)
      return Effect.tryPromise({
        try: () => readFile(source.file),
        catch: (error) => unreadable(name, error instanceof Error ? error.message : String(error))
      }).pipe(Effect.flatMap((bytes) => decode(name, bytes)))
    }
  }
}
