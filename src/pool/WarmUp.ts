/**
 * Warms up a restored clone before it is claimed: every interpreter runs a line under a temporary identity, which loads its
 * memory and, under emulation, translates its code. Then the clone is paused.
 *
 * The rehearsal's HELLO contains entropy that no other clone has. Each interpreter takes it before its first line, and the
 * lines draw no random numbers. So the claimer's HELLO replaces everything else, and the first execution does not have to wait
 * until generators are seeded.
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
 * A line for each language that leaves nothing behind and does what most first lines do: compile, run, write. It is run several
 * times, because only the first line after a HELLO takes entropy; the others resemble the first line after a claim.
 */
const line: Readonly<Record<string, string>> = {
  python: "print(1)",
  javascript: "console.log(1)",
  typescript: "{ const x: number = 1; console.log(x) }",
  bash: "echo 1"
}
const rounds = 3

/** The lines to run in a clone with these interpreters, as pairs of language and code. */
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

/** Runs a line, and fails unless it succeeds. */
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

/** How long a guest takes to become idle after a line: its agent checks the pipes again 20 ms later. */
const settled = "100 millis"
/** How long a paused QEMU is observed, how often it may wake up meanwhile, and how many times pausing is tried. */
const watched = "50 millis"
const mayWake = 3
const tries = 8

/**
 * Pauses a clone when no timer of its guest is due soon. A paused QEMU (7.2, seen with strace) still wakes up for the guest's
 * next timer, although that timer's clock is stopped: every 2 ms for a timer that was 2 ms away, and continuously for one that
 * was due. So QEMU is observed, and if it does not sleep, the clone is paused again later. After the last try it is left
 * running, which takes 1 % of a core under TCG.
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
