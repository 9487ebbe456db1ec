/** See tools.mjs. */
interface Tool {
  readonly package: string
  readonly brings: ReadonlyArray<string>
}
interface Build {
  readonly arch: "amd64" | "arm64"
  readonly host: "amd64" | "arm64"
  readonly root: boolean
}
export const neededTools: (build: Build) => ReadonlyArray<Tool>
export const hasProgram: (name: string, directories: ReadonlyArray<string>) => boolean
export const missingTools: (build: Build & { readonly directories: ReadonlyArray<string> }) => ReadonlyArray<Tool>
