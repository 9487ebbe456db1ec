/**
 * What host and agent say to each other over the channel: the JSON messages as Schemas.
 *
 * Everything that comes from the guest is decoded here before it is believed, and nothing in it is trusted beyond its own
 * task: a hostile guest can lie about its own outcome and about nothing else.
 */
import * as Schema from "effect/Schema"
import { ChangesEnd, type ChangesOpen } from "./ChangeProtocol.ts"

/** The version both sides must speak. */
export const protocol = 1

/** The name of the virtio-serial port. */
export const portName = "exec-sandbox.channel"

/** The host's HELLO: everything that makes this clone different from every other. */
export interface Hello {
  readonly protocol: typeof protocol
  /**
   * `build`: the machine is made into a template; `rehearsal`: it does what a session does and is nobody's; `claim`: it
   * becomes somebody's after a rehearsal, whose entropy its interpreters keep; `session`: it becomes somebody's; `wake`: it
   * goes on being what it was, and is told only the time.
   */
  readonly purpose: "build" | "rehearsal" | "claim" | "session" | "wake"
  /** Wall clock, nanoseconds since 1970 as a decimal string. */
  readonly clock: string
  /** 64 fresh random bytes in hex. */
  readonly entropy: string
  readonly hostname: string
  /** 32 hex digits. */
  readonly machineId: string
  readonly env: Readonly<Record<string, string>>
  /** Of the last two, 0 is no limit but the disk. */
  readonly limits: {
    readonly memoryBytes: number
    readonly processes: number
    readonly diskBytes: number
    readonly fileSizeBytes: number
  }
  /** `null` leaves the guest with its loopback only. */
  readonly network: NetworkGrant | null
}

/** A way out of the guest. `authorities` is PEM: whom it shall trust beside everybody's; `env` tells its programs so. */
export interface NetworkGrant {
  readonly authorities: string
  readonly env: Readonly<Record<string, string>>
}

/** The guest's HELLO. `acknowledged` is absent in the greeting a guest sends at boot. */
export const GuestHello = Schema.Struct({
  protocol: Schema.Literal(protocol),
  ready: Schema.Boolean,
  acknowledged: Schema.optionalKey(
    Schema.Struct({
      clock: Schema.Boolean,
      entropy: Schema.Boolean,
      hostname: Schema.Boolean,
      machineId: Schema.Boolean,
      env: Schema.Boolean,
      limits: Schema.Boolean,
      network: Schema.Boolean
    })
  ),
  languages: Schema.Array(Schema.String),
  kernel: Schema.String,
  agent: Schema.String
})
export type GuestHello = typeof GuestHello.Type

/** The guest's OPEN of a connection: a name as its programs gave it to DNS, or an IPv4 address, and a port. */
export const ConnectOpen = Schema.Struct({
  host: Schema.String.check(Schema.isMaxLength(253)),
  port: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 65_535 }))
})
export type ConnectOpen = typeof ConnectOpen.Type

/** OPEN of an execution. Code follows as DATA, and stdin where it has bytes. What is usual is left out: it need not be read. */
export interface ExecOpen {
  readonly method: "exec"
  readonly language: string
  readonly codeBytes: number
  readonly stdinBytes: number
  readonly env?: Readonly<Record<string, string>> | undefined
  readonly cwd?: string | undefined
  readonly timeoutMs?: number | undefined
  readonly memoryBytes?: number | undefined
  readonly processes?: number | undefined
  readonly fileSizeBytes?: number | undefined
  readonly outputBytes?: number | undefined
  /** More than `outputBytes` ends the execution. */
  readonly outputFail?: true | undefined
  /** More than `outputBytes` is kept in files of the guest. */
  readonly keep?: true | undefined
  /** Asks for a report of changed files; it comes as DATA of `Sub.file` before END. */
  readonly changes?: ChangesOpen | undefined
  /** Code of our own that leaves nothing behind, random numbers that were drawn ahead least of all. */
  readonly rehearsal?: true
}

