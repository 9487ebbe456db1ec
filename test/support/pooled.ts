/** The library with a pool of one clone, and the pool itself. */
import * as Layer from "effect/Layer"
import { Capacity } from "../../src/Capacity.ts"
import { Host } from "../../src/Host.ts"
import { Image } from "../../src/Image.ts"
import { Pool, Settings } from "../../src/Pool.ts"
import { Sandbox } from "../../src/Sandbox.ts"
import { Snapshots } from "../../src/Snapshot.ts"
import { Template } from "../../src/Template.ts"

export const pooled = Sandbox.layerOver.pipe(
  Layer.provideMerge(Pool.layer),
  Layer.provide(Snapshots.layerUnsupported),
  Layer.provide(Capacity.layer),
  Layer.provide(Template.layer),
  Layer.provide(Image.layer),
  Layer.provide(Host.layer),
  Layer.provide(Layer.succeed(Settings, { size: 1 }))
)
