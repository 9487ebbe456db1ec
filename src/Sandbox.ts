/**
 * Sandbox: the service that runs untrusted code in throw-away microVMs.
 *
 * `run` is one execution in a VM of its own; `session` is a VM to keep for several. Both start from a warm template by
 * copy-on-write and leave nothing behind.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import { randomBytes } from "node:crypto"
import * as Execution from "./Execution.ts"
import { Capacity } from "./Capacity.ts"
import { Host } from "./Host.ts"
import { Image } from "./Image.ts"
import { decodeInput } from "./internal/decodeInput.ts"
import * as Observe from "./internal/Observe.ts"
import { defaults, Limits } from "./Limits.ts"
import { Pool, type PoolOptions, Settings as PoolSettings } from "./Pool.ts"
import { Receipts } from "./Receipts.ts"
import { SandboxError } from "./SandboxError.ts"
import * as Session from "./Session.ts"
import { Template } from "./Template.ts"

/**
 * How a session is set up.
 *
 * - `env`: environment variables of every execution.
 * - `limits`: see `Limits`; `memoryMiB` also fixes the size of the VM.
 * - `idleMs`: the session is closed, and its VM destroyed, when nothing has run in it for so many ms, 1 to 86,400,000 (a
 *   day), default 300,000. A running execution counts as use however long it takes.
 *
 * @since 0.1.0
 * @category models
 */
export const SessionOptions = Schema.Struct({
  env: Schema.optionalKey(Execution.Environment),
  limits: Schema.optionalKey(Limits),
  idleMs: Schema.optionalKey(
    Schema.Int.check(
      Schema.isBetween({ minimum: 1, maximum: 86_400_000 }, { expected: "a whole number of ms from 1 to 86400000" })
    )
  )
})
/**
 * @since 0.1.0
 * @category models
 */
export type SessionOptions = typeof SessionOptions.Type

const decodeOptions = decodeInput(SessionOptions, "session options")
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
     * Executes code in a VM of its own. Fails with one of the four task errors, each with all output and the receipt, or
     * with `SandboxError`. The VM is gone when the effect ends, however it ends.
     */
    readonly run: (request: Execution.Request) => Effect.Effect<Execution.Result, Execution.Failure>
    /** The same as a stream: output as it is written, then the result. */
    readonly stream: (request: Execution.Request) => Stream.Stream<Execution.Event, Execution.Failure>
    /** A VM for several executions, which share state; it is gone when the scope has closed. */
    readonly session: (options?: SessionOptions) => Effect.Effect<Session.Session, SandboxError, Scope.Scope>
  }
