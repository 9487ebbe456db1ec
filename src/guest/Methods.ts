/**
 * The methods of the protocol. Each has its request, the sub-channels of its bytes, its notes and its END. The typed client
 * (`Agent`) and the test kit's guest use these schemas, and golden messages hold the Go agent to them.
 *
 * To add a method: see CONTRIBUTING.md.
 */
import * as Schema from "effect/Schema"
import { Change, FileType } from "../Changes.ts"
import { ChangeCounts, Evidence } from "./Evidence.ts"
import { Sub } from "./Frame.ts"
import { NetworkGrant } from "./Hello.ts"
import { Name } from "./Names.ts"

type Codec = Schema.Top & { readonly DecodingServices: never; readonly EncodingServices: never }

/** One method. The side that opens the stream is its caller. */
export interface Method<Request extends Codec = Codec, End extends Codec = Codec, Note extends Codec = Codec> {
  readonly name: string
  /** The payload of OPEN, without the method's name. */
  readonly request: Request
  /** Sub-channels that carry bytes to the callee, and to the caller. */
  readonly sends: ReadonlyArray<number>
  readonly receives: ReadonlyArray<number>
  /** Notes of the caller to the callee. */
  readonly orders: Codec
  /** Notes of the callee to the caller. One that does not decode is ignored. */
  readonly notes: Note
  readonly end: End
}

/** A method's request as it travels. Absent and `undefined` are the same; `null` is never sent. */
export type Request<M extends Method> = M["request"]["Encoded"]
export type End<M extends Method> = M["end"]["Type"]
export type Note<M extends Method> = M["notes"]["Type"]
export type Order<M extends Method> = M["orders"]["Type"]

const Nothing = Schema.Struct({})
const none = { sends: [], receives: [], orders: Schema.Never, notes: Schema.Never } as const

const Count = Schema.Int.check(Schema.isGreaterThanOrEqualTo(0))
const Environment = Schema.Record(Schema.String, Schema.String)
const User = Schema.Literals(["user", "root"])

// ---- executions and processes ----------------------------------------------------------------------------------------

/** Asks for a report of changed files: with texts for patches, and of at most `maxFiles` files. */
export const ChangesAsked = Schema.Struct({ patches: Schema.Boolean, maxFiles: Count })
export type ChangesAsked = typeof ChangesAsked.Type

/**
 * The limits of an execution or a process; absent ones are the session's. In `fileSizeBytes`, 0 means the size of the disk.
 * Output beyond `outputBytes` ends the execution with `outputFail`, goes to files in the guest with `spill`, and is sent as
 * well with neither.
 */
const limits = {
  timeMs: Schema.optional(Count),
  memoryBytes: Schema.optional(Count),
  processes: Schema.optional(Count),
  fileSizeBytes: Schema.optional(Count),
  outputBytes: Schema.optional(Count),
  outputFail: Schema.optional(Schema.Boolean),
  spill: Schema.optional(Schema.Boolean)
}

/** The execution or process has started; `pid` is the process's id in the guest. */
const Started = Schema.Struct({ event: Schema.Literal("started"), pid: Schema.optionalKey(Schema.Int) })

/**
 * Executes code. The code follows on `code`, and stdin where `stdinBytes` is not 0. A report of changed files comes on
 * `file` before END, as lines of `ChangeLine`. `rehearsal` marks the pool's warm-up code, which must leave nothing behind, not
 * even random numbers drawn in advance.
 */
export const exec = {
  name: "exec",
  request: Schema.Struct({
    language: Schema.String,
    codeBytes: Count,
    stdinBytes: Count,
    env: Schema.optional(Environment),
    cwd: Schema.optional(Schema.String),
    ...limits,
    changes: Schema.optional(ChangesAsked),
    rehearsal: Schema.optional(Schema.Boolean)
  }),
  sends: [Sub.code, Sub.stdin],
  receives: [Sub.stdout, Sub.stderr, Sub.file],
  orders: Schema.Never,
  notes: Started,
  end: Evidence
} as const satisfies Method

/** A terminal's size in characters. */
const Size = Schema.Struct({ cols: Schema.Int, rows: Schema.Int })

/**
 * Starts a process: a program (`argv`) or a text for `bash -c` (`shell`). Its stdin follows. With `survives` it continues in a
 * copy of the machine, where no caller has its handle.
 */
export const spawn = {
  name: "spawn",
  request: Schema.Struct({
    argv: Schema.optional(Schema.Array(Schema.String)),
    shell: Schema.optional(Schema.String),
    cwd: Schema.optional(Schema.String),
    env: Schema.optional(Environment),
    user: User,
    pty: Schema.optional(Size),
    ...limits,
    changes: Schema.optional(ChangesAsked),
    survives: Schema.optional(Schema.Boolean)
  }),
  sends: [Sub.stdin],
  receives: [Sub.stdout, Sub.stderr, Sub.file],
  /** `close` ends the process: SIGTERM (with a terminal also SIGHUP), and SIGKILL a second later. */
  orders: Schema.Union([
    Schema.Struct({ event: Schema.Literal("signal"), signal: Schema.String }),
    Schema.Struct({ event: Schema.Literal("resize"), ...Size.fields }),
    Schema.Struct({ event: Schema.Literal("close") })
  ]),
  notes: Started,
  end: Evidence
} as const satisfies Method

