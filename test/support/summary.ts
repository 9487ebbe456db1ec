/** A vitest reporter: prints as its last line how many tests passed and failed. */
import type { Reporter, TestModule } from "vitest/node"

export default class Summary implements Reporter {
  onTestRunEnd(modules: ReadonlyArray<TestModule>): void {
    const count = { passed: 0, failed: 0, skipped: 0, pending: 0 }
    for (const module of modules) for (const test of module.children.allTests()) count[test.result().state]++
    process.stdout.write(`${count.passed} passed, ${count.failed} failed, ${count.skipped} skipped\n`)
  }
}
