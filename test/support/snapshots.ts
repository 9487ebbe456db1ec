/** The real services with a snapshot store for one test. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Capacity from "../../src/Capacity.ts"
import { Host } from "../../src/Host.ts"
import { Image } from "../../src/Image.ts"
import { Pool } from "../../src/Pool.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { Snapshots } from "../../src/Snapshot.ts"
import { Template } from "../../src/Template.ts"

/** Snapshots in `directory`; templates are the shared ones. */
export const layerAt = (directory: string) => {
  const host = Layer.effect(
    Host,
    Effect.map(Host, (it) => Host.of({ ...it, cacheDirectory: directory }))
  ).pipe(Layer.provide(Host.layer))
  return Layer.fresh(Sandbox.layerOver).pipe(
    Layer.provideMerge(Layer.fresh(Snapshots.layer).pipe(Layer.provide(host))),
    Layer.provide(Pool.layer),
    Layer.provideMerge(Capacity.Capacity.layer),
    Layer.provide(Template.layer),
    Layer.provide(Image.layer),
    Layer.provide(Host.layer)
  )
}
