/** The state of a fake guest. */
import type * as Semaphore from "effect/Semaphore"
import * as FakeChanges from "./FakeChanges.ts"
import * as FakeDisk from "./FakeDisk.ts"
import * as FakePorts from "./FakePorts.ts"

/** A guest's memory and disk between tasks. */
export interface Memory {
  readonly lanes: Map<string, Semaphore.Semaphore>
  readonly states: Map<string, Map<string, unknown>>
  readonly disk: FakeDisk.FakeDisk
  readonly changes: FakeChanges.FakeChanges
  readonly ports: FakePorts.FakePorts
  /** The installed packages, such as `python:pandas==2.2.3`. */
  readonly packages: ReadonlyArray<string>
  env: Readonly<Record<string, string>>
  /** Whether programs may ask for connections. */
  network: boolean
  pid: number
}

const over = (disk: FakeDisk.FakeDisk, ports: FakePorts.FakePorts, packages: ReadonlyArray<string>): Memory => ({
  lanes: new Map(),
  states: new Map(),
  disk,
  changes: FakeChanges.make(disk),
  ports,
  packages,
  env: {},
  network: false,
  pid: 1000
})

/** The state of a new machine with these packages. */
export const empty = (packages: ReadonlyArray<string> = []): Memory => over(FakeDisk.make(), FakePorts.make(), packages)

/** A copy for another guest. */
export const copyOf = ({ disk, env, packages, pid, ports, states }: Memory): Memory => ({
  ...over(disk.copy(), ports.copy(), packages),
  states: new Map([...states].map(([lane, state]) => [lane, new Map(state)])),
  env,
  pid
})
