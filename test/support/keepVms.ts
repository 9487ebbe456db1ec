/** A process that holds a full pool and a session's VM until it is killed; says when it has them. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import { Capacity } from "../../src/Capacity.ts"
import { Host } from "../../src/Host.ts"
import { Image } from "../../src/Image.ts"
import { Pool, Settings } from "../../src/Pool.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { Snapshots } from "../../src/Snapshot.ts"
import { Template } from "../../src/Template.ts"

const program = Effect.gen(function* () {
  const session = yield* Sandbox.use((sandbox) => sandbox.session())
  yield* session.exec({ language: "python", code: "1" })
  yield* Pool.use((pool) => pool.stats).pipe(
    Effect.repeat({ until: ([it]) => it?.ready === 1, schedule: Schedule.spaced("20 millis") })
  )
  yield* Effect.sync(() => process.stdout.write("ready\n"))
  return yield* Effect.never
})

const layer = Sandbox.layerOver.pipe(
  Layer.provide(Snapshots.layerUnsupported),
  Layer.provideMerge(Pool.layer),
  Layer.provide(Capacity.layer),
  Layer.provide(Template.layer),
  Layer.provide(Image.layer),
  Layer.provide(Host.layer),
  Layer.provide(Layer.succeed(Settings, { size: 1 }))
)
// A fiber that waits does not keep the process alive.
setInterval(() => {}, 2 ** 31 - 1)
await Effect.runPromise(Effect.scoped(Effect.provide(program, layer)))
