/**
 * Secrets: what the code may use and never see. A session's environment holds a placeholder in place of each; the host puts
 * the value in, outside the guest, where a request of HTTP goes over TLS to one of the hosts that the secret is for.
 *
 * - Filled in: the value of every header of such a request (or of one header, see `header`), wherever the placeholder stands
 *   in it: alone, behind `Bearer `, or in the user or password of `Basic`. In the URL, in the body and inside a WebSocket it stays
 *   what it is; trailers are not passed on.
 * - Refused, with the rule `secret`: a connection that takes the placeholder anywhere else, as it is or in base64, as far as
 *   that can be seen: in whatever is not TLS, and in TLS to hosts that have a secret. Inside other TLS it cannot be seen, and
 *   is worth nothing to who receives it.
 * - For this the host ends the TLS of connections to hosts with a secret, and of no others: the guest is shown a certificate by
 *   an authority that is made for the session, and whose key never leaves this process. The host itself trusts the server
 *   as its own programs do (`NODE_EXTRA_CA_CERTS` and `SSL_CERT_FILE` included). There, HTTP must be written in one way only,
 *   and must name the host that was granted (the rules `http-syntax` and `http-host`). It is HTTP/1.1, to which clients that
 *   offer HTTP/2 beside it (curl, browsers, `fetch`) go back by themselves; a connection of one that offers nothing else (gRPC,
 *   `node:http2`) is refused at once, with the rule `http-version`.
 * - Responses are passed on as they are: **a host that sends back what it was sent shows the secret to the guest.** So give a
 *   secret to hosts that do not, and name the `header` where one will do.
 *
 * Placeholders and authority are new in every session that is given secrets. A fork goes on with those of its parent unless it
 * is given others (`secrets: {}` for none). What starts from a snapshot has the secrets that it is given, by new placeholders:
 * old ones that its programs remember are refused where they can be seen, and a program that has read the list of
 * authorities before does not know the new one. A value is in no argument, environment, log, span, receipt or snapshot.
 *
 * @since 0.1.0
 */
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import { reserved } from "./network/Headers.ts"
import { parseSecretHost } from "./network/Rules.ts"

/** The most characters of one value, hosts of one secret, and secrets of one session. */
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
 * Who a secret is for: `example.com` or `example.com:8443` (port 443 when none is written), or `*.example.com`, every host
 * below it. Always TLS; addresses and `host:PORT` have no secrets.
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
 * - `value`: what the header is given, `Redacted.make("…")`; 1 to 16,384 printable ASCII characters.
 * - `hosts`: who it is for, 1 to 32. The session's network policy must grant them too.
 * - `header`: the one header that it is put into, in any case; into all of them when absent.
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
 *   secrets: { GITHUB_TOKEN: { value: Redacted.make(token), hosts: ["api.github.com"], header: "authorization" } }
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
