/** What the commands about this host work on, below the sandbox itself. */
import * as Layer from "effect/Layer"
import { Host } from "../Host.ts"
import { Image } from "../Image.ts"
import { Template } from "../Template.ts"

/** The host, its images and its templates. */
export const layer = Template.layer.pipe(Layer.provideMerge(Image.layer), Layer.provideMerge(Host.layer))
