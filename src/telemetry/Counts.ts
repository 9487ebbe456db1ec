/** The metrics of executions and of VMs. */
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import { annotate } from "../internal/Observe.ts"
import type { Receipt } from "../Receipt.ts"
import * as Telemetry from "../Telemetry.ts"

/** Adds a receipt to the execution's span and to the metrics. */
export const receipt = (it: Receipt): Effect.Effect<void> => {
  const language = it.language ?? "command"
  const { executeMs, queueMs } = it.timing
  return annotate({
    receipt: it.id,
    language,
    outcome: it.outcome,
    exit_code: it.exitCode,
    queue_ms: queueMs,
    execute_ms: executeMs
  }).pipe(
    Effect.andThen(Metric.update(Metric.withAttributes(Telemetry.executions, { language, outcome: it.outcome }), 1)),
    Effect.andThen(
      executeMs === null
        ? Effect.void
        : Metric.update(Metric.withAttributes(Telemetry.executionDuration, { language }), executeMs)
    )
  )
}

/** Why a VM has ended; see `Telemetry.vmDeaths`. */
export type DeathCause = "destroyed" | "violation" | "silent" | "start-failed" | "parked" | "killed" | "exited"

/** Counts one VM while it lives, and its death. Call each function once. */
export const life: Effect.Effect<{ readonly began: () => void; readonly ended: (cause: DeathCause) => void }> =
  Effect.map(Effect.context<never>(), (context) => {
    const live = (change: 1 | -1): void => Telemetry.vmsLive.modifyUnsafe(change, context)
    return {
      began: () => live(1),
      ended: (cause) => {
        live(-1)
        Metric.withAttributes(Telemetry.vmDeaths, { cause }).updateUnsafe(1, context)
      }
    }
  })
