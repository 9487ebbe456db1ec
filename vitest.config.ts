import { defineConfig } from "vitest/config"

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    reporters: ["default", "./test/summary.ts"],
    // A guest's time limits and its one second of grace are real time, which a starved host may not give it: such a test is
    // tried again, and the summary names it.
    retry: 2,
    testTimeout: 60_000,
    hookTimeout: 240_000,
    // Real VMs on two cores: files that run side by side would only wait for each other.
    fileParallelism: false
  }
})
