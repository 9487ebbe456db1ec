/** What the host sends, decoded by the protocol's own schemas, and how it is answered. */
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { Language } from "../Execution.ts"
import * as Methods from "../guest/Methods.ts"

type HostMethod = (typeof Methods.ofHost)[number]
type MethodName = HostMethod["name"]
type Named<N extends MethodName> = Extract<HostMethod, { readonly name: N }>

/** A request by its method. */
export type RequestOf<N extends MethodName> = { [M in N]: { readonly method: M } & Named<M>["request"]["Type"] }[N]
export type Request = RequestOf<MethodName>
export type FileRequest = RequestOf<Exclude<Extract<MethodName, `file.${string}`>, "file.watch">>

/** The fields of several requests, each of which may be absent. */
type Fields<R> = (R extends unknown ? (given: Partial<Omit<R, "method">>) => void : never) extends (
  given: infer All
) => void
  ? All
  : never

/** The fields of a file request, whichever it is. */
export type FileFields = Fields<FileRequest>
/** The fields of a task, be it code or a program. */
export type TaskFields = Omit<Fields<RequestOf<"exec" | "spawn">>, "language"> & { readonly language?: Language }

/** The guest's answer: bytes to send, and the END as it travels. */
export interface Answer<End = object> {
  readonly data?: Uint8Array
  readonly end: End
}
export type AnswerTo<N extends MethodName> = Answer<Named<N>["end"]["Encoded"]>

const decodeName = Schema.decodeUnknownOption(Schema.Struct({ method: Schema.String }))
const decoders: ReadonlyMap<string, (message: unknown) => Option.Option<object>> = new Map(
  Methods.ofHost.map((method) => [
    method.name,
    Schema.decodeUnknownOption(method.request as Schema.Codec<object, object>)
  ])
)

/** The request in an OPEN; `undefined` for one that an agent resets as `invalid`. */
export const decode = (message: unknown): Request | undefined => {
  const method = Option.getOrUndefined(decodeName(message))?.method ?? ""
  const request = Option.getOrUndefined(decoders.get(method)?.(message) ?? Option.none())
  return request === undefined ? undefined : ({ ...request, method } as Request)
}

const isLanguage = Schema.is(Language)

/** The fields of a task; none for another request, and no language that the image does not have. */
export const taskOf = (request: Request): TaskFields => {
  if (request.method === "spawn") return request
  if (request.method !== "exec") return {}
  const { language, ...fields } = request
  return isLanguage(language) ? { ...fields, language } : fields
}
