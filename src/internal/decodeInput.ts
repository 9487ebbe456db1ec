/** Decodes a caller's input; the error contains the field, its value and what would be right. */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as SchemaIssue from "effect/SchemaIssue"
import { fail, InvalidInput, type SandboxError } from "../SandboxError.ts"

const format = SchemaIssue.makeFormatterStandardSchemaV1()

const shown = (value: unknown): string => {
  if (value === undefined) return "nothing"
  const text = typeof value === "string" ? JSON.stringify(value.slice(0, 80)) : String(JSON.stringify(value))
  return text.length > 80 ? `${text.slice(0, 80)}…` : text
}

/** For these fields only the type of the value is shown, never the value. */
const isSecret = (field: string): boolean => /secret/i.test(field)

/** A decoder for a caller's input. Unknown fields are refused, because they are probably misspelt. */
export const decodeInput = <S extends Schema.Top>(
  schema: S,
  name: string
): ((input: unknown) => Effect.Effect<S["Type"], SandboxError, S["DecodingServices"]>) => {
  const decode = Schema.decodeUnknownEffect(schema, { onExcessProperty: "error" })
  return (input) =>
    decode(input).pipe(
      Effect.mapError((error) => {
        const issue = format(error.issue).issues[0]
        const path = (issue?.path ?? []).map((part) => (typeof part === "object" ? part.key : part))
        let value: unknown = input
        for (const part of path) {
          value =
            typeof value === "object" && value !== null ? (value as Record<PropertyKey, unknown>)[part] : undefined
        }
        const field = path.length === 0 ? name : path.map(String).join(".")
        const message = issue?.message ?? "a valid value"
        const got = isSecret(field) ? typeof value : shown(value)
        return fail(new InvalidInput({ field, problem: `got ${got}`, expected: message.replace(/^Expected /, "") }))
      })
    )
}
