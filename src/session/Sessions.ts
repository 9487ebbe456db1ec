/** Opens sessions: on new clones, from snapshots, and as forks of other sessions. */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import { randomBytes } from "node:crypto"
import * as Egress from "../egress/Egress.ts"
import * as SecretsCheck from "../egress/SecretsCheck.ts"
import { decodeInput } from "../internal/decodeInput.ts"
import * as Observe from "../internal/Observe.ts"
import { type Limits, resolve } from "../Limits.ts"
import { NetworkPolicy, none } from "../NetworkPolicy.ts"
import { type PackageError, parsed } from "../Packages.ts"
import type { Pool } from "../Pool.ts"
import { runLine } from "../pool/WarmUp.ts"
import type { Publisher } from "../Receipts.ts"
import { fail, InvalidInput, type SandboxError } from "../SandboxError.ts"
import type { Secrets } from "../Secrets.ts"
import type { Session } from "../Session.ts"
import * as Snapshot from "../Snapshot.ts"
import type { ReservedClone } from "../Template.ts"
import type { Origin } from "./Context.ts"
import { type CopySource, make as makeSession, type Made } from "./make.ts"
import { SessionOptions, type SessionFailure } from "./Options.ts"
import * as PackageRefusal from "./Refusal.ts"
import * as Parking from "./Parking.ts"
import * as Usage from "./Usage.ts"

const decodeOptions = decodeInput(SessionOptions, "session options")
const decodeSnapshotOptions = decodeInput(Snapshot.SnapshotOptions, "snapshot options")
const decodeForks = decodeInput(
  Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 100 }, { expected: "a whole number from 1 to 100" })),
  "number of forks"
)

/** Opens a session in a scope of its own within the caller's. Closing the session closes that scope, and so does a failure. */
const inScope = <E>(opened: Effect.Effect<Made, E, Scope.Scope>): Effect.Effect<Session, E, Scope.Scope> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const scope = yield* Scope.fork(yield* Effect.scope)
      const { session } = yield* restore(Scope.provide(opened, scope)).pipe(
        Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
      )
      return { ...session, close: Effect.andThen(session.close, Scope.close(scope, Exit.void)) }
    })
  )

/** The decoded options of a session. */
interface Setup {
  readonly env: Readonly<Record<string, string>>
  readonly limits: Required<Limits>
  readonly network: NetworkPolicy
  readonly secrets?: Secrets
  /** The secrets of the session that this one is forked from. They were checked against the policy of that time. */
  readonly inherited?: Egress.SessionSecrets | undefined
  readonly idleMs?: number
  readonly parkAfterMs?: number
}

interface SetupWithEgress extends Setup {
  readonly egress: Egress.Egress
}

const timesOf = ({ idleMs, parkAfterMs }: SessionOptions): Pick<Setup, "idleMs" | "parkAfterMs"> => ({
  ...(idleMs !== undefined && { idleMs }),
  ...(parkAfterMs !== undefined && { parkAfterMs })
})

const withEgress = Effect.fnUntraced(function* (setup: Setup) {
  const { env, inherited, network, secrets = {} } = setup
  const egress = yield* Egress.make(network, inherited ?? (yield* Egress.bindSecrets(secrets)))
  if (inherited === undefined) yield* SecretsCheck.check(secrets, env, egress)
  return { ...setup, egress } satisfies SetupWithEgress
})

/** Gives a clone the identity, environment, limits and network of a session. */
const handOver = Effect.fnUntraced(function* (clone: ReservedClone, { egress, env, limits, network }: SetupWithEgress) {
  const acquired = yield* Clock.currentTimeMillis
  const hostname = `sbx-${randomBytes(4).toString("hex")}`
  clone.vm.accept(egress.accept)
  const { languages } = yield* clone.vm.handover(
    { hostname, env: { ...env, ...egress.placeholders }, limits, network: egress.grant(network) },
    clone.startPath.kind === "pool" ? "claim" : "session"
  )
  return { clone, acquired, languages, ready: yield* Clock.currentTimeMillis }
})
type HandedOver = Effect.Success<ReturnType<typeof handOver>>

/** Where a clone came from, for receipts. `started`: when it was requested, in ms of the host's clock. */
const originOf = ({ acquired, clone, languages, ready }: HandedOver, started: number): Origin => ({
  image: clone.image,
  template: clone.startPath.kind === "snapshot" ? null : clone.key,
  startPath: clone.startPath,
  acquireMs: acquired - started,
  handoverMs: ready - acquired,
  languages
})

export interface Sessions {
  /** Opens a session in the caller's scope. */
  readonly open: (options: SessionOptions) => Effect.Effect<Made, SessionFailure, Scope.Scope>
  /** Opens a session in a scope of its own, which the session's `close` closes. */
  readonly session: (options: SessionOptions) => Effect.Effect<Session, SessionFailure, Scope.Scope>
}

