/**
 * Sandbox: the service that runs untrusted code in throw-away microVMs.
 *
 * `run` executes code once, in a VM of its own; `session` opens a VM for several executions. Both start a VM as a
 * copy-on-write clone of a warm template and leave nothing behind.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import { Capacity } from "./Capacity.ts"
import * as Execution from "./Execution.ts"
import { Host } from "./Host.ts"
import { Image } from "./Image.ts"
import { decodeInput } from "./internal/decodeInput.ts"
import { Pool, type PoolOptions, Settings as PoolSettings } from "./Pool.ts"
import { Receipts } from "./Receipts.ts"
import { SandboxError } from "./SandboxError.ts"
import type * as Session from "./Session.ts"
import type { PlainSessionOptions, SessionFailure, SessionOptions } from "./session/Options.ts"
import * as Sessions from "./session/Sessions.ts"
import * as Snapshot from "./Snapshot.ts"
import { Template } from "./Template.ts"

export { type PlainSessionOptions, type SessionFailure, SessionOptions } from "./session/Options.ts"

interface OpenSession {
  (options?: PlainSessionOptions): Effect.Effect<Session.Session, SandboxError, Scope.Scope>
  (options?: SessionOptions): Effect.Effect<Session.Session, SessionFailure, Scope.Scope>
}

const decodeRequest = decodeInput(Execution.Request, "request")

/**
 * Runs untrusted code in throw-away microVMs.
 *
 * @since 0.1.0
 * @category services
 */
export class Sandbox extends Context.Service<
  Sandbox,
  {
    /**
     * Executes code in a VM of its own. Fails with one of the four task errors, each with the output so far and the receipt,
     * or with `SandboxError`. The VM is gone when the effect ends, however it ends. `options` are those of the VM's session;
     * the request's limits replace theirs.
     */
    readonly run: (
      request: Execution.Request,
      options?: SessionOptions
    ) => Effect.Effect<Execution.Result, Execution.Failure>
    /** As `run`, but streams the output as it is written, then the result. */
    readonly stream: (
      request: Execution.Request,
      options?: SessionOptions
    ) => Stream.Stream<Execution.Event, Execution.Failure>
    /** Opens a VM for several executions, which share state. It is gone when the scope has closed. */
    readonly session: OpenSession
  }
>()("exec-sandbox/Sandbox") {
  /** Takes VMs from any `Pool` service, which may be one of a test. @internal */
  static readonly layerOver: Layer.Layer<Sandbox, never, Pool | Snapshot.Snapshots> = Layer.effect(
    this,
    Effect.gen(function* () {
      const sessions = Sessions.make(yield* Pool, yield* Snapshot.Snapshots, yield* Receipts)

      function session(options?: PlainSessionOptions): Effect.Effect<Session.Session, SandboxError, Scope.Scope>
      function session(options?: SessionOptions): Effect.Effect<Session.Session, SessionFailure, Scope.Scope>
      function session(options: SessionOptions = {}): Effect.Effect<Session.Session, SessionFailure, Scope.Scope> {
        return sessions.session(options)
      }

      /** Opens the session for one execution of a decoded request. */
      const sessionFor = ({ limits = {} }: Execution.Request, options: SessionOptions = {}) =>
        sessions.open({ ...options, limits: { ...options.limits, ...limits } })

      return {
        session,
        run: Effect.fn("Sandbox.run")(function* (input, options) {
          const request = yield* decodeRequest(input)
          const { execute } = yield* sessionFor(request, options)
          return yield* execute(request, () => Effect.void, true)
        }, Effect.scoped),
        stream: (input, options) =>
          Stream.unwrap(
            Effect.gen(function* () {
              // Opened first, so that it ends last, when the VM is dead.
              const span = yield* Effect.makeSpanScoped("Sandbox.stream")
              const request = yield* decodeRequest(input)
              const { stream } = yield* Effect.withParentSpan(sessionFor(request, options), span)
              return Stream.provideService(stream(request), Tracer.ParentSpan, span)
            })
          )
      }
    })
  )

  /** Clones VMs of any `Template` service, within the `Capacity` of this host. */
  static readonly layerTemplate: Layer.Layer<Sandbox, SandboxError, Template | Host | Image> = this.layerOver.pipe(
    Layer.provide(Pool.layer),
    Layer.provide(Snapshot.Snapshots.layer),
    Layer.provide(Capacity.layer)
  )

  /** On this host: QEMU from PATH, image and templates from the cache directory. */
  static readonly layer: Layer.Layer<Sandbox, SandboxError> = this.layerTemplate.pipe(
    Layer.provide(Template.layer),
    Layer.provide(Image.layer),
    Layer.provide(Host.layer)
  )

  /** As `layer`, with clones kept ready; see `PoolOptions`. */
  static readonly layerPool = (options: PoolOptions): Layer.Layer<Sandbox, SandboxError> =>
    // Fresh, because Effect shares one instance of `layer`, whatever the settings.
    Layer.fresh(this.layer).pipe(Layer.provide(Layer.succeed(PoolSettings, options)))
}

