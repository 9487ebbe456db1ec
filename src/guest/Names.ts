/** File names on the wire: as strings, or in hex where their bytes are not UTF-8. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as SchemaIssue from "effect/SchemaIssue"
import * as SchemaTransformation from "effect/SchemaTransformation"
import * as FileName from "../internal/FileName.ts"

const maxName = 64 * 1024
const Hex = Schema.String.check(Schema.isMaxLength(2 * maxName), Schema.isPattern(/^([0-9a-f]{2})*$/))
const WireName = Schema.Union([Schema.String.check(Schema.isMaxLength(maxName)), Schema.Struct({ hex: Hex })])

/** The wire form of a name. */
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
