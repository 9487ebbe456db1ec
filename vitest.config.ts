import { defineConfig } from "vitest/config"

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    testTimeout: 60_000,
    hookTimeout: 240_000,
    // Two cores: the files with real VMs share them badly, and a slow machine is no reason to fail.
    fileParallelism: false
  }
})
