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
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import type * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import { randomBytes } from "node:crypto"
import * as Egress from "./egress/Egress.ts"
import * as Execution from "./Execution.ts"
import { Capacity } from "./Capacity.ts"
import { Host } from "./Host.ts"
import { Image } from "./Image.ts"
import { decodeInput } from "./internal/decodeInput.ts"
import * as Observe from "./internal/Observe.ts"
import * as Parking from "./session/Parking.ts"
import { runLine } from "./pool/WarmUp.ts"
import { defaults, Limits } from "./Limits.ts"
import { NetworkPolicy, none } from "./NetworkPolicy.ts"
import * as PackageRefusal from "./session/Refusal.ts"
import * as SessionSecrets from "./egress/SecretsCheck.ts"
import { type PackageError, Packages, parsed } from "./Packages.ts"
import { Pool, type PoolOptions, Settings as PoolSettings } from "./Pool.ts"
import { Receipts } from "./Receipts.ts"
import { fail, InvalidInput, type PermissionDenied, SandboxError, type UnsupportedCommand } from "./SandboxError.ts"
import { Secrets } from "./Secrets.ts"
import * as Session from "./Session.ts"
import * as Snapshot from "./Snapshot.ts"
import { type Placed, Template } from "./Template.ts"

const upToADay = Schema.Int.check(
  Schema.isBetween({ minimum: 1, maximum: 86_400_000 }, { expected: "a whole number of ms from 1 to 86400000" })
)

/**
 * How a session is set up.
 *
 * - `from`: a snapshot, or its name or id, to go on from; nothing else of the session it was taken of comes along, so env,
 *   limits and idle time are those given here. A new machine when absent.
 * - `env`: environment variables of every execution.
 * - `limits`: see `Limits`; `memoryMiB` also fixes the size of the VM. With `from` it is at most, and when absent, what the
 *   session of the snapshot had.
 * - `network`: what may be reached, see `NetworkPolicy`; nothing when absent, also with `from`.
 * - `secrets`: what its code may use and not see, see `Secrets`; none when absent, also with `from`.
 * - `packages`: what it has beside the image, see `Packages`. Whoever asks for them first waits until they are installed. Not
 *   with `from`, which has what it had.
 * - `idleMs`: the session is closed, and its VM destroyed, when nothing has run in it for so many ms, 1 to 86,400,000 (a
 *   day), default 300,000. A running execution counts as use however long it takes.
 * - `parkAfterMs`: the session is parked when nothing has used it for so many ms, 1 to 86,400,000, and wakes when something
 *   does; see `Session.park`. Never when absent. A parked session is idle, and closed in the end: give it a longer `idleMs`.
 *
 * @since 0.1.0
 * @category models
 */
export const SessionOptions = Schema.Struct({
  from: Schema.optionalKey(Schema.Union([Schema.NonEmptyString, Snapshot.Snapshot])),
  env: Schema.optionalKey(Execution.Environment),
  limits: Schema.optionalKey(Limits),
  network: Schema.optionalKey(NetworkPolicy),
  secrets: Schema.optionalKey(Secrets),
  packages: Schema.optionalKey(Packages),
  idleMs: Schema.optionalKey(upToADay),
  parkAfterMs: Schema.optionalKey(upToADay)
})
/**
 * @since 0.1.0
 * @category models
 */
export type SessionOptions = typeof SessionOptions.Type

/** The same without packages. @since 0.1.0 @category models */
export type PlainSessionOptions = SessionOptions & { readonly packages?: never }

/**
 * Why there is no session: with packages, also that the policy refuses one (`PermissionDenied`) or that there is no such
 * package (`UnsupportedCommand`). Their receipts are those of a VM in which nothing has run.
 *
 * @since 0.1.0
 * @category errors
 */
export type SessionFailure = SandboxError | PermissionDenied | UnsupportedCommand

interface OpenSession {
  (options?: PlainSessionOptions): Effect.Effect<Session.Session, SandboxError, Scope.Scope>
  (options?: SessionOptions): Effect.Effect<Session.Session, SessionFailure, Scope.Scope>
}