export const make = (
  pool: Pool["Service"],
  snapshots: Snapshot.Snapshots["Service"],
  receipts: Publisher
): Sessions => {
  /** Makes a session over a clone. `parent` is the snapshot or the session that it continues from. */
  const establish = Effect.fnUntraced(function* (
    handed: HandedOver,
    setup: SetupWithEgress,
    started: number,
    parent?: Snapshot.CloneSource
  ): Effect.fn.Return<Made, SandboxError, Scope.Scope> {
    const { clone } = handed
    const { egress, env, idleMs, limits, parkAfterMs } = setup
    const usage = yield* Usage.make
    const parking = yield* Parking.make(
      { vm: clone.vm, leave: clone.place.giveBack },
      { parker: snapshots.parker, usage, afterMs: parkAfterMs, accept: egress.accept }
    )
    const before = parent?.languages ?? []
    // An interpreter gets fresh entropy with an execution. Its timers and threads may run before the caller's first one.
    yield* Effect.forEach(before, (language) =>
      Parking.using(parking).pipe(
        Effect.andThen(runLine(clone.vm, language, "")),
        Effect.scoped,
        Effect.ignore,
        Effect.forkScoped({ startImmediately: true })
      )
    )
    const source = (from: CopySource): Snapshot.Source => ({
      vm: parking.current(),
      image: clone.image,
      machine: clone.machine,
      session: from.session,
      parent: parent?.snapshot ?? null,
      limitMiB: limits.memoryMiB,
      languages: Array.from(new Set([...before, ...from.languages]))
    })
    const made = yield* makeSession({
      parking,
      usage,
      origin: originOf(handed, started),
      limits,
      egress,
      receipts,
      idleMs,
      copies: {
        snapshot: (from, options) =>
          Effect.flatMap(decodeSnapshotOptions(options), (decoded) => snapshots.take(source(from), decoded)),
        fork: (from, n, options) =>
          fork(
            source(from),
            n,
            { env, network: egress.policy(), ...timesOf(setup), ...options },
            limits,
            options.secrets === undefined ? egress.sessionSecrets : undefined
          )
      }
    })
    yield* Observe.annotate({ session: made.session.id })
    return made
  })

  /** Decodes the options of a session that continues from `parent`. `parentLimits` replace the default limits. */
  const setupFrom = Effect.fnUntraced(function* (
    parent: Snapshot.CloneSource,
    options: SessionOptions,
    parentLimits?: Required<Limits>
  ) {
    const { env = {}, limits: given, network = none, secrets = {}, ...decoded } = yield* decodeOptions(options)
    const limits = resolve({ memoryMiB: parent.limitMiB, ...given }, parentLimits)
    if (limits.memoryMiB > parent.limitMiB) {
      return yield* fail(
        new InvalidInput({
          field: "limits.memoryMiB",
          problem: `got ${limits.memoryMiB}`,
          expected: `at most the ${parent.limitMiB} of the session that it continues from`
        })
      )
    }
    return { env, limits, network, secrets, ...timesOf(decoded) }
  })

  const startFrom = Effect.fnUntraced(function* (parent: Snapshot.CloneSource, given: Setup) {
    const started = yield* Clock.currentTimeMillis
    const setup = yield* withEgress(given)
    const clone = yield* parent.clone
    return yield* establish(yield* handOver(clone, setup), setup, started, parent)
  })

  const fork: (
    source: Snapshot.Source,
    n: number,
    options: SessionOptions,
    parentLimits: Required<Limits>,
    inherited: Egress.SessionSecrets | undefined
  ) => ReturnType<Session["fork"]> = Effect.fn("Session.fork")(
    function* (
      source,
      given,
      options,
      parentLimits,
      inherited
    ): Effect.fn.Return<ReadonlyArray<Result.Result<Session, SandboxError>>, SandboxError, Scope.Scope> {
      const n = yield* decodeForks(given)
      const callerScope = yield* Effect.scope
      return yield* Effect.scoped(
        Effect.gen(function* () {
          const parent = yield* snapshots.hold(source)
          const setup = { ...(yield* setupFrom(parent, options, parentLimits)), inherited }
          const child = Scope.provide(inScope(startFrom(parent, setup)), callerScope)
          return yield* Effect.forEach(Array.from({ length: n }), () => Effect.result(child), { concurrency: 2 })
        })
      )
    }
  )

  /** Fails with the session's error for a `PackageError`. Its receipt describes a VM, so this takes one. */
  const refuse = Effect.fnUntraced(function* (error: PackageError, limits: Required<Limits>) {
    if (error.reason._tag === "Conflict") return yield* PackageRefusal.asInput(error)
    const started = yield* Clock.currentTimeMillis
    const setup = yield* withEgress({ env: {}, limits, network: none })
    const handed = yield* pool
      .clone(limits.memoryMiB, (clone) => handOver(clone, setup))
      .pipe(Effect.catchTag("PackageError", (again) => Effect.fail(PackageRefusal.asInput(again))))
    const origin = originOf(handed, started)
    return yield* PackageRefusal.refuse(error, handed.clone.vm, origin, limits, receipts, setup.egress)
  }, Effect.scoped)

  const open = Effect.fn("Sandbox.session")(function* (
    options: SessionOptions
  ): Effect.fn.Return<Made, SessionFailure, Scope.Scope> {
    const decoded = yield* decodeOptions(options)
    const { env = {}, from, limits: given, network = none, packages, secrets = {} } = decoded
    if (from !== undefined) {
      if (packages !== undefined && parsed(packages).length > 0) {
        const problem = "`packages` cannot be combined with `from`"
        const expected = "no packages: a snapshot already contains its packages"
        return yield* fail(new InvalidInput({ field: "packages", problem, expected }))
      }
      const parent = yield* snapshots.find(typeof from === "string" ? from : from.id)
      return yield* startFrom(parent, yield* setupFrom(parent, options))
    }
    const limits = resolve(given)
    yield* Observe.annotate({ memory_mib: limits.memoryMiB })
    const started = yield* Clock.currentTimeMillis
    const setup = yield* withEgress({ env, limits, network, secrets, ...timesOf(decoded) })
    const handed = yield* pool
      .clone(limits.memoryMiB, (clone) => handOver(clone, setup), packages)
      .pipe(Effect.catchTag("PackageError", (error) => refuse(error, limits)))
    return yield* establish(handed, setup, started)
  })

  return { open, session: (options) => inScope(open(options)) }
}