/** OPEN of a process: `argv` or `shell`. Its stdin follows as DATA. */
export interface SpawnOpen {
  readonly method: "spawn"
  readonly argv: ReadonlyArray<string> | null
  readonly shell: string | null
  readonly cwd: string | null
  readonly env: Readonly<Record<string, string>>
  readonly user: "user" | "root"
  readonly pty: { readonly cols: number; readonly rows: number } | null
  readonly timeoutMs: number | null
  readonly memoryBytes: number | null
  readonly processes: number | null
  /** 0 is no limit. */
  readonly fileSizeBytes: number | null
  readonly outputBytes: number
  readonly outputFail: boolean
  readonly keep: boolean
  readonly changes: ChangesOpen | null
  /** It runs on in a copy of the machine, where nobody holds it. */
  readonly survives: boolean
}

const Text = Schema.String.check(Schema.isMaxLength(256 * 1024))

/** What no interpreter of ours reports deeper than 51 levels; a value that is would overflow the stack of who writes it as JSON. */
const shallow = Schema.makeFilter(
  (value: Schema.Json) => {
    let level: ReadonlyArray<Schema.Json> = [value]
    for (let depth = 0; level.length > 0; depth++) {
      if (depth > 100) return false
      level = level.flatMap((it) => (typeof it === "object" && it !== null ? Object.values(it) : []))
    }
    return true
  },
  { expected: "data of at most 100 levels" }
)

const Amount = Schema.Finite.check(Schema.isGreaterThanOrEqualTo(0))

/** What the guest knows of how an execution ended; see `Execution.classify` for what is made of it. */
export const Evidence = Schema.Struct({
  exitCode: Schema.NullOr(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 255 }))),
  signal: Schema.NullOr(Text),
  exception: Schema.NullOr(
    Schema.Struct({
      type: Text,
      message: Text,
      traceback: Text,
      errno: Schema.NullOr(Text),
      path: Schema.NullOr(Text),
      module: Schema.NullOr(Text),
      code: Schema.NullOr(Text),
      /** Of what the exception was raised for, where it has no errno itself. */
      causeErrno: Schema.optionalKey(Text)
    })
  ),
  commands: Schema.Array(
    Schema.Struct({
      name: Text,
      kind: Schema.Literals(["not-found", "not-executable", "permission"]),
      path: Schema.NullOr(Text)
    })
  ),
  limits: Schema.Array(
    Schema.Struct({
      limit: Schema.Literals(["time", "memory", "processes", "disk", "file-size"]),
      allowed: Schema.NullOr(Schema.Finite),
      observed: Schema.NullOr(Schema.Finite)
    })
  ),
  state: Schema.Literals(["kept", "reset"]),
  result: Schema.NullOr(Schema.Struct({ repr: Text, json: Schema.optionalKey(Schema.Json.check(shallow)) })),
  usage: Schema.Struct({
    cpuMs: Schema.NullOr(Amount),
    peakMemoryBytes: Schema.NullOr(Amount),
    wallMs: Schema.NullOr(Amount)
  }),
  /** The connection whose refusal the exit code is due to. */
  refused: Schema.optionalKey(Schema.Struct({ host: Text, port: Schema.Int })),
  changes: Schema.optionalKey(ChangesEnd),
  rest: Schema.optionalKey(Schema.Struct({ stdout: Schema.NullOr(Text), stderr: Schema.NullOr(Text) }))
})
export type Evidence = typeof Evidence.Type

/** RESET: a stream's abnormal end. */
export const Reset = Schema.Struct({ code: Text, message: Text })
export type Reset = typeof Reset.Type

/** A guest NOTE. What is not known is passed over. */
export const Note = Schema.Struct({ event: Schema.optionalKey(Text), pid: Schema.optionalKey(Schema.Int) })
