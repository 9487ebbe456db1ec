/**
 * Who is admitted next, as pure logic: two queues and what is held. Callers come first and in the order they asked, so that
 * a large request is not overtaken for ever by small ones; spare requests (a pool's refills) are served when no caller waits.
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

/** Takes a request out, whether it waits (its caller left) or is held (its VM is dead). */
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

/** What is held together. */
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
 * Admits from the head on, as long as it fits. `free.memoryMiB` is what may be given beyond what is held, `free.cpus` all
 * slots there are. The first that does not fit holds up all after it.
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
