/** What a guest of the test kit remembers. */
import type * as Semaphore from "effect/Semaphore"
import * as FakeChanges from "./FakeChanges.ts"
import * as FakeFiles from "./FakeFiles.ts"

/** What a guest has in its memory and on its disk between tasks. */
export interface Memory {
  readonly lanes: Map<string, Semaphore.Semaphore>
  readonly states: Map<string, Map<string, unknown>>
  readonly files: FakeFiles.FakeFiles
  readonly changes: FakeChanges.FakeChanges
  env: Readonly<Record<string, string>>
  pid: number
}

const over = (files: FakeFiles.FakeFiles): Memory => ({
  lanes: new Map(),
  states: new Map(),
  files,
  changes: FakeChanges.make(files),
  env: {},
  pid: 1000
})

export const empty = (): Memory => over(FakeFiles.make())

/** The same for another guest. */
export const copyOf = ({ env, files, pid, states }: Memory): Memory => ({
  ...over(files.copy()),
  states: new Map([...states].map(([lane, state]) => [lane, new Map(state)])),
  env,
  pid
})
