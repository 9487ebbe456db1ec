/**
 * Makes a restored clone quick before anybody claims it: under a throw-away identity every interpreter really runs a line,
 * which touches its memory and, under emulation, has its code translated. Then its time is stopped.
 *
 * The rehearsal's HELLO brings entropy that this clone shares with no other, each interpreter takes it before its line, and the
 * lines draw nothing. So the claimer's HELLO changes all else, and the first execution has not to wait for generators.
 */
import * as Effect from "effect/Effect"
import * as Agent from "../guest/Agent.ts"
import { Sub } from "../guest/Frame.ts"
import { exec } from "../guest/Methods.ts"
import { defaults } from "../Limits.ts"
import { wakeUps } from "../capacity/HostResources.ts"
import { BootFailed, fail, type SandboxError } from "../SandboxError.ts"
import type { Vm, VmLost } from "../Vm.ts"

/**
 * One line each that leaves nothing behind and takes the way of most first lines: compile, run, write. Several times, because only
 * the first line after a HELLO takes entropy; the others resemble what comes after a claim.
 */
const line: Readonly<Record<string, string>> = {
  python: "print(1)",
  javascript: "console.log(1)",
  typescript: "{ const x: number = 1; console.log(x) }",
  bash: "echo 1"
}
const rounds = 3

/** What is run in a clone whose interpreters are these, as pairs of language and code. */
export const rehearsal = (languages: ReadonlyArray<string>): ReadonlyArray<readonly [string, string]> =>
  Array.from({ length: rounds }, () =>
    languages.flatMap((language) => {
      const code = line[language]
      return code === undefined ? [] : [[language, code] as const]
    })
  ).flat()

const bound = "60 seconds"

const failed = (problem: string): SandboxError => fail(new BootFailed({ stage: "handover", problem, console: "" }))
const lost = (error: VmLost): SandboxError => failed(error.problem)

/** Runs a line and insists that it worked. */
export const runLine = Effect.fnUntraced(
  function* (vm: Vm, language: string, line: string) {
    const bytes = Buffer.from(line)
    const stream = yield* vm.open(
      exec,
      {
        language,
        codeBytes: bytes.length,
        stdinBytes: 0,
        timeMs: defaults.timeMs,
        outputBytes: defaults.outputBytes,
        spill: true,
        rehearsal: true
      },
      [{ sub: Sub.code, bytes }]
    )
    const { exitCode, state } = yield* Agent.follow(stream)
    if (exitCode !== 0 || state !== "kept") return yield* failed(`${language} did not run as it should`)
  },
  (effect, _vm, language) =>
    Effect.scoped(effect).pipe(
      Effect.catchTags({
        VmLost: (error) => Effect.fail(lost(error)),
        Refused: ({ problem }) => Effect.fail(failed(`${language} did not run: ${problem}`)),
        ChannelViolation: ({ problem }) => Effect.fail(failed(`${language} did not run as it should: ${problem}`))
      })
    )
)

/** How long a guest takes to have nothing more to do after a line: its agent looks at pipes once more 20 ms later. */
const settled = "100 millis"
/** How long a paused QEMU is watched, how often it may wake up meanwhile, and how many tries it gets. */
const watched = "50 millis"
const mayWake = 3
const tries = 8

/**
 * Pauses a clone at a moment when its guest expects nothing soon. QEMU (7.2, seen with strace) goes on waking for the guest's
 * next timer while that timer's clock stands still: once every 2 ms for a timer that was 2 ms away, and without a rest for
 * one that was due. So it is watched, and one that does not sleep gets another moment; at worst it is left running, which
 * takes 1 % of a core under TCG.
 */
const pauseQuietly = Effect.fnUntraced(function* (vm: Vm): Effect.fn.Return<void, VmLost> {
  for (let n = 0; n < tries; n++) {
    yield* Effect.sleep(settled)
    yield* vm.pause
    const before = wakeUps(vm.pid)
    yield* Effect.sleep(watched)
    const after = wakeUps(vm.pid)
    if (before === undefined || after === undefined || after - before <= mayWake) return
    yield* vm.resume
  }
})

/** Warms every interpreter of a clone and pauses it. */
export const warmUp = Effect.fn("Pool.warmUp")(
  function* (vm: Vm): Effect.fn.Return<void, SandboxError> {
    const identity = { hostname: "pool", env: {}, limits: defaults, network: null }
    const { languages } = yield* vm.handover(identity, "rehearsal")
    for (const [language, code] of rehearsal(languages)) yield* runLine(vm, language, code)
    yield* Effect.mapError(pauseQuietly(vm), lost)
  },
  Effect.timeoutOrElse({ duration: bound, orElse: () => Effect.fail(failed(`it was not warm after ${bound}`)) })
)