/**
 * Executes code in a VM of its own; see the service's `run`.
 *
 * @since 0.1.0
 * @category executing
 */
export const run = (
  request: Execution.Request,
  options?: SessionOptions
): Effect.Effect<Execution.Result, Execution.Failure, Sandbox> =>
  Sandbox.use((sandbox) => sandbox.run(request, options))

/**
 * Executes code in a VM of its own and streams its output as it is written, then the result; see the service's `stream`.
 *
 * @since 0.1.0
 * @category executing
 */
export const stream = (
  request: Execution.Request,
  options?: SessionOptions
): Stream.Stream<Execution.Event, Execution.Failure, Sandbox> =>
  Stream.unwrap(Effect.map(Sandbox, (sandbox) => sandbox.stream(request, options)))

/**
 * Opens a VM for several executions; see the service's `session`.
 *
 * @since 0.1.0
 * @category executing
 */
export function session(
  options?: PlainSessionOptions
): Effect.Effect<Session.Session, SandboxError, Sandbox | Scope.Scope>
export function session(options?: SessionOptions): Effect.Effect<Session.Session, SessionFailure, Sandbox | Scope.Scope>
export function session(
  options?: SessionOptions
): Effect.Effect<Session.Session, SessionFailure, Sandbox | Scope.Scope> {
  return Sandbox.use((sandbox) => sandbox.session(options))
}

/**
 * When `retrySafe` tries again: at most five times, after 100 ms, 200 ms, 400 ms … up to 2 s. Each delay varies randomly by up
 * to a fifth, so that callers that failed at the same time do not try again at the same time.
 *
 * @since 0.1.0
 * @category retrying
 */
export const retrySchedule: Schedule.Schedule<unknown> = Schedule.min([
  Schedule.exponential("100 millis"),
  Schedule.spaced("2 seconds")
]).pipe(Schedule.jittered, Schedule.upTo({ times: 5 }))

/**
 * Tries again while the effect fails with a `SandboxError` whose `retry` is `"safe"`: the code certainly did not run. Every
 * other failure, and the last one, is passed on. `schedule` replaces `retrySchedule`.
 *
 * @example
 * ```ts
 * const result = yield* Sandbox.run({ language: "python", code: "print(1)" }).pipe(Sandbox.retrySafe())
 * ```
 *
 * @since 0.1.0
 * @category retrying
 */
export const retrySafe =
  (schedule: Schedule.Schedule<unknown> = retrySchedule) =>
  <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.retry(effect, { schedule, while: (error) => error instanceof SandboxError && error.retry === "safe" })

/**
 * The sandbox on this host, with everything that it needs.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer: Layer.Layer<Sandbox, SandboxError> = Sandbox.layer

/**
 * The sandbox on this host with a pool: `size` clones are kept ready, so that a `run` or `session` need not wait for one.
 * Closing the layer's scope destroys them.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerPool: (options: PoolOptions) => Layer.Layer<Sandbox, SandboxError> = Sandbox.layerPool