/** Grants access to the network, or replaces what HELLO granted. */
export const network = { name: "network", request: NetworkGrant, ...none, end: Nothing } as const satisfies Method

/** Prepares a machine, whose HELLO had the purpose `build`, for sealing: waits until its interpreters are idle. */
export const seal = { name: "seal", request: Nothing, ...none, end: Nothing } as const satisfies Method

// ---- changed files ---------------------------------------------------------------------------------------------------

/** The most bytes of one file's text in a report, and of all texts together. */
export const maxText = 256 * 1024
export const maxTexts = 4 * 1024 * 1024

const Text = Schema.String.check(Schema.isMaxLength(maxText))
const Mode = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 0o7777 }))
const Owner = { uid: Count, gid: Count }
const State = Schema.Struct({ type: FileType, size: Count, mode: Mode, ...Owner, target: Schema.optionalKey(Name) })

/** One line of JSON in a report. With `text: "text"` it contains both texts. */
export const ChangeLine = Schema.Struct({
  kind: Change.fields.kind,
  path: Name,
  from: Schema.optionalKey(Name),
  before: Schema.optionalKey(State),
  after: Schema.optionalKey(State),
  content: Schema.Boolean,
  text: Schema.Literals(["text", "none", "binary", "large", "lost", "budget"]),
  old: Schema.optionalKey(Text),
  new: Schema.optionalKey(Text)
})
export type ChangeLine = typeof ChangeLine.Type

/** Sets a mark, from which changes can be read later. */
export const changesMark = {
  name: "changes.mark",
  request: Nothing,
  ...none,
  end: Schema.Struct({ mark: Schema.Int.check(Schema.isGreaterThanOrEqualTo(1)) })
} as const satisfies Method

/** Reports what changed since a mark, or since the session's start (0), as lines of `ChangeLine`. */
export const changesRead = {
  name: "changes.read",
  request: Schema.Struct({ since: Count, ...ChangesAsked.fields }),
  ...none,
  receives: [Sub.file],
  end: ChangeCounts
} as const satisfies Method

// ---- files -----------------------------------------------------------------------------------------------------------

/** Why an operation on files failed: an errno's name, or `NOTAFILE`, `CHANGED` or `TOOMANY`. */
export const FileFailed = Schema.Struct({
  error: Schema.Struct({
    code: Schema.String.check(Schema.isMaxLength(64)),
    path: Schema.optionalKey(Name),
    free: Schema.optionalKey(Count),
    type: Schema.optionalKey(FileType)
  })
})
export type FileFailed = typeof FileFailed.Type

const orFailed = <E extends Codec>(end: E) => Schema.Union([FileFailed, end])

/** A path, absolute or relative to the user's home, and the user whose rights apply. */
const at = { path: Name, user: Schema.optional(User) }
const createParents = Schema.optional(Schema.Boolean)

/** The attributes of a file; `modified` in ms since 1970. */
export const Stat = Schema.Struct({
  type: FileType,
  size: Count,
  mode: Mode,
  modified: Schema.Finite,
  ...Owner,
  target: Schema.optionalKey(Name)
})

/** One line of JSON of `file.list`. */
export const ListLine = Schema.Struct({ name: Name, ...Stat.fields })

/** One line of JSON of `file.watch`. */
export const WatchLine = Schema.Struct({
  kind: Schema.Literals(["start", "create", "modify", "remove", "rename", "overflow"]),
  path: Name,
  from: Schema.optionalKey(Name)
})

const given = { ...none, sends: [Sub.file] } as const
const taken = { ...none, receives: [Sub.file] } as const

export const fileRead = {
  name: "file.read",
  request: Schema.Struct({ ...at, offset: Schema.optional(Count), length: Schema.optional(Count) }),
  ...taken,
  end: orFailed(Schema.Struct({ size: Count, bytes: Count }))
} as const satisfies Method

/** Writes a file in one step. `modified`: ms since 1970, default now. */
export const fileWrite = {
  name: "file.write",
  request: Schema.Struct({
    ...at,
    mode: Schema.optional(Mode),
    modified: Schema.optional(Count),
    createParents
  }),
  ...given,
  end: orFailed(Schema.Struct({ bytes: Count }))
} as const satisfies Method

/** Lists a directory as lines of `ListLine`. */
export const fileList = {
  name: "file.list",
  request: Schema.Struct(at),
  ...taken,
  end: orFailed(Schema.Struct({ entries: Count }))
} as const satisfies Method