const decodeOptions = decodeInput(SessionOptions, "session options")
const decodeRequest = decodeInput(Execution.Request, "request")
const decodeSnapshotOptions = decodeInput(Snapshot.SnapshotOptions, "snapshot options")
const decodeForks = decodeInput(
  Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 100 }, { expected: "a whole number from 1 to 100" })),
  "number of forks"
)

/** Gives a session a scope of its own within the caller's, which ends with it: one that fails leaves nothing of itself. */
const inScope = <E>(
  started: Effect.Effect<Session.Session, E, Scope.Scope>
): Effect.Effect<Session.Session, E, Scope.Scope> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const scope = yield* Scope.fork(yield* Effect.scope)
      const made = yield* restore(Scope.provide(started, scope)).pipe(
        Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
      )
      return { ...made, close: Effect.andThen(made.close, Scope.close(scope, Exit.void)) }
    })
  )

/** What a session is handed over with. */
interface Setup {
  readonly env: Readonly<Record<string, string>>
  readonly limits: Required<Limits>
  readonly network: NetworkPolicy
  readonly secrets?: Secrets
  /** Those of the session that it was forked from, whose policy may have changed since they were given. */
  readonly inherited?: Egress.SessionSecrets | undefined
  readonly idleMs?: number
  readonly parkAfterMs?: number
}

const timesOf = ({ idleMs, parkAfterMs }: SessionOptions): Pick<Setup, "idleMs" | "parkAfterMs"> => ({
  ...(idleMs !== undefined && { idleMs }),
  ...(parkAfterMs !== undefined && { parkAfterMs })
})

interface Prepared extends Setup {
  readonly way: Egress.Egress
}

interface ForkFrom {
  (
    source: Snapshot.Source,
    n: number,
    options: SessionOptions,
    parents: Required<Limits>,
    inherited: Egress.SessionSecrets | undefined
  ): ReturnType<Session.Session["fork"]>
}

const prepare = Effect.fnUntraced(function* (setup: Setup) {
  const { env, inherited, network, secrets = {} } = setup
  const way = yield* Egress.make(network, inherited ?? (yield* Egress.bindSecrets(secrets)))
  if (inherited === undefined) yield* SessionSecrets.check(secrets, env, way)
  return { ...setup, way } satisfies Prepared
})

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
     * with `SandboxError`. The VM is gone when the effect ends, however it ends. `options` set it up; the request's limits
     * go before theirs.
     */
    readonly run: (
      request: Execution.Request,
      options?: SessionOptions
    ) => Effect.Effect<Execution.Result, Execution.Failure>
    /** The same as a stream: output as it is written, then the result. */
    readonly stream: (
      request: Execution.Request,
      options?: SessionOptions
    ) => Stream.Stream<Execution.Event, Execution.Failure>
    /** A VM for several executions, which share state; it is gone when the scope has closed. */
    readonly session: OpenSession
  }
