/** One complete and one minimal example of every message between host and agent. */
import * as Methods from "../../src/guest/Methods.ts"
import type { Evidence } from "../../src/guest/Evidence.ts"
import type { GuestHello, Hello } from "../../src/guest/Hello.ts"

/** The examples of one method: `requests` and the rest as they travel. The first request and END have every field. */
interface Examples<M extends Methods.Method> {
  readonly requests: ReadonlyArray<Methods.Request<M>>
  readonly orders: ReadonlyArray<M["orders"]["Encoded"]>
  readonly notes: ReadonlyArray<M["notes"]["Encoded"]>
  readonly ends: ReadonlyArray<M["end"]["Encoded"]>
}

const limits = {
  timeMs: 30_000,
  memoryBytes: 268_435_456,
  processes: 64,
  fileSizeBytes: 1_048_576,
  outputBytes: 65_536,
  outputFail: true,
  spill: true,
  changes: { patches: true, maxFiles: 10 }
}

const counts = { created: 1, modified: 2, deleted: 3, renamed: 4, unexamined: 5, unlisted: 6 }

const full: Evidence = {
  exitCode: 1,
  signal: "SIGXFSZ",
  exception: {
    type: "OSError",
    message: "no",
    traceback: "Traceback …",
    errno: "ENOENT",
    path: "/x",
    module: null,
    code: null,
    causeErrno: "EHOSTUNREACH"
  },
  commands: [{ name: "nope", kind: "not-found", path: null }],
  limits: [{ limit: "file-size", allowed: 1_048_576, observed: 1_048_576 }],
  state: "kept",
  result: { repr: "42", json: { n: [42] } },
  usage: { cpuMs: 1.5, peakMemoryBytes: 4096, wallMs: 2.5 },
  refused: { host: "a.example", port: 443 },
  changes: counts,
  rest: { stdout: "/var/lib/exec-sandbox/output/1", stderr: null }
}
const least: Evidence = {
  exitCode: 0,
  signal: null,
  exception: null,
  commands: [],
  limits: [],
  state: "reset",
  result: null,
  usage: { cpuMs: null, peakMemoryBytes: null, wallMs: 0 }
}
const ends = [full, least]
const silent = { orders: [], notes: [] }
const failed = { error: { code: "NOTAFILE", path: { hex: "66ff" }, free: 7, type: "fifo" } } as const

export const hello: Hello = {
  protocol: 1,
  purpose: "session",
  clock: "1764547200000000000",
  entropy: "ab".repeat(64),
  hostname: "sbx-01020304",
  machineId: "0123456789abcdef0123456789abcdef",
  env: { A: "b" },
  limits: { memoryBytes: 536_870_912, processes: 256, diskBytes: 0, fileSizeBytes: 1 },
  network: { authorities: "-----BEGIN CERTIFICATE-----\n", env: { SSL_CERT_FILE: "/x" } }
}
export const guestHello: GuestHello = {
  protocol: 1,
  ready: true,
  acknowledged: {
    clock: true,
    entropy: true,
    hostname: true,
    machineId: true,
    env: true,
    limits: true,
    network: false
  },
  languages: ["python", "bash"],
  kernel: "6.1.0",
  agent: "0.1.0"
}

