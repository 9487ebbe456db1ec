// Adds the benchmarks to the built package as dist/bench. There the library is in .., not in ../src.
import { execFileSync } from "node:child_process"
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"

const root = fileURLToPath(new URL("..", import.meta.url))
const made = join(root, "node_modules", ".cache", "bench")
const target = join(root, "dist", "bench")

rmSync(made, { recursive: true, force: true })
execFileSync(join(root, "node_modules", ".bin", "tsc"), ["-p", join(root, "bench")], { stdio: "inherit" })
mkdirSync(target, { recursive: true })
for (const name of readdirSync(join(made, "bench")).filter((it) => it.endsWith(".js"))) {
  writeFileSync(join(target, name), readFileSync(join(made, "bench", name), "utf8").replaceAll('"../src/', '"../'))
}
copyFileSync(join(root, "bench", "floor.mjs"), join(target, "floor.mjs"))
