/**
 * Secrets: values that the code can use but never see. A session's environment has a placeholder for each. The host replaces
 * it with the value, outside the guest, in HTTP requests over TLS to the hosts that the secret is for.
 *
 * - Replaced: in the header `authorization` of such a request (or in another, see `header`), wherever the placeholder is in its
 *   value: alone, after `Bearer `, or in the user or password of `Basic`. In another header it is passed on as it is. It stays a placeholder in the URL, in the body and inside a
 *   WebSocket; trailers are not passed on.
 * - Refused, with the rule `secret`: a connection that sends the placeholder anywhere else, as it is or in base64, where that
 *   is visible: outside TLS, and in TLS to hosts that have a secret. Inside other TLS it is not visible, and it is worthless to
 *   the receiver.
 * - To do this, the host ends the TLS of connections to hosts with a secret, and of no others: the guest gets a certificate by
 *   an authority that is made for the session and whose key never leaves this process. The host trusts servers as its own
 *   programs do (`NODE_EXTRA_CA_CERTS` and `SSL_CERT_FILE` included). On these connections HTTP must be unambiguous and must
 *   name the granted host (the rules `http-syntax` and `http-host`). It is HTTP/1.1: clients that also offer HTTP/2 (curl,
 *   browsers, `fetch`) fall back to it; a client that offers only HTTP/2 (gRPC, `node:http2`) is refused at once, with the
 *   rule `http-version`.
 * - Responses are passed on unchanged, and cut off, with the rule `secret`, before a secret that is for the host has passed: as it
 *   is, percent-encoded, escaped for JSON, or in base64, in a header or in the body, compressed or not. TRACE is refused. Values
 *   of fewer than 6 characters are not looked for, and a host that encrypts or transforms what it echoes still reveals them: use
 *   secrets only with hosts that do not echo requests.
 *
 * Every session with secrets has new placeholders and a new authority. A fork keeps its parent's unless it gets other secrets
 * (`secrets: {}` for none). A session from a snapshot has only the secrets that it is given, with new placeholders: old ones
 * that its programs remember are refused where they are visible, and a program that has read the list of authorities before
 * does not trust the new one. Values are in no argument, environment, log, span, receipt or snapshot.
 *
 * @since 0.1.0
 */
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import { reserved } from "./network/Headers.ts"
import { parseSecretHost } from "./network/Rules.ts"

/** Limits: characters of a value, hosts of a secret, secrets of a session. */
const maxValue = 16_384
const maxHosts = 32
const maxSecrets = 32

const printable = /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/

const Value = Schema.declare(
  (value): value is Redacted.Redacted => {
    if (!Redacted.isRedacted(value)) return false
    const text = Redacted.value(value)
    return typeof text === "string" && text.length <= maxValue && printable.test(text)
  },
  { expected: `a Redacted text of 1 to ${maxValue} printable ASCII characters, without spaces at its ends` }
)

/**
 * A host that a secret is for: `example.com` or `example.com:8443` (default port 443), or `*.example.com` for every host below
 * it. Always over TLS; addresses and `host:PORT` cannot have secrets.
 *
 * @since 0.1.0
 * @category models
 */
export const SecretHost = Schema.String.check(
  Schema.makeFilter((text: string) => {
    const rule = parseSecretHost(text)
    return typeof rule === "string" ? rule : true
  })
)

/**
 * A secret.
 *
 * - `value`: the secret, `Redacted.make("…")`; 1 to 16,384 printable ASCII characters.
 * - `hosts`: the hosts that it is for, 1 to 32. The session's network policy must grant them too.
 * - `header`: the header in which it is put, in upper or lower case, `authorization` when absent; `*` for every header.
 *
 * @since 0.1.0
 * @category models
 */
export const Secret = Schema.Struct({
  value: Value,
  hosts: Schema.Array(SecretHost).check(
    Schema.makeFilter((hosts: ReadonlyArray<string>) => hosts.length >= 1 && hosts.length <= maxHosts, {
      expected: `1 to ${maxHosts} hosts`
    })
  ),
  header: Schema.optionalKey(
    Schema.String.check(
      Schema.makeFilter((name: string) => /^[\w!#$%&'*+.^`|~-]{1,128}$/.test(name) && !reserved(name.toLowerCase()), {
        expected: "the name of a header that is the request's own, such as authorization"
      })
    )
  )
})
/**
 * @since 0.1.0
 * @category models
 */
export type Secret = typeof Secret.Type

/**
 * The secrets of a session, at most 32, by the name of the environment variable that holds the placeholder.
 *
 * @example
 * ```ts
 * const session = yield* Sandbox.session({
 *   network: NetworkPolicy.allow(["api.github.com"]),
 *   secrets: { GITHUB_TOKEN: { value: Redacted.make(token), hosts: ["api.github.com"] } }
 * })
 * ```
 *
 * @since 0.1.0
 * @category models
 */
export const Secrets = Schema.Record(Schema.String, Secret).check(
  Schema.makeFilter((secrets: { readonly [name: string]: Secret }) => Object.keys(secrets).length <= maxSecrets, {
    expected: `at most ${maxSecrets} secrets`
  }),
  Schema.makeFilter(
    (secrets: { readonly [name: string]: Secret }) =>
      Object.keys(secrets).every((name) => /^[A-Za-z_][A-Za-z0-9_]{0,127}$/.test(name)),
    { expected: "secrets by names that environment variables may have" }
  )
)
/**
 * @since 0.1.0
 * @category models
 */
export type Secrets = typeof Secrets.Type
