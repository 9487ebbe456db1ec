/**
 * What host and agent say to each other about files. Names travel as strings, or in hex where their bytes are not UTF-8.
 */
import * as Schema from "effect/Schema"
import * as SchemaIssue from "effect/SchemaIssue"
import * as SchemaTransformation from "effect/SchemaTransformation"
import * as Effect from "effect/Effect"
import * as FileName from "../internal/FileName.ts"

const maxName = 64 * 1024
const Hex = Schema.String.check(Schema.isMaxLength(2 * maxName), Schema.isPattern(/^([0-9a-f]{2})*$/))
const WireName = Schema.Union([Schema.String.check(Schema.isMaxLength(maxName)), Schema.Struct({ hex: Hex })])

/** The wire form of a name that is known to have bytes. */
export const encodeName = (name: string): typeof WireName.Type =>
  name.isWellFormed() ? name : { hex: (FileName.toBytes(name) ?? Buffer.from(name)).toString("hex") }

/** A name as a string; see `internal/FileName`. */
export const Name = WireName.pipe(
  Schema.decodeTo(
    Schema.String,
    SchemaTransformation.transformEffect({
      decode: (wire: typeof WireName.Type) => {
        const name = typeof wire === "string" ? wire : FileName.fromBytes(Buffer.from(wire.hex, "hex"))
        return name === "" || name.includes("\0")
          ? Effect.fail(new SchemaIssue.InvalidValue({ message: "not a name" }, wire))
          : Effect.succeed(name)
      },
      encode: (name: string) => Effect.succeed(encodeName(name))
    })
  )
)

const Count = Schema.Int.check(Schema.isGreaterThanOrEqualTo(0))

/** Kinds of files. */
export const FileType = Schema.Literals([
  "file",
  "directory",
  "symlink",
  "fifo",
  "socket",
  "character-device",
  "block-device"
])

/** END of `file.stat`, and without the name of what each line of `file.list` holds. */
export const Stat = Schema.Struct({
  type: FileType,
  size: Count,
  mode: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 0o7777 })),
  modified: Schema.Finite,
  uid: Count,
  gid: Count,
  target: Schema.optionalKey(Name)
})

/** One line of `file.list`. */
export const ListLine = Schema.Struct({ name: Name, ...Stat.fields })

/** One line of `file.watch`. */
export const ChangeLine = Schema.Struct({
  kind: Schema.Literals(["start", "create", "modify", "remove", "rename", "overflow"]),
  path: Name,
  from: Schema.optionalKey(Name)
})

/** END of `file.read`. */
export const ReadEnd = Schema.Struct({ size: Count, bytes: Count })
/** END of `file.write`. */
export const WriteEnd = Schema.Struct({ bytes: Count })
/** END of `tree.read` and `tree.write`. */
export const TreeEnd = Schema.Struct({ entries: Count, bytes: Count, skipped: Count })
/** END of everything else. */
export const PlainEnd = Schema.Struct({})

/** END of an operation that did not succeed: an errno's name, `NOTAFILE`, `CHANGED` or `TOOMANY`. */
export const ErrorEnd = Schema.Struct({
  error: Schema.Struct({
    code: Schema.String.check(Schema.isMaxLength(64)),
    path: Schema.optionalKey(Name),
    free: Schema.optionalKey(Count),
    type: Schema.optionalKey(FileType)
  })
})
