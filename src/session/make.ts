/** Makes a session over a VM that has been handed over. */
import * as Arr from "effect/Array"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as SessionChanges from "../changes/Marks.ts"
import type { Egress } from "../egress/Egress.ts"
import * as Execution from "../Execution.ts"
import * as GuestFiles from "../files/make.ts"
import { decodeInput } from "../internal/decodeInput.ts"
import type { Limits } from "../Limits.ts"
import * as SessionPorts from "../ports/Expose.ts"
import type { Publisher } from "../Receipts.ts"
import { fail, type SandboxError, SessionClosed } from "../SandboxError.ts"
import { defaultIdleMs, type LateOutput, type Session } from "../Session.ts"
import type { Snapshot, SnapshotOptions } from "../Snapshot.ts"
import * as Context from "./Context.ts"
import { type Executor, make as makeExecutor } from "./Execute.ts"
import * as Guest from "./Guest.ts"
import * as SessionNetwork from "./Network.ts"
import type { ForkOptions } from "./Options.ts"
import { type Parking, using } from "./Parking.ts"
import * as Spawn from "./Spawn.ts"
import type { Usage } from "./Usage.ts"

/** What a session is built from. `idleMs` in ms. */
export interface Parts {
  readonly parking: Parking
  readonly usage: Usage
  readonly origin: Context.Origin
  readonly limits: Required<Limits>
  readonly egress: Egress
  readonly receipts: Publisher
  readonly idleMs: number | undefined
  readonly copies: Copies
}

/** How copies of the session are made. */
export interface Copies {
  readonly snapshot: (source: CopySource, options: SnapshotOptions) => Effect.Effect<Snapshot, SandboxError>
  readonly fork: (source: CopySource, n: number, options: ForkOptions) => ReturnType<Session["fork"]>
}

/** What a snapshot or a fork needs to know about the session. */
export interface CopySource {
  readonly session: string
  /** The languages that code was executed in. */
  readonly languages: ReadonlyArray<Execution.Language>
}

/** A session, and its `execute` and `stream` for requests that are already decoded. */
export interface Made extends Pick<Executor, "execute"> {
  readonly session: Session
  readonly stream: (request: Execution.Request) => Stream.Stream<Execution.Event, Execution.Failure>
}

const decodeRequest = decodeInput(Execution.Request, "request")

/** Makes a session. It closes with the scope, after `idleMs` without use, or when the VM is lost. */
export const make = Effect.fnUntraced(function* (parts: Parts): Effect.fn.Return<Made, never, Scope.Scope> {
  const { copies, egress, idleMs = defaultIdleMs, limits, origin, parking, receipts, usage } = parts
  const { vm } = parking
  const context = yield* Context.make({ vm, origin, limits, receipts, egress, presence: parking })
  const close = (problem: string): void => {
    context.closed ??= problem
  }
  yield* usage
    .idleFor(idleMs, () => close(`it was idle for ${idleMs} ms`))
    .pipe(Effect.andThen(vm.destroy), Effect.forkScoped)
  yield* Effect.addFinalizer(() => Effect.sync(() => close("its scope has ended")))

  const closed = Effect.suspend(() =>
    Effect.fail(fail(new SessionClosed({ session: context.id, problem: context.closed ?? "it was closed" })))
  )
  const executor = makeExecutor(context)
  /** Copies the session. This counts as use, so the session is neither closed as idle nor parked meanwhile. */
  const copy = <A, R>(
    effect: (source: CopySource) => Effect.Effect<A, SandboxError, R>
  ): Effect.Effect<A, SandboxError, R> =>
    Effect.acquireUseRelease(
      Scope.make(),
      (scope) =>
        context.closed === undefined
          ? Effect.andThen(
              Scope.provide(using(parking), scope),
              Effect.suspend(() => effect({ session: context.id, languages: [...executor.used] }))
            )
          : closed,
      (scope, exit) => Scope.close(scope, exit)
    )

  const guest = Guest.make(vm, { id: context.id, closed: () => context.closed, close, presence: parking })
  const { http, ports } = yield* SessionPorts.make(guest, context.ports, vm.failure)

  const stream = (request: Execution.Request): Stream.Stream<Execution.Event, Execution.Failure> =>
    Stream.callback<Execution.Event, Execution.Failure>(
      (queue) =>
        executor
          .execute(request, (event) => Effect.asVoid(context.deadlines.pausedDuring(Queue.offer(queue, event))), false)
          .pipe(
            Effect.andThen(Queue.end(queue)),
            Effect.catchCause((cause) => Queue.failCause(queue, cause))
          ),
      { bufferSize: 16, strategy: "suspend" }
    )

  const session: Session = {
    id: context.id,
    spawn: (command, options) => Spawn.spawn(context, command, options),
    run: (command, options) => Spawn.run(context, command, options),
    exec: (input) =>
      Effect.flatMap(decodeRequest(input), (request) => executor.execute(request, () => Effect.void, true)),
    stream: (input) => Stream.unwrap(Effect.map(decodeRequest(input), stream)),
    files: GuestFiles.make(guest),
    ...SessionChanges.make(guest, context.id),
    ports,
    http,
    network: SessionNetwork.make(context),
    close: Effect.suspend(() => {
      close("it was closed")
      return vm.destroy
    }),
    park: Effect.suspend(() => (context.closed === undefined ? parking.park : closed)),
    snapshot: (options = {}) => copy((source) => copies.snapshot(source, options)),
    fork: (n, options = {}) => copy((source) => copies.fork(source, n, options)),
    output: Stream.fromPull(
      Effect.succeed(
        Effect.map(vm.lateOutput, (pieces) =>
          Arr.map(pieces, (piece): LateOutput => {
            if (piece._tag === "Dropped") return piece
            return { _tag: piece._tag, sequence: executor.sequenceOf(piece.stream), bytes: piece.bytes }
          })
        )
      )
    )
  }
  return { session, execute: executor.execute, stream }
})
