/**
 * Telemetry: every span and every metric of the library, by name.
 *
 * Spans go to Effect's `Tracer` and metrics to Effect's `Metric` registry, so any exporter works, for example `Otlp.layerJson`
 * or `PrometheusMetrics` of `effect/observability`. The library itself sends nothing anywhere. Durations are in ms.
 *
 * | span | what it covers | attributes, each with the prefix `exec_sandbox.` |
 * |---|---|---|
 * | `Sandbox.run`, `Sandbox.stream` | one execution in a VM of its own, from the request until the VM is confirmed dead | |
 * | `Sandbox.session` | from the request until the session can be used | `memory_mib`, `session` |
 * | `Pool.clone` | a VM is found by the fastest path and handed over | `memory_mib`, `start_path` (`pool`, `restore`, `boot`), `missed` (why faster paths were missed) |
 * | `Pool.claim` | in `Pool.clone`: the pool's answer | `hit`, `miss` (see `poolClaims`) |
 * | `Capacity.reserve` | in `Pool.clone`: the wait for room on the host | `memory_mib`, `spare`, `waited` |
 * | `Template.clone` | in `Pool.clone`: a clone of a template, which is built first if it is missing | `template` |
 * | `Template.build` | a template is booted, warmed and sealed | `template`, `memory_mib` |
 * | `Vm.boot`, `Vm.extend`, `Vm.seal` | in `Template.build`; `extend` starts from a copy of the template without packages | |
 * | `Packages.install` | in `Template.build`: packages are downloaded, installed and imported | |
 * | `Vm.restore` | from the start of QEMU until its guest runs | |
 * | `Vm.handover` | clock, entropy, identity and settings are sent, until the guest acknowledges | `purpose` |
 * | `Vm.destroy` | from the kill of QEMU until its death is confirmed | `pid` |
 * | `Pool.refill` | one clone for the pool, warmed and paused; a root span, because no caller waits for it | `memory_mib` |
 * | `Pool.warmUp` | in `Pool.refill`: every interpreter runs a line | |
 * | `Session.park` | a session's VM is saved and ended; a root span, because no caller waits for it | `bytes` |
 * | `Session.wake` | a parked VM is started again | |
 * | `Vm.capture` | the state of a session's machine is saved, for a snapshot or forks | |
 * | `Session.exec`, `Process.run` | one execution, of code or of a command | `receipt`, `language`, `outcome`, `exit_code`, `queue_ms`, `execute_ms` |
 * | `Process.spawn` | from the request until the process has started | |
 * | `Session.fork`, `Snapshot.clone` | all forks of one call; one VM that goes on from a saved state | |
 * | the others in `spanNames`, and `Files.*` | the operation of that name | |
 *
 * A failed span has the typed error. The parent of `Vm.destroy` is the span that is open when the VM ends, most often that of the
 * caller whose scope closes.
 *
 * @since 0.1.0
 */
import * as Metric from "effect/Metric"

/** Bounds of histograms, in ms: a claim takes a few ms, a restore under emulation hundreds, a build tens of thousands. */
const boundaries = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000]

/** Names of all spans except `Files.*`, which have the names of the methods. @since 0.1.0 @category constants */
export const spanNames = [
  "Sandbox.run",
  "Sandbox.stream",
  "Sandbox.session",
  "Pool.clone",
  "Pool.claim",
  "Pool.refill",
  "Pool.warmUp",
  "Capacity.reserve",
  "Template.clone",
  "Template.build",
  "Template.warm",
  "Packages.install",
  "Vm.boot",
  "Vm.extend",
  "Vm.seal",
  "Vm.restore",
  "Vm.handover",
  "Vm.capture",
  "Vm.destroy",
  "Session.park",
  "Session.wake",
  "Session.exec",
  "Session.fork",
  "Session.mark",
  "Session.changes",
  "Session.network.update",
  "Session.ports.expose",
  "Session.ports.waitFor",
  "Process.run",
  "Process.spawn",
  "Snapshot.take",
  "Snapshot.hold",
  "Snapshot.find",
  "Snapshot.clone",
  "Snapshot.race",
  "Snapshot.remove",
  "Snapshot.verify",
  "Image.ensure",
  "Image.build",
  "Image.pull",
  "Host.qemu",
  "Host.doctor"
] as const

/** How many VMs are alive now. @since 0.1.0 @category metrics */
export const vmsLive: Metric.Gauge<number> = Metric.gauge("exec_sandbox_vms_live", {
  description: "QEMU processes that are alive"
})

