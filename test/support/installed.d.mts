/** See installed.mjs. */
export const pretend: (tools: ReadonlyArray<string>, hidden: ReadonlyArray<string>, uid: number) => void
export const restore: () => void
