/** A vitest reporter: names the tests that passed only when tried again, and says last how many passed and failed. */
import type { Reporter, TestModule } from "vitest/node"

export default class Summary implements Reporter {
  onTestRunEnd(modules: ReadonlyArray<TestModule>): void {
    const count = { passed: 0, failed: 0, skipped: 0, pending: 0 }
    for (const module of modules) {
      for (const test of module.children.allTests()) {
        const { state } = test.result()
        count[state]++
        if (state === "passed" && (test.diagnostic()?.retryCount ?? 0) > 0) {
          process.stdout.write(`passed only when tried again: ${test.fullName}\n`)
        }
      }
    }
    process.stdout.write(`${count.passed} passed, ${count.failed} failed, ${count.skipped} skipped\n`)
  }
}