export const fileStat = {
  name: "file.stat",
  request: Schema.Struct({ ...at, noFollow: Schema.optional(Schema.Boolean) }),
  ...none,
  end: orFailed(Stat)
} as const satisfies Method

export const fileMakeDirectory = {
  name: "file.makeDirectory",
  request: Schema.Struct({ ...at, mode: Schema.optional(Mode), createParents }),
  ...none,
  end: orFailed(Nothing)
} as const satisfies Method

export const fileRemove = {
  name: "file.remove",
  request: Schema.Struct({
    ...at,
    recursive: Schema.optional(Schema.Boolean),
    force: Schema.optional(Schema.Boolean)
  }),
  ...none,
  end: orFailed(Nothing)
} as const satisfies Method

export const fileRename = {
  name: "file.rename",
  request: Schema.Struct({ ...at, to: Name }),
  ...none,
  end: orFailed(Nothing)
} as const satisfies Method

/** Reports changes as lines of `WatchLine` until the caller resets the stream. */
export const fileWatch = {
  name: "file.watch",
  request: Schema.Struct({ ...at, recursive: Schema.optional(Schema.Boolean) }),
  ...taken,
  end: orFailed(Nothing)
} as const satisfies Method

/** `skipped` counts entries that are neither file, directory nor link. */
const Copied = Schema.Struct({ entries: Count, bytes: Count, skipped: Count })

/** Sends a directory as a tar archive. */
export const treeRead = {
  name: "tree.read",
  request: Schema.Struct(at),
  ...taken,
  end: orFailed(Copied)
} as const satisfies Method

/** Unpacks a tar archive as a new directory. */
export const treeWrite = {
  name: "tree.write",
  request: Schema.Struct({ ...at, createParents }),
  ...given,
  end: orFailed(Copied)
} as const satisfies Method

// ---- servers in the guest --------------------------------------------------------------------------------------------

const Port = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 65_535 }))

/** The codes of a RESET of `dial`; any other one counts as `failed`. */
export const DialRefused = Schema.Literals(["refused", "reset", "timeout", "failed"])
export type DialRefused = typeof DialRefused.Type

/**
 * Connects to a server on the guest's loopback. The end of a sub-channel is that side's half-close; END comes when both sides
 * have ended.
 */
export const dial = {
  name: "dial",
  request: Schema.Struct({ port: Port }),
  sends: [Sub.stdin],
  receives: [Sub.stdout],
  orders: Schema.Never,
  notes: Schema.Struct({ event: Schema.Literal("connected") }),
  end: Nothing
} as const satisfies Method

/** Waits until a program listens on a port. */
export const listening = {
  name: "listening",
  request: Schema.Struct({ port: Port, timeoutMs: Count }),
  ...none,
  end: Schema.Struct({ listening: Schema.Boolean })
} as const satisfies Method

/** All methods that the host calls, by their name on the wire. */
export const ofHost = [
  exec,
  spawn,
  network,
  seal,
  changesMark,
  changesRead,
  fileRead,
  fileWrite,
  fileList,
  fileStat,
  fileMakeDirectory,
  fileRemove,
  fileRename,
  fileWatch,
  treeRead,
  treeWrite,
  dial,
  listening
] as const satisfies ReadonlyArray<Method>

// ---- methods that the guest calls ------------------------------------------------------------------------------------

/**
 * Asks the host for a connection to a host name, as the guest's program gave it to DNS, or to an IPv4 address. The host sends
 * the note `connected`, or `refused` with the errno for the program.
 */
export const connect = {
  name: "connect",
  request: Schema.Struct({ host: Schema.String.check(Schema.isMaxLength(253)), port: Port }),
  sends: [Sub.stdin],
  receives: [Sub.stdin],
  orders: Schema.Never,
  notes: Schema.Struct({
    event: Schema.Literals(["connected", "refused"]),
    errno: Schema.optionalKey(Schema.String)
  }),
  end: Nothing
} as const satisfies Method

/**
 * Carries what executions write after they have ended. A note gives the execution (its stream) that the next bytes belong to,
 * or the number of bytes that were dropped at this point.
 */
export const output = {
  name: "output",
  request: Nothing,
  sends: [Sub.stdout, Sub.stderr],
  receives: [],
  orders: Schema.Struct({
    execution: Schema.optionalKey(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 0xffffffff }))),
    dropped: Schema.optionalKey(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER })))
  }),
  notes: Schema.Never,
  end: Nothing
} as const satisfies Method

/** All methods that the guest calls. */
export const ofGuest = [connect, output] as const satisfies ReadonlyArray<Method>

/** RESET: the abnormal end of any stream. The codes `invalid` and `unsupported` say that the request was not accepted. */
export const Reset = Schema.Struct({
  code: Schema.String.check(Schema.isMaxLength(256 * 1024)),
  message: Schema.String.check(Schema.isMaxLength(256 * 1024))
})
export type Reset = typeof Reset.Type