const exec: Examples<typeof Methods.exec> = {
  requests: [
    { language: "python", codeBytes: 8, stdinBytes: 3, env: { A: "b" }, cwd: "/tmp", ...limits, rehearsal: true },
    { language: "bash", codeBytes: 1, stdinBytes: 0 }
  ],
  orders: [],
  notes: [{ event: "started" }],
  ends
}
const spawn: Examples<typeof Methods.spawn> = {
  requests: [
    {
      argv: ["grep", "-c", "x"],
      cwd: "/tmp",
      env: { A: "b" },
      user: "root",
      pty: { cols: 80, rows: 24 },
      ...limits,
      survives: true
    },
    { shell: "echo 1", user: "user" }
  ],
  orders: [{ event: "signal", signal: "SIGTERM" }, { event: "resize", cols: 100, rows: 50 }, { event: "close" }],
  notes: [{ event: "started", pid: 77 }],
  ends
}
const network: Examples<typeof Methods.network> = {
  requests: [{ authorities: "-----BEGIN CERTIFICATE-----\n", env: { A: "b" } }],
  ...silent,
  ends: [{}]
}
const seal: Examples<typeof Methods.seal> = { requests: [{}], ...silent, ends: [{}] }
const changesMark: Examples<typeof Methods.changesMark> = { requests: [{}], ...silent, ends: [{ mark: 3 }] }
const changesRead: Examples<typeof Methods.changesRead> = {
  requests: [{ since: 3, patches: true, maxFiles: 10 }],
  ...silent,
  ends: [counts]
}
const fileRead: Examples<typeof Methods.fileRead> = {
  requests: [{ path: { hex: "66ff" }, user: "root", offset: 5, length: 7 }, { path: "f" }],
  ...silent,
  ends: [{ size: 12, bytes: 7 }, failed]
}
const fileWrite: Examples<typeof Methods.fileWrite> = {
  requests: [{ path: "f", user: "user", mode: 0o640, modified: 1_764_547_200_000, createParents: true }, { path: "f" }],
  ...silent,
  ends: [{ bytes: 7 }]
}
const fileList: Examples<typeof Methods.fileList> = {
  requests: [{ path: "d", user: "user" }],
  ...silent,
  ends: [{ entries: 2 }]
}
const fileStat: Examples<typeof Methods.fileStat> = {
  requests: [{ path: "l", user: "user", noFollow: true }],
  ...silent,
  ends: [{ type: "symlink", size: 3, mode: 0o777, modified: 1_764_547_200_000.5, uid: 1000, gid: 1000, target: "f" }]
}
const fileMakeDirectory: Examples<typeof Methods.fileMakeDirectory> = {
  requests: [{ path: "d", user: "user", mode: 0o700, createParents: true }],
  ...silent,
  ends: [{}]
}
const fileRemove: Examples<typeof Methods.fileRemove> = {
  requests: [{ path: "d", user: "user", recursive: true, force: true }],
  ...silent,
  ends: [{}]
}
const fileRename: Examples<typeof Methods.fileRename> = {
  requests: [{ path: "a", to: { hex: "62ff" }, user: "user" }],
  ...silent,
  ends: [{}]
}
const fileWatch: Examples<typeof Methods.fileWatch> = {
  requests: [{ path: "d", user: "user", recursive: true }],
  ...silent,
  ends: [{}]
}
const treeRead: Examples<typeof Methods.treeRead> = {
  requests: [{ path: "d", user: "user" }],
  ...silent,
  ends: [{ entries: 2, bytes: 7, skipped: 1 }]
}
const treeWrite: Examples<typeof Methods.treeWrite> = {
  requests: [{ path: "d", user: "user", createParents: true }],
  ...silent,
  ends: [{ entries: 2, bytes: 7, skipped: 1 }]
}
const dial: Examples<typeof Methods.dial> = {
  requests: [{ port: 8080 }],
  orders: [],
  notes: [{ event: "connected" }],
  ends: [{}]
}
const listening: Examples<typeof Methods.listening> = {
  requests: [{ port: 8080, timeoutMs: 500 }],
  ...silent,
  ends: [{ listening: true }]
}
const connect: Examples<typeof Methods.connect> = {
  requests: [{ host: "a.example", port: 443 }],
  orders: [],
  notes: [{ event: "connected" }, { event: "refused", errno: "ECONNREFUSED" }],
  ends: [{}]
}
const output: Examples<typeof Methods.output> = {
  requests: [{}],
  orders: [{ execution: 7 }, { dropped: 4096 }],
  notes: [],
  ends: [{}]
}

/** By the method's name. */
export const examples: Readonly<Record<string, Examples<Methods.Method>>> = {
  exec,
  spawn,
  network,
  seal,
  "changes.mark": changesMark,
  "changes.read": changesRead,
  "file.read": fileRead,
  "file.write": fileWrite,
  "file.list": fileList,
  "file.stat": fileStat,
  "file.makeDirectory": fileMakeDirectory,
  "file.remove": fileRemove,
  "file.rename": fileRename,
  "file.watch": fileWatch,
  "tree.read": treeRead,
  "tree.write": treeWrite,
  dial,
  listening,
  connect,
  output
}

/** Lines of JSON that some methods send as bytes. */
export const lines = {
  change: {
    kind: "renamed",
    path: "/home/user/b",
    from: { hex: "2f686f6d652f757365722f61ff" },
    before: { type: "symlink", size: 1, mode: 0o777, uid: 1000, gid: 1000, target: "x" },
    after: { type: "file", size: 2, mode: 0o644, uid: 1000, gid: 1000 },
    content: true,
    text: "text",
    old: "a",
    new: "b"
  } satisfies typeof Methods.ChangeLine.Encoded,
  list: {
    name: "l",
    type: "symlink",
    size: 3,
    mode: 0o777,
    modified: 1_764_547_200_000.5,
    uid: 1000,
    gid: 1000,
    target: "f"
  } satisfies typeof Methods.ListLine.Encoded,
  watch: { kind: "rename", path: "d/b", from: "d/a" } satisfies typeof Methods.WatchLine.Encoded
}
