/** The services of the commands about this host. */
import * as Layer from "effect/Layer"
import { Host } from "../Host.ts"
import { Image } from "../Image.ts"
import { Template } from "../Template.ts"

/** The host, its images and its templates. */
export const layer = Template.layer.pipe(Layer.provideMerge(Image.layer), Layer.provideMerge(Host.layer))
