/**
 * Finds where this host's package tools fetch from: in the environment and the configuration files of pip, uv and npm, and
 * from apt; else each tool's own default. So a company's mirror needs no further setting, and no other host is granted: the
 * index itself says where it keeps its files.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as fs from "node:fs"
import * as http from "node:http"
import * as https from "node:https"
import * as os from "node:os"
import * as path from "node:path"
import * as tls from "node:tls"
import { type DebianMirror, variables } from "../internal/DebianMirror.ts"
import { type Ecosystem, ProxyEnvironment } from "../NetworkPolicy.ts"
import { authorities } from "./Authorities.ts"
import { type Found, inNpm, inPip } from "./Credentials.ts"
import { parseSecretHost } from "../network/Rules.ts"

/** An index: its URL, and a page of it that links to its files. */
export interface Index {
  readonly url: URL
  readonly page: URL
}

export interface Registries {
  readonly indexes: ReadonlyArray<Index>
  /** Environment variables that configure the guest's tools alike; empty where their defaults are right. */
  readonly env: Readonly<Record<string, string>>
  /** For tools that run no foreign code: credentials that the border can put in, and `env` with stand-ins for them. */
  readonly trusted: {
    readonly env: Readonly<Record<string, string>>
    readonly credentials: ReadonlyArray<{
      readonly standIn: string
      readonly host: string
      /** The registry's own path, which ends with a slash; the credential is not for other paths of the host. */
      readonly below: string
      readonly value: string
    }>
  }
  /** `HOST:PORT` of registries whose credentials the border cannot put in. */
  readonly withheld: ReadonlyArray<string>
}

type Env = { readonly [name: string]: string | undefined }

/** The defaults of pip, of npm and, for Debian, of mmdebstrap. */
const defaults = {
  python: "https://pypi.org/simple",
  javascript: "https://registry.npmjs.org",
  debian: "http://deb.debian.org/debian",
  security: "http://security.debian.org/debian-security"
}

const readFile = (file: string): string => {
  try {
    return fs.readFileSync(file, "utf8")
  } catch {
    return ""
  }
}

const first = (...values: ReadonlyArray<string | undefined>): string | undefined =>
  values.find((value) => value !== undefined && value.trim() !== "")

