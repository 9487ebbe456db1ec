/**
 * The mirror of Debian's packages: `EXEC_SANDBOX_DEBIAN_MIRROR`, else the one that this host's apt uses. Images and packages
 * that are added to them come from it.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import { run } from "./Command.ts"

/**
 * URLs of the archive, of its security updates, and of apt's proxies for `http` and `https`. `undefined`: not configured.
 */
export interface DebianMirror {
  readonly main: string | undefined
  readonly security: string | undefined
  readonly proxy: string | undefined
  readonly httpsProxy: string | undefined
}

type Env = { readonly [name: string]: string | undefined }

/** The first URL with this ending among Debian's index targets. apt does not know the origin of an index it never fetched. */
const targetOf = (targets: string, ending: RegExp): string | undefined =>
  targets
    .split("\n")
    .map((line) => line.split(" "))
    .find(([url = "", origin = ""]) => ending.test(url) && /^(Debian$|\$)/.test(origin))?.[0]

const said = (text: string | undefined): string | undefined => (text?.trim() ? text.trim() : undefined)

/** `targets` are lines of `URL ORIGIN`, as apt gives them. When the environment has the archive, apt's settings are not used. */
export const fromApt = (
  env: Env,
  targets: string,
  proxies: { readonly proxy: string; readonly httpsProxy: string }
): DebianMirror => {
  const main = said(env["EXEC_SANDBOX_DEBIAN_MIRROR"])
  return {
    main: main ?? targetOf(targets, /\/debian\/?$/),
    security:
      said(env["EXEC_SANDBOX_DEBIAN_SECURITY_MIRROR"]) ??
      (main === undefined ? targetOf(targets, /\/debian-security\/?$/) : undefined),
    proxy: said(proxies.proxy),
    httpsProxy: said(proxies.httpsProxy)
  }
}

/** The output of a program; empty on a host without apt. */
const ask = (program: string, ...args: ReadonlyArray<string>): Effect.Effect<string> =>
  Effect.orElseSucceed(run(program, args), () => "")

/** This host's current configuration. Tests replace it. */
export const Mirror = Context.Reference<Effect.Effect<DebianMirror>>("exec-sandbox/DebianMirror", {
  defaultValue: () =>
    Effect.map(
      Effect.all(
        [
          ask("apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN)", "Created-By: Packages"),
          ask("apt-config", "dump", "--format", "%v", "Acquire::http::Proxy"),
          ask("apt-config", "dump", "--format", "%v", "Acquire::https::Proxy")
        ],
        { concurrency: 3 }
      ),
      ([targets, proxy, httpsProxy]) => fromApt(process.env, targets, { proxy, httpsProxy })
    )
})

/** The mirror as environment variables, for `images/build.sh` and the guest's installer. */
export const variables = ({ httpsProxy, main, proxy, security }: DebianMirror): Readonly<Record<string, string>> =>
  Object.fromEntries(
    [
      ["EXEC_SANDBOX_DEBIAN_MIRROR", main],
      ["EXEC_SANDBOX_DEBIAN_SECURITY_MIRROR", security],
      ["EXEC_SANDBOX_DEBIAN_PROXY", proxy],
      ["EXEC_SANDBOX_DEBIAN_HTTPS_PROXY", httpsProxy]
    ].filter((it): it is [string, string] => it[1] !== undefined)
  )
