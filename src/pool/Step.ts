/**
 * A pool's decisions, as pure logic: `step(state, message, now)` returns the next state and the actions to take. Times in ms.
 *
 * A clone is a number in exactly one of two lists (making, ready), and is removed when it is given or destroyed. So it cannot be
 * given twice, nor after its death.
 */

export interface Settings {
  /** How many clones to keep ready. */
  readonly size: number
  /** How many clones may be made at the same time. */
  readonly maxParallel: number
  /** How long a clone may be ready before it is replaced. */
  readonly maxAgeMs: number
  /** How long after a claim no clone is begun: a QEMU that starts takes CPU from the run that the claim is for. */
  readonly quietMs: number
  /** After how many failures in a row, or deaths of idle clones in a row, making is suspended. */
  readonly breakerAfter: number
  /** How long the first suspension is; each further one in a row is twice as long, up to 32 times the first. */
  readonly breakerMs: number
}

export interface State {
  readonly settings: Settings
  readonly nextId: number
  readonly draining: boolean
  /** Oldest first. */
  readonly ready: ReadonlyArray<{ readonly id: number; readonly since: number }>
  /** `started`: its capacity is reserved and it is being restored, so a claim may wait for it. */
  readonly making: ReadonlyArray<{ readonly id: number; readonly started: boolean }>
  /** Claims, oldest first. */
  readonly waiting: ReadonlyArray<number>
  /** Failures in a row. */
  readonly failures: number
  /** Idle clones lost since the last one was given or grew old. */
  readonly deaths: number
  /** Suspensions in a row. */
  readonly opened: number
  /** If set, nothing is made before this time, and one clone at a time after it, until one is ready. */
  readonly blockedUntil: number | null
  /** No clone is begun before this time. Claims before it do not move it, so that a busy pool is refilled as well. */
  readonly quietUntil: number
  /** The last failure. */
  readonly cause: string
}

export type Message =
  | { readonly _tag: "Claim"; readonly claim: number }
  /** The claim was interrupted. */
  | { readonly _tag: "Cancel"; readonly claim: number }
  | { readonly _tag: "Started"; readonly id: number }
  | { readonly _tag: "Ready"; readonly id: number }
  | { readonly _tag: "Failed"; readonly id: number; readonly cause: string }
  | { readonly _tag: "Died"; readonly id: number; readonly cause: string }
  | { readonly _tag: "Resize"; readonly size: number }
  /** A caller waits for capacity. */
  | { readonly _tag: "Shed" }
  /** Time has passed. */
  | { readonly _tag: "Tick" }
  | { readonly _tag: "Drain" }

export type Action =
  | { readonly _tag: "Make"; readonly id: number }
  | { readonly _tag: "Destroy"; readonly id: number }
  | { readonly _tag: "Give"; readonly claim: number; readonly id: number }
  | { readonly _tag: "Miss"; readonly claim: number; readonly kind: MissKind; readonly reason: string }

/** Why a claim got no clone, as a label for metrics; `reason` is the text. */
export type MissKind = "closing" | "size-zero" | "breaker" | "none-ready"

export type Breaker = "closed" | "open" | "half-open"

export const initial = (settings: Settings): State => ({
  settings,
  nextId: 1,
  draining: false,
  ready: [],
  making: [],
  waiting: [],
  failures: 0,
  deaths: 0,
  opened: 0,
  blockedUntil: null,
  quietUntil: Number.NEGATIVE_INFINITY,
  cause: ""
})

export const breaker = (state: State, now: number): Breaker =>
  state.blockedUntil === null ? "closed" : now < state.blockedUntil ? "open" : "half-open"

/** The next time after `now` (the time of the last step) at which the state changes by time alone. */
export const wakeAt = (state: State, now: number): number | undefined => {
  const times = state.ready.slice(0, 1).map((it) => it.since + state.settings.maxAgeMs)
  if (state.ready.length + state.making.length < state.settings.size) {
    times.push(Math.max(state.quietUntil, state.blockedUntil ?? Number.NEGATIVE_INFINITY))
  }
  const later = times.filter((it) => it > now)
  return later.length === 0 || state.draining ? undefined : Math.min(...later)
}

const without = <T extends { readonly id: number }>(list: ReadonlyArray<T>, id: number): ReadonlyArray<T> =>
  list.filter((it) => it.id !== id)

const miss = (state: State, now: number): { readonly kind: MissKind; readonly reason: string } => {
  if (state.draining) return { kind: "closing", reason: "the pool is closing" }
  if (state.settings.size === 0) return { kind: "size-zero", reason: "the pool's size is 0" }
  if (breaker(state, now) !== "closed") {
    return { kind: "breaker", reason: `the pool's clones keep failing: ${state.cause}` }
  }
  return { kind: "none-ready", reason: `none of the pool's ${state.settings.size} clones is ready` }
}