/** `name = value` in some sections of an ini file. The last one counts; indented lines continue a value. */
const ini = (text: string, sections: ReadonlyArray<string>): ReadonlyMap<string, string> => {
  const found = new Map<string, string>()
  let section = ""
  let name: string | undefined
  for (const line of text.split(/\r?\n/)) {
    if (/^\s*([#;]|$)/.test(line)) continue
    const head = /^\[([^\]]*)\]\s*$/.exec(line)?.[1]
    const [, key, value] = /^([^\s=:][^=]*?)\s*=\s*(.*)$/.exec(line) ?? []
    if (head !== undefined) section = head.trim()
    else if (!sections.includes(section)) continue
    else if (/^\s/.test(line) && name !== undefined) found.set(name, `${found.get(name)} ${line.trim()}`.trim())
    else if (key !== undefined && value !== undefined) {
      name = key.trim()
      found.set(name, value.trim().replace(/^(["'])(.*)\1$/, "$2"))
    }
  }
  return found
}

/** The settings of several files; later files override earlier ones. */
const merged = (files: ReadonlyArray<string>, sections: ReadonlyArray<string>): ReadonlyMap<string, string> => {
  const all = new Map<string, string>()
  for (const file of files) for (const [name, value] of ini(readFile(file), sections)) all.set(name, value)
  return all
}

const words = (text: string | undefined): ReadonlyArray<string> => (text ?? "").split(/\s+/).filter((it) => it !== "")

/** pip's files, in the order in which pip reads them. */
const pipFiles = (env: Env, home: string): ReadonlyArray<string> => {
  if (env["PIP_CONFIG_FILE"] === "/dev/null") return []
  const config = first(env["XDG_CONFIG_HOME"]) ?? path.join(home, ".config")
  return [
    "/etc/xdg/pip/pip.conf",
    "/etc/pip.conf",
    path.join(home, ".pip", "pip.conf"),
    path.join(home, "Library", "Application Support", "pip", "pip.conf"),
    path.join(config, "pip", "pip.conf"),
    ...(env["VIRTUAL_ENV"] === undefined ? [] : [path.join(env["VIRTUAL_ENV"], "pip.conf")]),
    ...(env["PIP_CONFIG_FILE"] === undefined ? [] : [env["PIP_CONFIG_FILE"]])
  ]
}

/** The string under a key in a piece of TOML. */
const key = (from: string, name: string): string | undefined =>
  new RegExp(`^\\s*${name}\\s*=\\s*"([^"]+)"`, "m").exec(from)?.[1]

/** uv's indexes: in `[[index]]` tables and under the two older keys. Only values on one line are read. */
const uvIndexes = (text: string): { readonly index: string | undefined; readonly extra: ReadonlyArray<string> } => {
  const top = text.split(/^\s*\[/m, 1)[0] ?? ""
  const tables = text
    .split(/^\s*\[\[index\]\]\s*$/m)
    .slice(1)
    .map((table) => table.split(/^\s*\[/m, 1)[0] ?? "")
  const urls = tables.map((table) => ({ url: key(table, "url"), main: /^\s*default\s*=\s*true/m.test(table) }))
  const extra = /^\s*extra-index-url\s*=\s*\[([^\]]*)\]/m.exec(top)?.[1] ?? ""
  return {
    index: urls.find(({ main }) => main)?.url ?? key(top, "index-url"),
    extra: [
      ...urls.filter(({ main }) => !main).map(({ url }) => url ?? ""),
      ...[...extra.matchAll(/"([^"]+)"/g)].map(([, it]) => it ?? "")
    ].filter((it) => it !== "")
  }
}

/** The configuration of one ecosystem's tools. */
interface Told {
  readonly index: string | undefined
  readonly extra: ReadonlyArray<string>
  /** npm's setting for each scope with its own registry. */
  readonly scoped: ReadonlyMap<string, string>
  /** pip's trusted hosts, which need no TLS or no valid certificate. */
  readonly insecure?: ReadonlyArray<string>
  /** The credentials of this host for a URL. */
  readonly secret: (url: URL) => Found
}

const python = (env: Env, home: string): Told => {
  const configured = merged(pipFiles(env, home), ["global", "install", "download"])
  const config = first(env["XDG_CONFIG_HOME"]) ?? path.join(home, ".config")
  const uvFile = first(env["UV_CONFIG_FILE"]) ?? path.join(config, "uv", "uv.toml")
  const uv = uvIndexes(readFile(uvFile) || readFile("/etc/uv/uv.toml"))
  const pip = first(env["PIP_INDEX_URL"], configured.get("index-url"))
  const index = first(pip, env["UV_DEFAULT_INDEX"], env["UV_INDEX_URL"], uv.index)
  const extra = [
    ...words(first(env["PIP_EXTRA_INDEX_URL"], configured.get("extra-index-url"))),
    ...words(first(env["UV_INDEX"], env["UV_EXTRA_INDEX_URL"])).map((it) => it.replace(/^[\w-]+=/, "")),
    ...uv.extra
  ]
  const netrc = readFile(first(env["NETRC"]) ?? path.join(home, ".netrc"))
  const insecure = words(first(env["PIP_TRUSTED_HOST"], configured.get("trusted-host")))
  return { index, extra: [...new Set(extra)], scoped: new Map<string, string>(), insecure, secret: inPip(netrc) }
}

const javascript = (env: Env, home: string): Told => {
  const setting = (name: string) => first(env[`npm_config_${name}`], env[`NPM_CONFIG_${name.toUpperCase()}`])
  const prefix = first(setting("prefix"), env["PREFIX"]) ?? path.dirname(path.dirname(process.execPath))
  const files = [
    first(setting("globalconfig")) ?? path.join(prefix, "etc", "npmrc"),
    first(setting("userconfig")) ?? path.join(home, ".npmrc"),
    path.join(process.cwd(), ".npmrc")
  ]
  const configured = merged(files, [""])
  const scoped = new Map([...configured].filter(([name]) => /^@[^:]+:registry$/.test(name)))
  for (const [name, url = ""] of Object.entries(env)) {
    const scope = /^npm_config_(@[^:]+:registry)$/i.exec(name)?.[1]
    if (scope !== undefined && url !== "") scoped.set(scope, url)
  }
  return {
    index: first(setting("registry"), configured.get("registry")),
    extra: [...scoped.values()],
    scoped,
    secret: inNpm(configured, env)
  }
}

/** apt's mirror, with defaults where it has none. */
const completed = (mirror: DebianMirror): DebianMirror =>
  mirror.main === undefined
    ? { ...mirror, main: defaults.debian, security: mirror.security ?? defaults.security }
    : mirror

const debian = ({ httpsProxy, main, proxy, security }: DebianMirror): Told => ({
  index: main,
  extra: [security, proxy, httpsProxy].filter((it) => it !== undefined),
  scoped: new Map<string, string>(),
  secret: inPip(readFile("/etc/apt/auth.conf"))
})

/** Names that mean this host here, and the guest itself inside a guest. */
const loopback = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/
const loopbackHost = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])(?=:|$)/

/** A registry's own path. A Python index has its files beside its pages (`…/simple/`), below the same parent. */
const pathOf = (ecosystem: Ecosystem | "debian", { pathname }: URL): string => {
  const own = pathname.replace(/\/*$/, "/")
  return ecosystem === "python" ? own.replace(/[^/]*\/$/, "") || "/" : own
}

/** A URL for a guest: without credentials, and with the guest's name for this host. */
const forGuest = (url: URL, standIn: string | undefined = undefined): string => {
  const copy = new URL(url)
  if (standIn === undefined) copy.username = ""
  copy.password = standIn ?? ""
  if (loopback.test(copy.hostname)) copy.hostname = "host"
  return copy.href
}

const parse = (text: string): URL | undefined => {
  try {
    const url = new URL(text)
    return url.protocol === "https:" || url.protocol === "http:" ? url : undefined
  } catch {
    return undefined
  }
}

const isUrl = (url: URL | undefined): url is URL => url !== undefined

const below = (url: URL, name: string): URL => new URL(name, url.href.endsWith("/") ? url : `${url.href}/`)

const printable = /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/

/** The registries that this host's tools are configured for, and `mirror`. */
export const configured = (
  ecosystems: ReadonlyArray<Ecosystem>,
  env: Env = process.env,
  home: string = os.homedir(),
  mirror: DebianMirror | undefined = undefined
): Registries => {
  const apt = mirror === undefined ? undefined : completed(mirror)
  const tools = [
    ...(ecosystems.includes("python") ? [["python", python(env, home)] as const] : []),
    ...(ecosystems.includes("javascript") ? [["javascript", javascript(env, home)] as const] : []),
    ...(apt === undefined ? [] : [["debian", debian(apt)] as const])
  ]
  const indexes: Array<Index> = []
  const told: Record<string, string> = {}
  const trusted: Record<string, string> = {}
  const credentials: Array<Registries["trusted"]["credentials"][number]> = []
  const withheld = new Set<string>()
  for (const [ecosystem, { extra, index, insecure = [], scoped, secret }] of tools) {
    const main = parse(index ?? "")
    const others = extra.map(parse).filter(isUrl)
    // A page that every index of this kind has, and that links to files.
    const page = { python: "pip/", javascript: "npm/latest", debian: "" }[ecosystem]
    const standIns = new Map<string, string>()
    for (const url of [main ?? new URL(defaults[ecosystem]), ...others]) {
      indexes.push({ url, page: below(url, page) })
      const found = secret(url)
      if (found === undefined) continue
      const host = hostPort(url)
      // The border needs TLS, a name, and a value that is valid in a header.
      if (
        found === "Withheld" ||
        url.protocol !== "https:" ||
        typeof parseSecretHost(host) === "string" ||
        !printable.test(found.value)
      ) {
        withheld.add(host)
        continue
      }
      const standIn = `registry-${credentials.length}-stand-in`
      standIns.set(url.href, standIn)
      credentials.push({ standIn, host, below: pathOf(ecosystem, url), value: found.value })
      Object.assign(trusted, found.settings(standIn))
    }
    if (ecosystem === "python") {
      const tell = (to: Record<string, string>, text: (url: URL) => string): void => {
        if (main !== undefined) Object.assign(to, { PIP_INDEX_URL: text(main), UV_DEFAULT_INDEX: text(main) })
        const list = others.map(text).join(" ")
        if (list !== "") Object.assign(to, { PIP_EXTRA_INDEX_URL: list, UV_INDEX: list })
      }
      tell(told, (url) => forGuest(url))
      // pip needs no TLS to localhost; a guest has another name for this host.
      const near = [main, ...others].some((url) => url?.protocol === "http:" && loopback.test(url.hostname))
      const plain = new Set([...(near ? ["host"] : []), ...insecure.map((it) => it.replace(loopbackHost, "host"))])
      if (plain.size > 0) told["PIP_TRUSTED_HOST"] = [...plain].join(" ")
      tell(trusted, (url) => forGuest(url, standIns.get(url.href)))
    } else if (ecosystem === "debian") {
      for (const [name, text] of Object.entries(apt === undefined ? {} : variables(apt))) {
        const url = parse(text)
        if (url !== undefined) trusted[name] = forGuest(url, standIns.get(url.href))
      }
    } else {
      if (main !== undefined) told["NPM_CONFIG_REGISTRY"] = forGuest(main)
      for (const [name, text] of scoped) {
        const url = parse(text)
        if (url !== undefined) told[`npm_config_${name}`] = forGuest(url)
      }
    }
  }
  return { indexes, env: told, trusted: { env: { ...told, ...trusted }, credentials }, withheld: [...withheld] }
}

/** A project's page (PEP 691). */
const decodeProject = Schema.decodeUnknownOption(
  Schema.fromJsonString(Schema.Struct({ files: Schema.Array(Schema.Struct({ url: Schema.String })) }))
)
/** A version of a package. */
const decodeVersion = Schema.decodeUnknownOption(
  Schema.fromJsonString(Schema.Struct({ dist: Schema.Struct({ tarball: Schema.String }) }))
)

const filesOf = (body: string): ReadonlyArray<string> => {
  const project = Option.getOrUndefined(decodeProject(body))
  const version = Option.getOrUndefined(decodeVersion(body))
  return [...(project?.files ?? []).map(({ url }) => url), ...(version === undefined ? [] : [version.dist.tarball])]
}

/** The links to files on a page of an index. */
const links = (index: Index, body: string, type: string): ReadonlyArray<URL> => {
  const texts = type.includes("json")
    ? filesOf(body)
    : [...body.matchAll(/<a[^>]*\shref\s*=\s*["']([^"'#]+)/gi)].map(([, url]) => url ?? "")
  return texts.flatMap((text) => {
    try {
      return [new URL(text, index.page)]
    } catch {
      return []
    }
  })
}

/** The most bytes of a page that are read, and how long that may take, in ms. */
const maxPage = 4 * 1024 * 1024
const patienceMs = 10_000

const accept = "application/vnd.pypi.simple.v1+json, application/json;q=0.9, text/html;q=0.5"

const fetchPage = (index: Index, proxyEnv: NodeJS.ProcessEnv | undefined): Effect.Effect<ReadonlyArray<URL>> =>
  Effect.callback<ReadonlyArray<URL>>((resume) => {
    const { page } = index
    // Connections that end with their one request. Node reads the proxy's variables by itself.
    const agents = {
      http: () => new http.Agent(proxyEnv === undefined ? {} : { proxyEnv }),
      https: () => new https.Agent(proxyEnv === undefined ? {} : { proxyEnv })
    }
    const options = { headers: { accept, "user-agent": "exec-sandbox" }, timeout: patienceMs }
    const done = (urls: ReadonlyArray<URL>): void => resume(Effect.succeed(urls))
    const heard = (response: http.IncomingMessage): void => {
      const parts: Array<Buffer> = []
      let size = 0
      const finish = (): void =>
        done(links(index, Buffer.concat(parts).toString("utf8"), response.headers["content-type"] ?? ""))
      response.on("data", (bytes: Buffer) => {
        size += bytes.length
        if (size <= maxPage) parts.push(bytes)
        else response.destroy()
      })
      response.on("close", finish)
      response.on("error", finish)
    }
    const request =
      page.protocol === "https:"
        ? https.get(page, { ...options, ca: [...tls.rootCertificates, authorities()], agent: agents.https() }, heard)
        : http.get(page, { ...options, agent: agents.http() }, heard)
    request.on("timeout", () => request.destroy())
    request.on("error", () => done([]))
    return Effect.sync(() => request.destroy())
  }).pipe(Effect.timeoutOrElse({ duration: patienceMs, orElse: () => Effect.succeed([]) }))

/** The most hosts of files that are granted for one index. */
const maxHosts = 16

const known = new Map<string, ReadonlyArray<string>>()

/** `HOST:PORT` of all hosts of the indexes' files. Fetched once for each index, and again after a failure. */
export const fileHosts = ({ indexes }: Registries): Effect.Effect<ReadonlyArray<string>> =>
  Effect.forEach(
    indexes,
    (index) =>
      Effect.gen(function* () {
        const before = known.get(index.page.href)
        if (before !== undefined) return before
        const urls = yield* fetchPage(index, yield* ProxyEnvironment)
        const hosts = [...new Set(urls.map(hostPort))].slice(0, maxHosts)
        if (hosts.length > 0) known.set(index.page.href, hosts)
        return hosts
      }),
    { concurrency: 4 }
  ).pipe(Effect.map((hosts) => Array.from(new Set(hosts.flat()))))

/** A URL's host and port, with the guest's name for this host. */
export const hostPort = (url: URL): string => {
  const port = url.port !== "" ? url.port : url.protocol === "http:" ? "80" : "443"
  return `${loopback.test(url.hostname) ? "host" : url.hostname}:${port}`
}

/** How registries are found. Tests replace it. */
export const Finder = Context.Reference<
  (ecosystems: ReadonlyArray<Ecosystem>, mirror?: DebianMirror | undefined) => Registries
>("exec-sandbox/egress/Registries/Finder", {
  defaultValue: () => (ecosystems, mirror) => configured(ecosystems, process.env, os.homedir(), mirror)
})
