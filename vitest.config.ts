import { defineConfig } from "vitest/config"

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    reporters: ["default", "./test/summary.ts"],
    testTimeout: 60_000,
    hookTimeout: 240_000,
    // Real VMs on two cores: files that run side by side would only wait for each other.
    fileParallelism: false
  }
})