/**
 * How many VMs have ended, by `cause`: `destroyed` (by its owner), `violation` (the guest broke the protocol), `silent` (the guest
 * stopped answering), `start-failed`, `parked` (its session goes on with another VM), `killed` (by a signal from outside) or
 * `exited` (QEMU ended by itself: the guest crashed or powered off).
 *
 * @since 0.1.0
 * @category metrics
 */
export const vmDeaths: Metric.Counter<number> = Metric.counter("exec_sandbox_vm_deaths", {
  description: "VMs that have ended, by cause",
  incremental: true
})

/** From the start of QEMU until its restored guest runs, in ms. @since 0.1.0 @category metrics */
export const restoreDuration: Metric.Histogram<number> = Metric.histogram("exec_sandbox_restore_duration_ms", {
  description: "Restores of a clone",
  boundaries
})

/** From the host's HELLO until the guest acknowledges it, in ms. @since 0.1.0 @category metrics */
export const handoverDuration: Metric.Histogram<number> = Metric.histogram("exec_sandbox_handover_duration_ms", {
  description: "Handovers of a VM",
  boundaries
})

/** Boot, warm-up and seal of a template, in ms. @since 0.1.0 @category metrics */
export const templateBuildDuration: Metric.Histogram<number> = Metric.histogram(
  "exec_sandbox_template_build_duration_ms",
  { description: "Builds of a template", boundaries }
)

/**
 * How many clones were claimed from a pool, by `result` (`hit` or `miss`) and, for a miss, `reason`: `no-pool`, `no-pool-for-size`, `size-zero`,
 * `none-ready`, `breaker` (its clones keep failing), `closing`, `stale` (its template was made again) or `not-taken-over`.
 *
 * @since 0.1.0
 * @category metrics
 */
export const poolClaims: Metric.Counter<number> = Metric.counter("exec_sandbox_pool_claims", {
  description: "Claims of a pooled clone, by result and reason",
  incremental: true
})

/** How many clones were made for a pool, by `result`: `ready` or `failed`. @since 0.1.0 @category metrics */
export const poolRefills: Metric.Counter<number> = Metric.counter("exec_sandbox_pool_refills", {
  description: "Clones made for a pool, by result",
  incremental: true
})

/** How many sessions have a parked VM now. @since 0.1.0 @category metrics */
export const sessionsParked: Metric.Gauge<number> = Metric.gauge("exec_sandbox_sessions_parked", {
  description: "Sessions whose VM is parked"
})

/**
 * How often a session's VM was to be parked, by `result`: `done`, `abandoned` (it was used meanwhile), or why it stayed awake:
 * `store-full`, `unsupported` or `capture`.
 *
 * @since 0.1.0
 * @category metrics
 */
export const parks: Metric.Counter<number> = Metric.counter("exec_sandbox_parks", {
  description: "Attempts to park a session's VM, by result",
  incremental: true
})

/** How often a parked VM was to be woken, by `result`: `done` or the error's reason. @since 0.1.0 @category metrics */
export const wakes: Metric.Counter<number> = Metric.counter("exec_sandbox_wakes", {
  description: "Attempts to wake a parked VM, by result",
  incremental: true
})

/** From a call on a parked session until its VM can be used, in ms. @since 0.1.0 @category metrics */
export const wakeDuration: Metric.Histogram<number> = Metric.histogram("exec_sandbox_wake_duration_ms", {
  description: "Wakes of a parked VM",
  boundaries
})

/** How many callers wait for room on the host now. @since 0.1.0 @category metrics */
export const capacityWaiting: Metric.Gauge<number> = Metric.gauge("exec_sandbox_capacity_waiting", {
  description: "Callers that wait for room on the host"
})

/** How many callers got no room on the host. @since 0.1.0 @category metrics */
export const capacityRefused: Metric.Counter<number> = Metric.counter("exec_sandbox_capacity_refused", {
  description: "Callers that got no room on the host",
  incremental: true
})

/** How many executions have ended, by `language` (`command` for a program) and `outcome`. @since 0.1.0 @category metrics */
export const executions: Metric.Counter<number> = Metric.counter("exec_sandbox_executions", {
  description: "Executions that have ended, by language and outcome",
  incremental: true
})

/** From the start of an execution in the guest to its end, in ms, by `language`. @since 0.1.0 @category metrics */
export const executionDuration: Metric.Histogram<number> = Metric.histogram("exec_sandbox_execution_duration_ms", {
  description: "Executions, from their start in the guest to their end",
  boundaries
})
