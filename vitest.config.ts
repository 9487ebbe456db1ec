import { defineConfig } from "vitest/config"

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    reporters: ["default", "./test/support/summary.ts"],
    testTimeout: 120_000,
    hookTimeout: 240_000,
    // A VM keeps one core busy: two files at once use two, and show that sandboxes of two processes do not disturb each other.
    maxWorkers: 2
  }
})