>()("exec-sandbox/Sandbox") {
  /** Over any way to find a VM. */
  static readonly layerOver: Layer.Layer<Sandbox, never, Pool | Snapshot.Snapshots> = Layer.effect(
    this,
    Effect.gen(function* () {
      const pool = yield* Pool
      const snapshots = yield* Snapshot.Snapshots
      const receipts = yield* Receipts

      /** Gives a clone the identity of a session, and what the session gives it. */
      const handOver = Effect.fnUntraced(function* (clone: Placed, { env, limits, network, way }: Prepared) {
        const acquired = yield* Clock.currentTimeMillis
        const hostname = `sbx-${randomBytes(4).toString("hex")}`
        clone.vm.accept(way.accept)
        const granted = way.grant(network)
        const everywhere = { ...env, ...way.placeholders }
        const { languages } = yield* clone.vm.handover(
          { hostname, env: everywhere, limits, network: granted },
          clone.startPath.kind === "pool" ? "claim" : "session"
        )
        return { clone, acquired, languages, ready: yield* Clock.currentTimeMillis }
      })

      /** Makes a session of it; what has run something in an earlier life is in `origin.languages`. */
      const establish = Effect.fnUntraced(function* (
        { acquired, clone, languages, ready }: Effect.Success<ReturnType<typeof handOver>>,
        prepared: Prepared,
        started: number,
        origin?: Pick<Snapshot.Held, "snapshot" | "languages">
      ): Effect.fn.Return<Session.Session, SandboxError, Scope.Scope> {
        const { env, idleMs, limits, parkAfterMs, way } = prepared
        const parking = yield* Parking.make(
          { vm: clone.vm, leave: clone.place.giveBack },
          { keeper: snapshots.keeper, afterMs: parkAfterMs, accept: way.accept }
        )
        // Timers and threads may run before the first execution, which is when an interpreter is given fresh entropy.
        yield* Effect.forEach(origin?.languages ?? [], (language) =>
          Parking.using(parking).pipe(
            Effect.andThen(runLine(clone.vm, language, "")),
            Effect.scoped,
            Effect.ignore,
            Effect.forkScoped({ startImmediately: true })
          )
        )
        const source = (from: Session.CopySource): Snapshot.Source => ({
          vm: parking.current(),
          image: clone.image,
          machine: clone.machine,
          session: from.session,
          parent: origin?.snapshot ?? null,
          limitMiB: limits.memoryMiB,
          languages: Array.from(new Set([...(origin?.languages ?? []), ...from.languages]))
        })
        const made = yield* Session.make(
          parking.vm,
          {
            image: clone.image,
            template: clone.startPath.kind === "snapshot" ? null : clone.key,
            startPath: clone.startPath,
            acquireMs: acquired - started,
            handoverMs: ready - acquired,
            languages
          },
          limits,
          receipts,
          idleMs,
          {
            snapshot: (from, options = {}) =>
              Effect.flatMap(decodeSnapshotOptions(options), (decoded) => snapshots.take(source(from), decoded)),
            fork: (from, n, options) =>
              fork(
                source(from),
                n,
                { env, network: way.policy(), ...timesOf(prepared), ...options },
                limits,
                options?.secrets === undefined ? way.sessionSecrets : undefined
              )
          },
          way,
          parking
        )
        yield* Observe.annotate({ session: made.id })
        return made
      })

      /** What a session that goes on from something is set up with. */
      const setupFrom = Effect.fnUntraced(function* (
        held: Snapshot.Held,
        options: SessionOptions,
        parents: Required<Limits> = defaults
      ) {
        const { env = {}, limits: given = {}, network = none, secrets = {}, ...decoded } = yield* decodeOptions(options)
        const limits = { ...parents, memoryMiB: held.limitMiB, ...given }
        if (limits.memoryMiB > held.limitMiB) {
          return yield* fail(
            new InvalidInput({
              field: "limits.memoryMiB",
              problem: `got ${limits.memoryMiB}`,
              expected: `at most the ${held.limitMiB} of the session it goes on from`
            })
          )
        }
        return { env, limits, network, secrets, ...timesOf(decoded) }
      })

      const startFrom = Effect.fnUntraced(function* (held: Snapshot.Held, setup: Setup) {
        const started = yield* Clock.currentTimeMillis
        const prepared = yield* prepare(setup)
        const clone = yield* held.clone
        return yield* establish(yield* handOver(clone, prepared), prepared, started, held)
      })

      const fork: ForkFrom = Effect.fn("Session.fork")(function* (
        source: Snapshot.Source,
        given: number,
        options: SessionOptions,
        parents: Required<Limits>,
        inherited: Egress.SessionSecrets | undefined
      ): Effect.fn.Return<ReadonlyArray<Result.Result<Session.Session, SandboxError>>, SandboxError, Scope.Scope> {
        const n = yield* decodeForks(given)
        const home = yield* Effect.scope
        return yield* Effect.scoped(
          Effect.gen(function* () {
            const held = yield* snapshots.hold(source)
            const setup = { ...(yield* setupFrom(held, options, parents)), inherited }
            const child = Scope.provide(inScope(startFrom(held, setup)), home)
            return yield* Effect.forEach(Array.from({ length: n }), () => Effect.result(child), { concurrency: 2 })
          })
        )
      })

      /** Fails with what a `PackageError` means, which takes a VM to tell. */
      const refuse = Effect.fnUntraced(function* (error: PackageError, limits: Required<Limits>) {
        if (error.reason._tag === "Conflict") return yield* PackageRefusal.asInput(error)
        const started = yield* Clock.currentTimeMillis
        const setup = yield* prepare({ env: {}, limits, network: none })
        const { acquired, clone, languages, ready } = yield* pool
          .clone(limits.memoryMiB, (clone) => handOver(clone, setup))
          .pipe(Effect.catchTag("PackageError", (again) => Effect.fail(PackageRefusal.asInput(again))))
        const { image, key: template, startPath } = clone
        const times = { acquireMs: acquired - started, handoverMs: ready - acquired }
        const origin: Session.Origin = { image, template, startPath, languages, ...times }
        return yield* PackageRefusal.refuse(error, clone.vm, origin, limits, receipts, setup.way)
      }, Effect.scoped)

      const open = Effect.fn("Sandbox.session")(function* (
        options: SessionOptions
      ): Effect.fn.Return<Session.Session, SessionFailure, Scope.Scope> {
        const decoded = yield* decodeOptions(options)
        const { env = {}, from, limits: given = {}, network = none, packages, secrets = {} } = decoded
        if (from !== undefined) {
          if (packages !== undefined && parsed(packages).length > 0) {
            const expected = "none beside `from`, which has what its session had"
            return yield* fail(new InvalidInput({ field: "packages", problem: "got some", expected }))
          }
          const held = yield* snapshots.find(typeof from === "string" ? from : from.id)
          return yield* startFrom(held, yield* setupFrom(held, options))
        }
        const limits = { ...defaults, ...given }
        yield* Observe.annotate({ memory_mib: limits.memoryMiB })
        const started = yield* Clock.currentTimeMillis
        const setup = yield* prepare({ env, limits, network, secrets, ...timesOf(decoded) })
        const handed = yield* pool
          .clone(limits.memoryMiB, (clone) => handOver(clone, setup), packages)
          .pipe(Effect.catchTag("PackageError", (error) => refuse(error, limits)))
        return yield* establish(handed, setup, started)
      })

      function session(options?: PlainSessionOptions): Effect.Effect<Session.Session, SandboxError, Scope.Scope>
      function session(options?: SessionOptions): Effect.Effect<Session.Session, SessionFailure, Scope.Scope>
      function session(options: SessionOptions = {}): Effect.Effect<Session.Session, SessionFailure, Scope.Scope> {
        return inScope(open(options))
      }

      /** The session that one execution needs, once its request is known to be good. */
      const sessionFor = Effect.fnUntraced(function* (request: Execution.Request, options: SessionOptions = {}) {
        const { limits = {} } = yield* decodeRequest(request)
        return yield* open({ ...options, limits: { ...options.limits, ...limits } })
      })

      return {
        session,
        run: (request, options) =>
          Effect.flatMap(sessionFor(request, options), (it) => it.exec(request)).pipe(
            Effect.scoped,
            Effect.withSpan("Sandbox.run")
          ),
        stream: (request, options) =>
          Stream.unwrap(
            Effect.gen(function* () {
              // Made first, so that it ends last, when the VM is dead.
              const span = yield* Effect.makeSpanScoped("Sandbox.stream")
              const session = yield* Effect.withParentSpan(sessionFor(request, options), span)
              return Stream.provideService(session.stream(request), Tracer.ParentSpan, span)
            })
          )
      }
    })
  )

  /** Over any `Template` service, admitted by this host's `Capacity`. */
  static readonly layerTemplate: Layer.Layer<Sandbox, SandboxError, Template | Host | Image> = this.layerOver.pipe(
    Layer.provide(Pool.layer),
    Layer.provide(Snapshot.Snapshots.layer),
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
export const run = (
  request: Execution.Request,
  options?: SessionOptions
): Effect.Effect<Execution.Result, Execution.Failure, Sandbox> =>
  Sandbox.use((sandbox) => sandbox.run(request, options))

/**
 * Executes code in a VM of its own and gives its output as it is written; see the service's `stream`.
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
 * A VM for several executions; see the service's `session`.
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