>()("exec-sandbox/Sandbox") {
  /** Over any way to find a VM. */
  static readonly layerOver: Layer.Layer<Sandbox, never, Pool> = Layer.effect(
    this,
    Effect.gen(function* () {
      const pool = yield* Pool
      const receipts = yield* Receipts

      const session = Effect.fn("Sandbox.session")(function* (
        options: SessionOptions = {}
      ): Effect.fn.Return<Session.Session, SandboxError, Scope.Scope> {
        const { env = {}, idleMs, limits: given = {} } = yield* decodeOptions(options)
        const limits = { ...defaults, ...given }
        yield* Observe.annotate({ memory_mib: limits.memoryMiB })
        const started = yield* Clock.currentTimeMillis
        const { acquired, clone, hello } = yield* pool.clone(limits.memoryMiB, (clone) =>
          Effect.gen(function* () {
            const acquired = yield* Clock.currentTimeMillis
            const hostname = `sbx-${randomBytes(4).toString("hex")}`
            return { acquired, clone, hello: yield* clone.vm.handover({ hostname, env, limits }) }
          })
        )
        const ready = yield* Clock.currentTimeMillis
        const made = yield* Session.make(
          clone.vm,
          {
            image: clone.image,
            template: clone.key,
            startPath: clone.startPath,
            acquireMs: acquired - started,
            handoverMs: ready - acquired,
            languages: hello.languages
          },
          limits,
          receipts,
          idleMs
        )
        yield* Observe.annotate({ session: made.id })
        return made
      })

      /** The session that one execution needs, once its request is known to be good. */
      const sessionFor = Effect.fnUntraced(function* (request: Execution.Request) {
        const { limits } = yield* decodeRequest(request)
        return yield* session(limits === undefined ? {} : { limits })
      })

      return {
        session,
        run: (request) =>
          Effect.flatMap(sessionFor(request), (it) => it.exec(request)).pipe(
            Effect.scoped,
            Effect.withSpan("Sandbox.run")
          ),
        stream: (request) =>
          Stream.unwrap(
            Effect.gen(function* () {
              // Made first, so that it ends last, when the VM is dead.
              const span = yield* Effect.makeSpanScoped("Sandbox.stream")
              const session = yield* Effect.withParentSpan(sessionFor(request), span)
              return Stream.provideService(session.stream(request), Tracer.ParentSpan, span)
            })
          )
      }
    })
  )

  /** Over any `Template` service, admitted by this host's `Capacity`. */
  static readonly layerTemplate: Layer.Layer<Sandbox, SandboxError, Template> = this.layerOver.pipe(
    Layer.provide(Pool.layer),
    Layer.provide(Capacity.layer)
  )

  /** On this host: QEMU from the path, image and templates from the cache directory. */
  static readonly layer: Layer.Layer<Sandbox, SandboxError> = this.layerTemplate.pipe(
    Layer.provide(Template.layer),
    Layer.provide(Image.layer),
    Layer.provide(Host.layer)
  )

  /** The same with clones kept ready; see `PoolOptions`. */
  static readonly layerPool = (options: PoolOptions): Layer.Layer<Sandbox, SandboxError> =>
    // Fresh: a layer is shared by reference, whatever its settings.
    Layer.fresh(this.layer).pipe(Layer.provide(Layer.succeed(PoolSettings, options)))
}

/**
 * Executes code in a VM of its own; see the service's `run`.
 *
 * @since 0.1.0
 * @category executing
 */
export const run = (request: Execution.Request): Effect.Effect<Execution.Result, Execution.Failure, Sandbox> =>
  Sandbox.use((sandbox) => sandbox.run(request))

/**
 * Executes code in a VM of its own and gives its output as it is written; see the service's `stream`.
 *
 * @since 0.1.0
 * @category executing
 */
export const stream = (request: Execution.Request): Stream.Stream<Execution.Event, Execution.Failure, Sandbox> =>
  Stream.unwrap(Effect.map(Sandbox, (sandbox) => sandbox.stream(request)))

/**
 * A VM for several executions; see the service's `session`.
 *
 * @since 0.1.0
 * @category executing
 */
export const session = (
  options?: SessionOptions
): Effect.Effect<Session.Session, SandboxError, Sandbox | Scope.Scope> =>
  Sandbox.use((sandbox) => sandbox.session(options))

/**
 * When `retrySafe` tries again: at most five more times, after 100 ms, 200 ms, 400 ms … up to 2 s, each varied by a fifth so
 * that callers who failed together do not come back together.
 *
 * @since 0.1.0
 * @category retrying
 */
export const retrySchedule: Schedule.Schedule<unknown> = Schedule.min([
  Schedule.exponential("100 millis"),
  Schedule.spaced("2 seconds")
]).pipe(Schedule.jittered, Schedule.upTo({ times: 5 }))

/**
 * Tries again while it fails with a `SandboxError` that says `retry: "safe"`: the code certainly did not run. Every other
 * failure, and the last one, is passed on. `schedule` replaces `retrySchedule`.
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
 * The sandbox of this host, with everything it needs.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer: Layer.Layer<Sandbox, SandboxError> = Sandbox.layer

/**
 * The sandbox of this host with a pool: `size` clones are kept ready, so that a `run` or `session` need not wait for one.
 * Closing the layer's scope destroys them.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerPool: (options: PoolOptions) => Layer.Layer<Sandbox, SandboxError> = Sandbox.layerPool
