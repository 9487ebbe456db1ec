/** Receipts that no machine wrote. */
import type { Receipt } from "../../src/Receipt.ts"

/** A receipt of a short Python execution, with changes. */
export const receipt = (changes: Partial<Receipt> = {}): Receipt => ({
  version: 1,
  id: "exe-0123456789abcdef",
  session: "ses-0123456789abcdef",
  sequence: 1,
  startedAt: "2026-01-01T00:00:00.000Z",
  language: "python",
  argv: null,
  codeSha256: null,
  image: "image",
  template: null,
  startPath: { kind: "restore", missed: [] },
  isolation: { accelerator: "tcg", boundary: "emulated", seccomp: true, user: null, parentDeath: true, cgroup: null },
  limits: {
    timeMs: 30_000,
    memoryBytes: 512 * 1024 * 1024,
    outputBytes: 1024 * 1024,
    output: "truncate",
    processes: 256,
    fileSizeBytes: 8192 * 1024 * 1024,
    diskBytes: 8192 * 1024 * 1024
  },
  outcome: "Success",
  stopReason: "completed",
  exitCode: 0,
  signal: null,
  state: "kept",
  output: { stdoutBytes: 3, stderrBytes: 3, truncated: false },
  usage: { cpuMs: 1, peakMemoryBytes: 1024, wallMs: 2 },
  timing: { queueMs: 0, acquireMs: null, handoverMs: null, wakeMs: null, executeMs: 2 },
  egress: null,
  egressOmitted: null,
  ports: null,
  filesChanged: null,
  ...changes
})

/** What results and task errors share, with "out" and "err" as output. */
export const fields = (changes: Partial<Receipt> = {}) => ({
  stdout: "out",
  stderr: "err",
  bytes: { stdout: new TextEncoder().encode("out"), stderr: new TextEncoder().encode("err") },
  outputFiles: { stdout: null, stderr: null },
  changes: null,
  receipt: receipt(changes)
})