/** Suspends making after too many failures in a row. */
const judged = (state: State, now: number): State => {
  const { breakerAfter, breakerMs } = state.settings
  const tried = state.blockedUntil === null ? state.failures >= breakerAfter || state.deaths >= breakerAfter : true
  // A clone that was begun before the suspension and fails now says nothing new.
  if (!tried || breaker(state, now) === "open") return state
  const blockedUntil = now + breakerMs * 2 ** Math.min(state.opened, 5)
  return { ...state, blockedUntil, opened: state.opened + 1 }
}

/** The change by the message itself. */
const apply = (state: State, message: Message, now: number): readonly [State, ReadonlyArray<Action>] => {
  switch (message._tag) {
    case "Claim":
      return [{ ...state, waiting: [...state.waiting, message.claim] }, []]
    case "Cancel":
      return [{ ...state, waiting: state.waiting.filter((it) => it !== message.claim) }, []]
    case "Started": {
      const making = state.making.map((it) => (it.id === message.id ? { ...it, started: true } : it))
      return [{ ...state, making }, []]
    }
    case "Ready": {
      if (!state.making.some((it) => it.id === message.id)) return [state, []]
      const making = without(state.making, message.id)
      const ready = [...state.ready, { id: message.id, since: now }]
      return [{ ...state, making, ready, failures: 0, blockedUntil: null }, []]
    }
    case "Failed": {
      if (!state.making.some((it) => it.id === message.id)) return [state, []]
      const making = without(state.making, message.id)
      return [judged({ ...state, making, failures: state.failures + 1, cause: message.cause }, now), []]
    }
    case "Died": {
      if (!state.ready.some((it) => it.id === message.id)) return [state, []]
      const ready = without(state.ready, message.id)
      const next = judged({ ...state, ready, deaths: state.deaths + 1, cause: message.cause }, now)
      return [next, [{ _tag: "Destroy", id: message.id }]]
    }
    case "Resize":
      return [{ ...state, settings: { ...state.settings, size: message.size } }, []]
    case "Shed": {
      const [oldest, ...ready] = state.ready
      return oldest === undefined ? [state, []] : [{ ...state, ready }, [{ _tag: "Destroy", id: oldest.id }]]
    }
    case "Tick":
      return [state, []]
    case "Drain":
      return [{ ...state, draining: true }, []]
  }
}

/** Handles one message: first its own change, then what follows from the state, whatever the message was. */
export const step = (before: State, message: Message, now: number): readonly [State, ReadonlyArray<Action>] => {
  const [changed, first] = apply(before, message, now)
  const actions: Array<Action> = [...first]
  let state = changed
  const { maxAgeMs, maxParallel } = state.settings
  const size = state.draining ? 0 : state.settings.size

  // Clones that are too old or no longer wanted are never given.
  const fresh = state.ready.filter((it) => !state.draining && now - it.since < maxAgeMs)
  if (fresh.length < state.ready.length) state = { ...state, deaths: 0 }
  const kept = fresh.slice(Math.max(0, fresh.length - size - state.waiting.length))
  for (const { id } of state.ready) if (!kept.some((it) => it.id === id)) actions.push({ _tag: "Destroy", id })
  state = { ...state, ready: kept }

  while (state.ready[0] !== undefined && state.waiting[0] !== undefined) {
    const [{ id }, ...ready] = state.ready
    const [claim, ...waiting] = state.waiting
    actions.push({ _tag: "Give", claim, id })
    const quietUntil = now < state.quietUntil ? state.quietUntil : now + state.settings.quietMs
    state = { ...state, ready, waiting, deaths: 0, opened: 0, quietUntil }
  }

  if (state.draining) {
    for (const { id } of state.making) actions.push({ _tag: "Destroy", id })
    state = { ...state, making: [] }
  }
  // A claim waits only if more clones are being restored than claims wait before it.
  const coming = state.making.filter((it) => it.started).length
  for (const claim of state.waiting.slice(coming)) {
    actions.push({ _tag: "Miss", claim, ...miss(state, now) })
  }
  state = { ...state, waiting: state.waiting.slice(0, coming) }

  const parallel = now < state.quietUntil ? 0 : { closed: maxParallel, open: 0, "half-open": 1 }[breaker(state, now)]
  const wanted = size + state.waiting.length - state.ready.length
  while (state.making.length < Math.min(wanted, parallel)) {
    const id = state.nextId
    actions.push({ _tag: "Make", id })
    state = { ...state, nextId: id + 1, making: [...state.making, { id, started: false }] }
  }
  return [state, actions]
}
