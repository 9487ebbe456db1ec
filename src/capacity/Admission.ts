/**
 * Decides which request is admitted next, as pure logic over two queues and the reserved capacity. Callers come first, in their
 * order, so that small requests do not overtake a large one for ever; spare requests (a pool's refills) follow when no caller
 * waits.
 */

/** What one VM is charged: `memoryMiB` of the host's memory and `cpus` slots. */
export interface Charge {
  readonly memoryMiB: number
  readonly cpus: number
}

export interface Request extends Charge {
  readonly id: number
  readonly spare: boolean
}

export interface State {
  readonly held: ReadonlyMap<number, Charge>
  readonly callers: ReadonlyArray<Request>
  readonly spares: ReadonlyArray<Request>
}

export const empty: State = { held: new Map(), callers: [], spares: [] }

/** Puts a request at the end of its queue. */
export const ask = (state: State, request: Request): State =>
  request.spare ? { ...state, spares: [...state.spares, request] } : { ...state, callers: [...state.callers, request] }

/** Removes a request, whether it waits (its caller gave up) or is admitted (its VM is dead). */
export const leave = (state: State, id: number): State => {
  const held = new Map(state.held)
  held.delete(id)
  return {
    held,
    callers: state.callers.filter((it) => it.id !== id),
    spares: state.spares.filter((it) => it.id !== id)
  }
}

/** The request that is served next. */
export const head = (state: State): Request | undefined => state.callers[0] ?? state.spares[0]

/** The sum of what is reserved. */
export const sum = (charges: Iterable<Charge>): Charge => {
  let memoryMiB = 0
  let cpus = 0
  for (const it of charges) {
    memoryMiB += it.memoryMiB
    cpus += it.cpus
  }
  return { memoryMiB, cpus }
}

/**
 * Admits requests in order, as long as they fit. `free.memoryMiB` is what may be reserved in addition, `free.cpus` are all slots
 * of the host. The first request that does not fit blocks all those after it.
 */
export const admit = (
  state: State,
  free: { readonly memoryMiB: number; readonly cpus: number }
): readonly [State, ReadonlyArray<number>] => {
  const admitted: Array<number> = []
  let next = state
  let { memoryMiB } = free
  let cpus = free.cpus - sum(state.held.values()).cpus
  for (let it = head(next); it !== undefined; it = head(next)) {
    if (it.memoryMiB > memoryMiB || it.cpus > cpus) break
    memoryMiB -= it.memoryMiB
    cpus -= it.cpus
    const left = leave(next, it.id)
    next = { ...left, held: new Map(left.held).set(it.id, { memoryMiB: it.memoryMiB, cpus: it.cpus }) }
    admitted.push(it.id)
  }
  return [next, admitted]
}
