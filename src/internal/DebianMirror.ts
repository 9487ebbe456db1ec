/**
 * Where Debian's packages come from: `EXEC_SANDBOX_DEBIAN_MIRROR`, else what this host's apt uses. Both for images and for
 * packages that are added to them.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import { run } from "./Command.ts"

/**
 * URLs of the archive, of its security updates, and of the proxies that this host's apt goes through for `http` and `https`.
 * `undefined`: nobody said so.
 */
export interface DebianMirror {
  readonly main: string | undefined
  readonly security: string | undefined
  readonly proxy: string | undefined
  readonly httpsProxy: string | undefined
}

type Env = { readonly [name: string]: string | undefined }

/** The first URL of Debian's own index targets that ends like this; apt does not know the origin of what it never fetched. */
const targetOf = (targets: string, ending: RegExp): string | undefined =>
  targets
    .split("\n")
    .map((line) => line.split(" "))
    .find(([url = "", origin = ""]) => ending.test(url) && /^(Debian$|\$)/.test(origin))?.[0]

const said = (text: string | undefined): string | undefined => (text?.trim() ? text.trim() : undefined)

/** `targets` are lines of `URL ORIGIN`, as apt gives them. Nothing of apt's counts where the environment names the archive. */
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

/** A host without apt says nothing. */
const ask = (program: string, ...args: ReadonlyArray<string>): Effect.Effect<string> =>
  Effect.orElseSucceed(run(program, args), () => "")

/** What this host says now. Tests say something else. */
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

/** The same as variables of the environment, by which `images/build.sh` and the guest's installer are told. */
export const variables = ({ httpsProxy, main, proxy, security }: DebianMirror): Readonly<Record<string, string>> =>
  Object.fromEntries(
    [
      ["EXEC_SANDBOX_DEBIAN_MIRROR", main],
      ["EXEC_SANDBOX_DEBIAN_SECURITY_MIRROR", security],
      ["EXEC_SANDBOX_DEBIAN_PROXY", proxy],
      ["EXEC_SANDBOX_DEBIAN_HTTPS_PROXY", httpsProxy]
    ].filter((it): it is [string, string] => it[1] !== undefined)
  )
