/**
 * Keeps one Node alive between executions, for JavaScript and TypeScript.
 *
 * The agent starts `node --expose-internals javascript.mjs DIR` once and then writes `exec NNN SLOT` into the FIFO DIR/in for every
 * execution, with settings and code below that line where they are short; DIR/SLOT holds the FIFOs for its output, and files for
 * what is long. We answer through DIR/out (`ready`, `started NNN reseeded`, `done NNN EVIDENCE`; long evidence goes to
 * DIR/SLOT/evidence). The agent's package `interpreter` is the other end of this protocol.
 *
 * How code runs: V8's REPL mode (re-declaration, top-level await, completion value) exists only behind the inspector, so an execution
 * is one `Runtime.evaluate` on a same-thread inspector connection. native.c dispatches it directly from the event loop, so no frame of
 * ours is below the user's, and it can stop what runs (SIGINT, process.exit).
 *
 * User code shares the process and may patch anything in it: every function we use later is bound here first (`primordials` are Node's
 * own copies). What calls user code indirectly (inspecting a value) is part of the execution.
 *
 * The code of an execution sees itself as the file `eval.js` in the directory where it runs: `__filename`, `import.meta`, `require.main`
 * and `process.argv[1]` agree on that. Listeners of `exit` run once, when code calls process.exit, and are then removed. They do not run
 * at any other end, because the process continues with what was left running. `beforeExit` is emitted when an execution waits for
 * what nothing can settle.
 *
 * It is one file: modules of ours would be in Node's caches, where user code finds them.
 *
 * `--expose-internals` gives access to what has no public name: the inspector connection, acorn (for module syntax), what makes an
 * `import.meta`, the list of timers, the start of children, and the switch that lets inspector-evaluated code use `import()`. V8's string
 * hash seed is the same in all clones of a template, and cannot be changed in a running process; it only protects a process from
 * collisions in its own input.
 */
import { AsyncLocalStorage } from "node:async_hooks"
import * as fs from "node:fs"
import { createRequire, Module, SourceMap, stripTypeScriptTypes, syncBuiltinESMExports } from "node:module"
import { join } from "node:path"
import process from "node:process"
import { setImmediate } from "node:timers"
import { pathToFileURL } from "node:url"
import { inspect, types } from "node:util"
import vm from "node:vm"

const emitWarning = process.emitWarning
process.emitWarning = () => {} // until we are ready: what we use is experimental, which users need not know

const load = createRequire(import.meta.url)
const { internalBinding, primordials } = load("internal/test/binding")
const acorn = load("internal/deps/acorn/acorn/dist/acorn")
const { simple: walk } = load("internal/deps/acorn/acorn-walk/dist/walk")
const { initializeImportMeta } = load("internal/modules/esm/initialize_import_meta")
const { getOrInitializeCascadedLoader } = load("internal/modules/esm/loader")
const { timerListQueue, timerListMap, immediateQueue, immediateInfoFields, kRefed } = load("internal/timers")
const timers = internalBinding("timers")
const native = { exports: {} }
process.dlopen(native, new URL("native.node", import.meta.url).pathname)
const { listen, run, redirect, letGo, write, send, dup, kill, terminate, reseed: reseedOpenSSL } = native.exports

const {
  ArrayIsArray,
  ArrayPrototypePush,
  BigInt: toBigInt,
  Error: NativeError,
  RangeError: NativeRangeError,
  JSONParse,
  JSONStringify,
  NumberIsInteger,
  ObjectDefineProperty,
  ObjectGetOwnPropertyDescriptor,
  ObjectGetPrototypeOf,
  ObjectIs,
  ObjectKeys,
  ObjectPrototype,
  PromisePrototypeThen,
  ReflectApply,
  RegExpPrototypeExec,
  RegExpPrototypeSymbolReplace,
  SafeMap,
  SafeSet,
  SafeWeakSet,
  StringPrototypeIncludes,
  StringPrototypeIndexOf,
  StringPrototypeMatch,
  StringPrototypePadStart,
  StringPrototypeSlice,
  StringPrototypeSplit,
  StringPrototypeStartsWith
} = primordials
const { readFileSync, writeFileSync, closeSync, ReadStream, mkdirSync, symlinkSync, rmSync } = fs
const { isPromise, isProxy, isNativeError } = types
const {
  env: environment,
  cwd: currentDirectory,
  chdir,
  getActiveResourcesInfo,
  emit: tellAll,
  removeAllListeners
} = process
const bytesOf = Buffer.from
const { console } = globalThis
unwrapConsole()
const home = process.argv[2]

/** Limits of parts of the evidence, in UTF-16 units; together they fit one frame of 256 KiB even if each unit becomes six bytes. */
const limits = { repr: 16384, json: 49152, message: 8192, traceback: 16384, path: 4096 }

const clip = (text, limit) => (text.length > limit ? StringPrototypeSlice(text, 0, limit - 1) + "…" : text)

/** Visits own enumerable entries, without the array iterator, which user code may have broken. */
function each(object, visit) {
  const keys = ObjectKeys(object)
  for (let i = 0; i < keys.length; i++) visit(keys[i], object[keys[i]])
}

/** Each of the console's functions also reports to the inspector, which has no reader: that is most of the time of a short execution. */
function unwrapConsole() {
  const { prototype } = console.Console
  for (const name of ObjectKeys(console)) {
    const method = prototype[name]
    if (typeof method !== "function") continue
    const value = method.bind(console)
    ObjectDefineProperty(value, "name", { __proto__: null, value: name, configurable: true })
    console[name] = value
  }
}

// --- State ---------------------------------------------------------------------------------------------------------------------------

/** The running execution, or null between executions. */
let current = null
/** The execution that started last: descriptors 0, 1 and 2 are its files. */
let owner = null
/** Has the execution that an asynchronous callback comes from. */
const storage = new AsyncLocalStorage()

/** The source texts of recent executions, by name, for error messages: a function may fail long after it was defined. */
const texts = new SafeMap()

function remember(name, code) {
  const text = { __proto__: null, code, sourceMap: null }
  texts.set(name, text)
  if (texts.size > 200) for (const oldest of texts.keys()) return (texts.delete(oldest), text)
  return text
}

class Execution {
  number
  directory
  name
  settings
  request = 0 // id of the inspector's message
  place = "" // where an exception without a stack comes from, according to V8
  saved = null // what its env and cwd replaced
  exitCode = null
  settled = false // the code reached its end, although its value may be a pending promise
  idle = false // listeners of `beforeExit` have been called
  leaving = false // listeners of `exit` have been called
  exiting = false // process.exit was called
  over = false // the outcome is known
  concluding = false // it is about to finish
  exception = null
  commands = []
  result = null
  pipes = null // copies of its stdout and stderr, if it may still print during the next one
}

// --- Inspector -----------------------------------------------------------------------------------------------------------------------

let lastRequest = 0
let answer = null
const connection = new (internalBinding("inspector").Connection)((text) => {
  const message = JSONParse(text)
  if (message.id === current?.request) evaluated(current, message)
  else answer = message
})

/** Runs a command that is answered at once. */
function command(method, params) {
  const id = ++lastRequest
  answer = null
  connection.dispatch(JSONStringify({ id, method, params }))
  return answer?.id === id ? answer.result : undefined
}

let received
const receive = (value) => {
  received = value
}
const receiver = (() => {
  globalThis.receive = receive
  const { result } = command("Runtime.evaluate", { expression: "receive" })
  delete globalThis.receive
  return result.objectId
})()

/** The value that the inspector refers to. */
function valueOf(remote) {
  if (remote.objectId !== undefined) {
    command("Runtime.callFunctionOn", {
      functionDeclaration: "function (receive, value) { receive(value) }",
      objectId: receiver,
      arguments: [{ objectId: receiver }, { objectId: remote.objectId }],
      silent: true
    })
    command("Runtime.releaseObject", { objectId: remote.objectId })
    const value = received
    received = undefined
    return value
  }
  const text = remote.unserializableValue
  if (text === undefined) return remote.type === "undefined" ? undefined : remote.value
  return remote.type === "bigint" ? toBigInt(StringPrototypeSlice(text, 0, -1)) : +text
}

// --- From source text to what V8 evaluates ---------------------------------------------------------------------------------------------

/** Another instance of one of Node's own modules, with its own state. */
function another(id, require) {
  const module = { exports: {} }
  internalBinding("builtins").compileFunction(id)(
    module.exports,
    require,
    module,
    process,
    internalBinding,
    primordials
  )
  return module.exports
}

let strip = stripTypeScriptTypes

/** A compiler that overflows its stack, for code that is nested too deeply, stays broken: it is replaced. */
function stripWith(code, options) {
  try {
    return strip(code, options)
  } catch (error) {
    if (error.code !== "ERR_INTERNAL_ASSERTION") throw error
    const amaro = another("internal/deps/amaro/dist/index", load)
    const ours = (id) => (id === "internal/deps/amaro/dist/index" ? amaro : load(id))
    strip = another("internal/modules/typescript", ours).stripTypeScriptTypes
    const problem = StringPrototypeSplit(`${error.message}`, "\n")[0]
    throw new NativeRangeError(`the TypeScript is nested too deeply, or too much, for its compiler: ${problem}`)
  }
}

/** TypeScript: blanking types keeps every position; what must be rewritten (enums, namespaces) gets a source map instead. */
function stripTypes(text, sourceUrl) {
  try {
    return stripWith(text.code, { sourceUrl })
  } catch (error) {
    if (error.code !== "ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX") throw error
  }
  const output = stripWith(text.code, { mode: "transform", sourceMap: true, sourceUrl })
  const map = RegExpPrototypeExec(/\n\/\/# sourceMappingURL=data:application\/json;base64,([\w+/=]+)/, output)?.[1]
  if (map !== undefined) text.sourceMap = new SourceMap(JSONParse(`${bytesOf(map, "base64")}`))
  return output
}

function withoutOurFrames(error) {
  error.stack = RegExpPrototypeSymbolReplace(/\n {4}at [^]*$/, error.stack, "")
  return error
}

/** Leaves semantic errors (duplicate names, unknown exports) to V8: an earlier execution may have declared what is used here. */
class Parser extends acorn.Parser {
  raiseRecoverable() {}
}

const moduleSyntax = /(?:^|[;{}\n]|\*\/)[ \t]*(?:import\s*[\w$"'{*]|export[\s{*])|import\s*\.\s*meta/

/** Replaces static imports and exports and `import.meta`, which a script cannot have, by equivalent code. Line numbers do not change. */
function rewriteModuleSyntax(code) {
  if (RegExpPrototypeExec(moduleSyntax, code) === null) return code
  let program
  try {
    program = Parser.parse(code, {
      ecmaVersion: "latest",
      sourceType: "module",
      allowAwaitOutsideFunction: true,
      allowHashBang: true,
      allowReturnOutsideFunction: true
    })
  } catch {
    return code // V8 reports the error
  }
  walk(program, {
    MetaProperty(node) {
      if (node.meta.name !== "import") return
      const rest = code.slice(node.start + importMeta.length, node.end).replace(/[^\n]/g, " ")
      code = code.slice(0, node.start) + giveImportMeta() + rest + code.slice(node.end)
    }
  })
  let output = ""
  let end = 0
  for (const node of program.body) {
    const text = rewriteDeclaration(code, node)
    if (text === null) continue
    const lines = countLines(code, node.start, node.end) - countLines(text, 0, text.length)
    output += code.slice(end, node.start) + text + "\n".repeat(Math.max(0, lines))
    end = node.end
  }
  return output + code.slice(end)
}

const countLines = (text, from, to) => text.slice(from, to).split("\n").length - 1

const propertyName = (code, node) => code.slice(node.start, node.end)

function rewriteDeclaration(code, node) {
  const attributes = node.attributes?.length
    ? `, { with: { ${node.attributes.map((a) => code.slice(a.start, a.end)).join(", ")} } }`
    : ""
  const from = node.source && `await import(${node.source.raw}${attributes})`
  switch (node.type) {
    case "ImportDeclaration": {
      let everything = null
      const names = []
      for (const specifier of node.specifiers) {
        const local = specifier.local.name
        if (specifier.type === "ImportNamespaceSpecifier") everything = local
        else if (specifier.type === "ImportDefaultSpecifier") names.push(`default: ${local}`)
        else names.push(`${propertyName(code, specifier.imported)}: ${local}`)
      }
      const pattern = `{ ${names.join(", ")} }`
      if (everything === null) return node.specifiers.length ? `const ${pattern} = ${from};` : `${from};`
      return `const ${everything} = ${from}${names.length ? `, ${pattern} = ${everything}` : ""};`
    }
    case "ExportAllDeclaration":
      return `${from};`
    case "ExportNamedDeclaration":
      if (node.declaration) return code.slice(node.declaration.start, node.end).padStart(node.end - node.start)
      return from ? `${from};` : ";"
    case "ExportDefaultDeclaration": {
      const value = code.slice(node.declaration.start, node.declaration.end)
      return node.declaration.id ? value.padStart(node.declaration.end - node.start) : `(${value});`
    }
    default:
      return null
  }
}

// --- Evidence ------------------------------------------------------------------------------------------------------------------------

class NotPlain extends NativeError {}

/** A copy of plain data (what JSON represents exactly), or NotPlain; it reads no getter and calls no user code. */
function plain(value, room, depth = 0) {
  if (ObjectIs(value, -0)) throw new NotPlain()
  if (value === null || typeof value === "boolean") room.left -= 5
  else if (typeof value === "string") room.left -= value.length + 3
  else if (typeof value === "number" && value - value === 0) room.left -= 8
  else if (typeof value !== "object" || isProxy(value) || depth > 50) throw new NotPlain()
  else return plainObject(value, room, depth)
  if (room.left < 0) throw new NotPlain()
  return value
}

function plainObject(value, room, depth) {
  const prototype = ObjectGetPrototypeOf(value)
  const list = ArrayIsArray(value)
  if (!list && prototype !== null && prototype !== ObjectPrototype) throw new NotPlain()
  const keys = ObjectKeys(value)
  if ((list && keys.length !== value.length) || keys.length > room.left) throw new NotPlain()
  const copy = list ? [] : { __proto__: null }
  for (let i = 0; i < keys.length; i++) {
    const key = keys[i]
    const property = ObjectGetOwnPropertyDescriptor(value, key)
    if (property.get !== undefined || property.set !== undefined) throw new NotPlain()
    room.left -= key.length + 4
    const item = plain(property.value, room, depth + 1)
    if (list) ArrayPrototypePush(copy, item)
    else copy[key] = item
  }
  room.left -= 2
  return copy
}

function inspected(value) {
  try {
    return inspect(value)
  } catch {
    return "[the value cannot be inspected]"
  }
}

function describeResult(value) {
  if (value === undefined) return null
  const long = typeof value === "string" && value.length > limits.repr
  const repr = clip(inspected(long ? StringPrototypeSlice(value, 0, limits.repr) : value), limits.repr)
  try {
    return { repr, json: plain(value, { left: limits.json / 2 }) }
  } catch {
    return { repr }
  }
}

/** Reads a property that may be a getter, a proxy's, or of any type. */
function read(value, key) {
  try {
    const text = value[key]
    return typeof text === "string" ? text : null
  } catch {
    return null
  }
}

const missingModule = /^Cannot find (?:module|package) '([^']+)'/
const bareName = /^(@[^/]+\/[^/]+|[^./@][^/]*)/

/** `module` of an error about a missing module: the package's name, or the path as given. */
function missing(code, message) {
  if (code !== "ERR_MODULE_NOT_FOUND" && code !== "MODULE_NOT_FOUND" && code !== "ERR_UNKNOWN_BUILTIN_MODULE")
    return null
  const name = RegExpPrototypeExec(missingModule, message)?.[1] ?? RegExpPrototypeExec(/: (\S+)$/, message)?.[1]
  return name === undefined ? null : clip(RegExpPrototypeExec(bareName, name)?.[1] ?? name, limits.path)
}

function typeName(error) {
  if (typeof error !== "object" || error === null) return typeof error
  const name = isNativeError(error) ? read(error, "name") : null
  if (name !== null && name !== "Error") return name
  try {
    return read(error.constructor, "name") ?? "Object"
  } catch {
    return "Object"
  }
}

const spawnErrors = { __proto__: null, ENOENT: "not-found", EACCES: "permission", ENOEXEC: "not-executable" }

function describeException(execution, error) {
  const object = typeof error === "object" && error !== null
  const code = object ? read(error, "code") : null
  const message = object ? (read(error, "message") ?? "") : typeof error === "string" ? error : inspected(error)
  const syscall = (object ? read(error, "syscall") : null) ?? ""
  const path = object ? read(error, syscall === "chdir" ? "dest" : "path") : null
  const errno = code !== null && RegExpPrototypeExec(/^E(AI_)?[A-Z0-9]+$/, code) !== null ? code : null
  if (errno in spawnErrors && path !== null && StringPrototypeStartsWith(syscall, "spawn")) {
    const name = clip(path, limits.path)
    execution.commands = [{ name, kind: spawnErrors[errno], path: StringPrototypeIncludes(name, "/") ? name : null }]
  }
  const causeErrno = errno === null && object ? causeOf(error) : undefined
  return {
    type: clip(typeName(error), 1024),
    message: clip(message, limits.message),
    traceback: clip(mapped((object ? read(error, "stack") : null) ?? inspected(error)), limits.traceback),
    errno,
    path: path === null ? null : clip(path, limits.path),
    module: missing(code, message),
    code,
    ...(causeErrno !== undefined && { causeErrno }),
    ...(object && childStatus(error))
  }
}

/** The status of the program that failed, from an error of node:child_process: `status` of a synchronous one, else `code`. */
function childStatus(error) {
  try {
    const { code, cmd, pid, status } = error
    if (typeof pid === "number" && NumberIsInteger(status)) return { childStatus: status }
    if (typeof cmd === "string" && NumberIsInteger(code)) return { childStatus: code }
  } catch {}
  return undefined
}

/** The errno of an error's cause, or of the first error in an AggregateError. */
function causeOf(error) {
  for (let depth = 0; depth < 16; depth++) {
    let inner
    try {
      inner = error.cause ?? error.errors?.[0]
    } catch {
      return undefined
    }
    if (typeof inner !== "object" || inner === null) return undefined
    error = inner
    const code = read(error, "code")
    if (code !== null && RegExpPrototypeExec(/^E(AI_)?[A-Z0-9]+$/, code) !== null) return clip(code, 64)
  }
}

const position = /(<exec-\d+>):(\d+):(\d+)/
const positions = /(<exec-\d+>):(\d+):(\d+)/g

/** Maps positions in transformed TypeScript back to the user's text. */
function mapped(text) {
  return RegExpPrototypeSymbolReplace(positions, text, (all, name, line, column) => {
    const entry = texts.get(name)?.sourceMap?.findEntry(line - 1, column - 1)
    return entry?.originalLine === undefined ? all : `${name}:${entry.originalLine + 1}:${entry.originalColumn + 1}`
  })
}

/** The source line that Node prints above an uncaught exception. */
function sourceLine(execution, stack) {
  const place = RegExpPrototypeExec(position, stack) ?? RegExpPrototypeExec(position, mapped(execution.place))
  const text = texts.get(place?.[1])
  if (text === undefined || place[2] < 1) return "" // code that is nested too deeply to be compiled has no position
  const { 1: name, 2: line, 3: column } = place
  const lines = StringPrototypeSplit(text.code, "\n")
  if (line > lines.length) return `${name}:${lines.length}\n${clip(lines[lines.length - 1], 1000)}\n\n` // the end of the text
  return `${name}:${line}\n${clip(lines[line - 1], 1000)}\n${StringPrototypePadStart("^", +column)}\n\n`
}

/** What Node prints when an exception ends it: the line, the error, its version. */
function printException(execution, error) {
  const object = typeof error === "object" && error !== null
  const stack = mapped((object ? read(error, "stack") : null) ?? "")
  let text = typeof error === "string" ? error : mapped(inspected(error))
  // Inspecting puts an error without frames in brackets; Node prints it without them.
  if (stack !== "" && StringPrototypeStartsWith(text, `[${stack}]`))
    text = stack + StringPrototypeSlice(text, stack.length + 2)
  const header = StringPrototypeStartsWith(stack, "<exec-") ? "" : sourceLine(execution, stack)
  printFor(execution, 2, `${header}${text}\n\nNode.js ${process.version}\n`)
}

// --- Standard streams ----------------------------------------------------------------------------------------------------------------

/** Copies of output pipes for executions that may still print; closed when these are collected or nothing is left that prints. */
const kept = new SafeSet()
const collected = new FinalizationRegistry((pipes) => release(pipes))

function release(pipes) {
  if (!kept.delete(pipes)) return
  for (let i = 0; i < 2; i++) {
    try {
      closeSync(pipes[i])
    } catch {}
  }
}

/** At an execution's end: closes its pipes, so that the agent sees whether another process has them open, or keeps copies. */
function leavePipes(execution) {
  if (getActiveResourcesInfo().length === 0 && timerListQueue.peek() === undefined) {
    for (const pipes of kept) release(pipes)
    letGo()
    return
  }
  execution.pipes = [dup(1), dup(2)]
  kept.add(execution.pipes)
  collected.register(execution, execution.pipes)
  if (kept.size > 64) for (const pipes of kept) return release(pipes)
}

/** Where the running code prints: an older execution's timer writes to that execution's pipe, or to nothing. */
function outputOf(execution, fd) {
  if (execution === undefined || execution === owner) return fd
  return execution.pipes !== null && kept.has(execution.pipes) ? execution.pipes[fd - 1] : -1
}

function printFor(execution, fd, text) {
  write(outputOf(execution, fd), bytesOf(text))
}

/** Gives children of an older execution's callback that inherit output that execution's output. `at`: the argument with stdio. */
function sendChildrenHome(binding, at) {
  const { spawn } = binding
  binding.spawn = function (...given) {
    const execution = storage.getStore()
    if (execution !== undefined && execution !== owner) {
      const it = given[at]
      given[at] = ArrayIsArray(it) ? homeward(execution, it) : { ...it, stdio: homeward(execution, it.stdio) }
    }
    return ReflectApply(spawn, this, given)
  }
}

function homeward(execution, stdio) {
  const copy = []
  for (let i = 0; i < stdio.length; i++) {
    let entry = stdio[i]
    if ((entry.type === "inherit" || entry.type === "fd") && (entry.fd === 1 || entry.fd === 2)) {
      const fd = outputOf(execution, entry.fd)
      entry = fd < 0 ? { type: "ignore" } : { type: "fd", fd }
    }
    ArrayPrototypePush(copy, entry)
  }
  return copy
}

sendChildrenHome(internalBinding("process_wrap").Process.prototype, 4)
sendChildrenHome(internalBinding("spawn_sync"), 0)

/** Makes a stream of descriptor 1 or 2 write to the right execution, synchronously as Node does for files. */
function prepareOutput(stream, fd) {
  ObjectDefineProperty(stream, "_write", {
    __proto__: null,
    configurable: true,
    writable: true,
    value(chunk, encoding, callback) {
      const to = outputOf(storage.getStore(), fd)
      if (to >= 0) write(to, chunk)
      callback()
    }
  })
  return stream
}

const streams = { stdout: prepareOutput(process.stdout, 1), stderr: prepareOutput(process.stderr, 2), stdin: undefined }
const { constructor: OutputStream, _destroy: keepOpen } = streams.stdout

function freshOutput(name, fd) {
  const former = streams[name]
  if (!former.writableEnded && !former.destroyed) return
  const stream = new OutputStream(fd, { autoClose: false })
  stream.fd = fd
  stream._type = "fs"
  stream._isStdio = true
  stream.destroySoon = stream.destroy
  stream._destroy = keepOpen
  streams[name] = prepareOutput(stream, fd)
  console[`_${name}`] = stream
}

function freshStreams() {
  freshOutput("stdout", 1)
  freshOutput("stderr", 2)
  const { stdin } = streams
  streams.stdin = undefined
  try {
    stdin?.destroy()
  } catch {} // patched by the user
}

for (const name of ["stdout", "stderr"]) {
  ObjectDefineProperty(process, name, {
    __proto__: null,
    configurable: true,
    enumerable: true,
    get: () => streams[name]
  })
}
ObjectDefineProperty(process, "stdin", {
  __proto__: null,
  configurable: true,
  enumerable: true,
  get: () => (streams.stdin ??= new ReadStream(null, { fd: 0, autoClose: false }))
})

// --- Fresh randomness ------------------------------------------------------------------------------------------------------------------

const { randomUUID, randomInt, getRandomValues } = process.getBuiltinModule("node:crypto")
let seed = null
let mathRandom

/** xoshiro128++ over `state`, two steps for 53 bits. It refers to nothing outside, because it is also made inside other contexts. */
function generator(state) {
  const next = () => {
    const sum = (state[0] + state[3]) | 0
    const result = (((sum << 7) | (sum >>> 25)) + state[0]) | 0
    const shifted = state[1] << 9
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= shifted
    state[3] = (state[3] << 11) | (state[3] >>> 21)
    return result >>> 0
  }
  const random = () => ((next() >>> 5) * 67108864 + (next() >>> 6)) / 9007199254740992
  // A bound function prints as native code.
  return Object.defineProperty(random.bind(), "name", { value: "random", configurable: true })
}

/** User code has run in this process, and may have filled the caches that drainCaches empties. */
let used = false

function drainCaches() {
  for (let i = 0; i < 128; i++) randomUUID()
  for (let i = 0; i < 1024; i++) randomInt(2)
}

/**
 * Makes this clone's random numbers its own: OpenSSL's generator, Node's caches of UUIDs (128) and of random integers (1024) drawn
 * before (only user code draws any, and emptying them takes a clone 150 ms), and `Math.random`, which V8 seeds from a state that it shares
 * with the template. Worker threads are new isolates, seeded from OpenSSL; new contexts are not, and get a generator of their own.
 */
function reseed(hex) {
  const entropy = bytesOf(hex, "hex")
  reseedOpenSSL(entropy)
  if (used) drainCaches()
  if (seed === null) Math.random = mathRandom = generator((seed = new Int32Array(4)))
  for (let i = 0; i < 4; i++) seed[i] = entropy.readInt32LE(4 * i) ^ (entropy.readInt32LE(16 + 4 * i) + i)
  for (let i = 0; i < 16; i++) mathRandom() // so that similar seeds give different numbers
}

const { createContext, runInContext, runInNewContext, Script } = vm
const { runInNewContext: runScriptInNewContext } = Script.prototype
const seededContexts = new SafeWeakSet()

function freshContext(object, options) {
  const context = createContext(object, options)
  if (seed !== null && !seededContexts.has(context)) {
    seededContexts.add(context)
    const make = runInContext(`(${generator})`, context)
    runInContext("Math", context).random = make(getRandomValues(new Int32Array(4)))
  }
  return context
}

/** The names of the context's options, in the functions that make a context and run code in it. */
function contextOptions(options) {
  if (typeof options !== "object" || options === null) return undefined
  const { contextName, contextOrigin, contextCodeGeneration, microtaskMode, importModuleDynamically } = options
  const names = { name: contextName, origin: contextOrigin, codeGeneration: contextCodeGeneration }
  return { ...names, microtaskMode, importModuleDynamically }
}

vm.createContext = freshContext
vm.runInNewContext = (code, object, options) =>
  runInNewContext(code, freshContext(object, contextOptions(options)), options)
Script.prototype.runInNewContext = function (object, options) {
  return runScriptInNewContext.call(this, freshContext(object, contextOptions(options)), options)
}

// --- One execution -------------------------------------------------------------------------------------------------------------------

let requirePath = ""
let requireGiven

const importMeta = "import_meta" // as long as what it stands for
let metaPath = ""

/** The `import.meta` of the running execution, under a hidden name. */
function giveImportMeta() {
  if (metaPath !== requirePath) {
    metaPath = requirePath
    const context = { url: pathToFileURL(metaPath).href, isMain: true }
    define(importMeta, initializeImportMeta({ __proto__: null }, context, getOrInitializeCascadedLoader()))
  }
  return importMeta
}

/** Sets `require`, `module` and `exports` as `node -e` does, for the directory that the code runs in. */
function giveRequire() {
  let path
  try {
    path = join(currentDirectory(), "eval.js")
  } catch {
    return // the directory was removed
  }
  if (path === requirePath) return
  const replace = requireGiven === undefined || globalThis.require === requireGiven
  requirePath = path
  requireGiven = createRequire(path)
  requireGiven.main = mainModule
  if (mainModule.filename === null || process.argv[1] === mainModule.filename) process.argv[1] = path
  mainModule.filename = path
  mainModule.path = currentDirectory()
  mainModule.paths = Module._nodeModulePaths(mainModule.path)
  if (replace) define("require", requireGiven)
  define("__filename", path)
  define("__dirname", mainModule.path)
}

const mainModule = new Module("[eval]")

function define(name, value) {
  ObjectDefineProperty(globalThis, name, {
    __proto__: null,
    configurable: true,
    writable: true,
    enumerable: false,
    value
  })
}

/** The fields below an order, each ended by a NUL except the last, which is the code. */
function parseSettings(text) {
  let at = 0
  const field = () => {
    const end = StringPrototypeIndexOf(text, "\0", at)
    const value = StringPrototypeSlice(text, at, end)
    at = end + 1
    return value
  }
  const language = field()
  const marks = field()
  const entropy = field()
  const cwd = field()
  const env = { __proto__: null }
  for (let left = +field(); left > 0; left--) {
    const pair = field()
    const equals = StringPrototypeIndexOf(pair, "=")
    env[StringPrototypeSlice(pair, 0, equals)] = StringPrototypeSlice(pair, equals + 1)
  }
  const marked = (mark) => StringPrototypeIndexOf(marks, mark) >= 0
  const code = marked("c") ? StringPrototypeSlice(text, at) : null
  return { __proto__: null, language, stdin: marked("s"), rehearsal: marked("r"), entropy, cwd, env, code }
}

function applySettings(execution) {
  const { env, cwd } = execution.settings
  const saved = { __proto__: null, env: { __proto__: null }, cwd: null, at: null }
  execution.saved = saved
  each(env, (key, value) => {
    saved.env[key] = environment[key]
    environment[key] = value
  })
  if (cwd) {
    try {
      saved.cwd = currentDirectory()
    } catch {}
    chdir(cwd)
    saved.at = currentDirectory()
  }
}

/** Restores what the settings changed, unless the user changed it since. */
function removeSettings({ settings, saved }) {
  if (saved === null) return
  each(saved.env, (key, former) => {
    if (environment[key] !== settings.env[key]) return
    if (former === undefined) delete environment[key]
    else environment[key] = former
  })
  try {
    if (saved.cwd !== null && currentDirectory() === saved.at) chdir(saved.cwd)
  } catch {}
}

/** First half of an execution: everything up to the message that makes the inspector evaluate it. */
function prepare(order) {
  const execution = new Execution()
  const head = StringPrototypeIndexOf(order, "\n")
  const space = StringPrototypeIndexOf(order, " ")
  const body = StringPrototypeSlice(order, head + 1)
  const number = StringPrototypeSlice(order, 0, space)
  execution.number = number
  execution.directory = `${home}/${StringPrototypeSlice(order, space + 1, head)}`
  const settings = parseSettings(body || readFileSync(`${execution.directory}/settings`, "utf8"))
  execution.settings = settings
  execution.name = `<exec-${number}>`
  const text = remember(execution.name, settings.code ?? readFileSync(`${execution.directory}/code`, "utf8"))
  owner = current = execution
  redirect(execution.directory, settings.stdin)
  freshStreams()
  const { entropy, language } = settings
  if (entropy) reseed(entropy)
  if (number !== warmUp && !settings.rehearsal) used = true
  if (entropy) send(`started ${number} reseeded\n`)
  storage.enterWith(execution)
  run(execution.directory)
  try {
    applySettings(execution)
    giveRequire()
    const code = rewriteModuleSyntax(language === "typescript" ? stripTypes(text, execution.name) : text.code)
    execution.request = ++lastRequest
    return JSONStringify({
      id: execution.request,
      method: "Runtime.evaluate",
      params: { expression: `${code}\n//# sourceURL=${execution.name}`, replMode: true, silent: true }
    })
  } catch (error) {
    fail(execution, withoutOurFrames(error))
  }
}

/** The code reached its end or an exception, or was stopped. */
function evaluated(execution, { result: response }) {
  if (execution.over || execution.exiting || response === undefined) return
  const details = response.exceptionDetails
  if (details !== undefined) {
    const { lineNumber, columnNumber } = details
    execution.place = `${execution.name}:${lineNumber + 1}:${columnNumber + 1}`
    if (details.exception === undefined) return // terminated
    return fail(execution, valueOf(details.exception))
  }
  const value = valueOf(response.result)
  execution.settled = true
  // Wait for a trailing `main()`, as Node waits for a program that ends with it.
  if (isPromise(value))
    PromisePrototypeThen(
      value,
      (result) => succeed(execution, result),
      (error) => fail(execution, error)
    )
  else succeed(execution, value)
}

function succeed(execution, value) {
  if (execution.over) return
  execution.result = describeResult(value)
  // Not at once: unhandled rejections are reported only after the microtasks.
  conclude(execution)
}

function fail(execution, error) {
  if (execution.over) return
  execution.over = true
  execution.exitCode = 1
  execution.result = null
  try {
    printException(execution, error)
    execution.exception = describeException(execution, error)
  } catch {
    // Only if user code has broken what even these rely on.
    execution.exception ??= {
      type: "Error",
      message: "",
      traceback: "",
      errno: null,
      path: null,
      module: null,
      code: null
    }
  }
  conclude(execution)
}

function conclude(execution) {
  execution.concluding = true
  setImmediate(finish, execution)
}

function finish(execution) {
  run("")
  if (execution !== current) return
  current = null
  execution.over = true
  removeSettings(execution)
  if (execution.leaving) ReflectApply(removeAllListeners, process, ["exit"])
  const { commands, exception, result } = execution
  const exitCode = (execution.exitCode ?? process.exitCode ?? 0) & 255
  process.exitCode = undefined
  let evidence = JSONStringify({ exitCode, exception, commands, result })
  if (evidence.length > 1300) {
    // at most three bytes a unit, plus the rest of the message
    try {
      writeFileSync(`${execution.directory}/evidence`, evidence)
    } catch {} // for example the disk is full: the agent reports an execution without evidence
    evidence = ""
  }
  leavePipes(execution)
  finished(execution, evidence)
}

/** Called after the synchronous part of an execution, and after `terminate`. */
function settle() {
  if (terminated) recount()
  if (current?.exiting) finish(current)
  else if (terminated && current?.concluding) conclude(current)
  terminated = false
}

let terminated = false

/** V8 stops code anywhere, even in Node's own loops over timers and immediates, so their counts may be wrong: count again. */
function recount() {
  mend(streams.stdout)
  mend(streams.stderr)
  let refs = 0
  each(timerListMap, (_, list) => {
    for (let timer = list._idleNext; timer !== list; timer = timer._idleNext) if (timer[kRefed]) refs++
  })
  timers.timeoutInfo[0] = refs
  timers.toggleTimerRef(refs > 0)
  const { immediateInfo } = timers
  const { kCount, kRefCount, kHasOutstanding } = immediateInfoFields
  if (immediateInfo[kHasOutstanding] !== 0) return
  immediateInfo[kCount] = immediateInfo[kRefCount] = 0
  for (let it = immediateQueue.head; it !== null; it = it._idleNext) {
    immediateInfo[kCount]++
    if (it[kRefed]) immediateInfo[kRefCount]++
  }
  timers.toggleImmediateRef(immediateInfo[kRefCount] > 0)
}

/** Ends a write that was stopped: otherwise all later ones would wait for it. */
function mend(stream) {
  try {
    const state = stream._writableState
    state.bufferProcessing = false
    if (state.writing) state.onwrite()
    state.sync = false
  } catch {} // patched by the user
}

/** Ends the execution on SIGINT. Code that still waits for something remains a callback that may run later. */
function interrupt() {
  const execution = current
  if (execution === null) return
  execution.over = true
  execution.exitCode = 130
  execution.exception = execution.result = null
  recount()
  finish(execution)
}

/** Node's own function expects most signals to itself to end it, and disconnects the inspector that executions run in. */
process._kill = function _kill(pid, number) {
  return kill(pid | 0, number | 0)
}

function setExitCode(code, caller) {
  try {
    process.exitCode = code // Node checks it
  } catch (error) {
    NativeError.captureStackTrace(error, caller)
    throw error
  }
}

/** Calls the listeners as Node does before it exits; the caller gets what a listener throws. */
function tellListeners(execution) {
  if (execution.leaving) return
  execution.leaving = true
  process.emit("exit", process.exitCode ?? 0)
}

process.exit = function exit(code) {
  if (arguments.length > 0) setExitCode(code, exit)
  const execution = storage.getStore() ?? current
  if (execution !== null && execution === current) {
    tellListeners(execution)
    execution.exiting = execution.over = true
    execution.exitCode = process.exitCode ?? 0
  } else {
    process.exitCode = undefined // a left-over callback of an older execution: only the callback ends
  }
  terminated = true
  terminate()
  for (;;); // V8 stops us here
}

/** The event loop has nothing left that could continue the execution: Node would exit here. */
function onIdle() {
  const execution = current
  // process.exit in a callback: this may have been the last thing that kept the loop running.
  if (execution?.exiting) return settle()
  if (execution === null || execution.over) return
  execution.over = true
  if (!execution.settled) {
    execution.exitCode = 13
    printFor(execution, 2, `Warning: Detected unsettled top-level await in ${execution.name}\n`)
  }
  finish(execution)
}

/** Node emits `beforeExit` when the event loop has nothing left. Listeners run once an execution: they may have added something. */
ObjectDefineProperty(process, "emit", {
  __proto__: null,
  configurable: true,
  writable: true,
  value: function emit(type) {
    if (type !== "beforeExit" || current === null) return ReflectApply(tellAll, this, arguments)
    storage.enterWith(current)
    if (!current.idle) {
      current.idle = true
      setImmediate(onIdleAgain) // one turn for what they may have settled
      return ReflectApply(tellAll, this, arguments)
    }
    onIdle()
    return false
  }
})

function onIdleAgain() {}

/** Handles uncaught exceptions and unhandled rejections. Node's own handling goes first: the user may have a listener. */
const onFatalException = process._fatalException
process._fatalException = function (error, fromPromise) {
  const theirs = process.listenerCount("uncaughtException") > 0 || process.hasUncaughtExceptionCaptureCallback()
  if (theirs) return onFatalException(error, fromPromise)
  const execution = storage.getStore() ?? current ?? owner
  process.once("uncaughtException", () => {
    if (execution === current) fail(execution, error)
    else printException(execution, error)
  })
  return onFatalException(error, fromPromise)
}

// --- Start ---------------------------------------------------------------------------------------------------------------------------

const warmUp = "warm-up"
let finished = () => {}

/** Runs the code paths of an execution, so that pages, caches and compiled code are warm in each clone. */
async function warm() {
  const directory = `${home}/${warmUp}`
  mkdirSync(directory)
  for (const name of ["stdin", "stdout", "stderr"]) symlinkSync("/dev/null", `${directory}/${name}`)
  const samples = [
    ["javascript", "console.log([1, { a: 'b' }]); await null; ({ a: [1] })"],
    ["javascript", "import 'node:path'; await import('node:fs'); require('os'); throw new TypeError('x')"],
    ["typescript", "(1 as unknown) as string"],
    ["typescript", "(() => { enum E { A } return E.A })()"]
  ]
  for (let round = 0; round < 4; round++)
    for (const [language, code] of samples) {
      const done = new Promise((resolve) => (finished = resolve))
      connection.dispatch(prepare(`${warmUp} ${warmUp}\n${language}\0sc\0\0/\x001\0A=1\0${code}`))
      settle()
      await done
    }
  rmSync(directory, { recursive: true })
}

// A host may have certificate authorities of its own, which it sends after this process has started, too late for
// NODE_EXTRA_CA_CERTS. They are added when authorities are first needed, because reading them takes long.
{
  const { prototype } = internalBinding("crypto").SecureContext
  const { addRootCerts } = prototype
  prototype.addRootCerts = function () {
    let extra = []
    try {
      const text = readFileSync("/run/exec-sandbox-authorities.pem", "latin1")
      extra = StringPrototypeMatch(text, /-----BEGIN[^]+?-----END CERTIFICATE-----/g)
    } catch {
      // The host sent none.
    }
    if (extra?.length > 0) {
      prototype.addRootCerts = addRootCerts
      const tls = load("node:tls")
      tls.setDefaultCACertificates([...tls.getCACertificates("default"), ...extra])
    }
    return ReflectApply(addRootCerts, this, [])
  }
}

// `import()` in evaluated code uses Node's default loader, as in the REPL.
globalThis[internalBinding("util").privateSymbols.host_defined_option_symbol] =
  internalBinding("symbols").vm_dynamic_import_default_internal

define("module", mainModule)
define("exports", mainModule.exports)
process.argv = [process.execPath]
process.execArgv = []
Module.builtinModules = Module.builtinModules.filter((name) => !name.startsWith("internal/"))
syncBuiltinESMExports()

reseed("00".repeat(32))
await warm()
finished = ({ number }, evidence) => send(`done ${number}${evidence && " "}${evidence}\n`)
texts.clear()
process.emitWarning = emitWarning
const { async_hook_fields, constants } = internalBinding("async_wrap")
listen(home, prepare, settle, interrupt, connection, connection.dispatch, async_hook_fields, constants.kStackLength)
send("ready\n")

// The name of this file in stack traces, which makes Node hide it like its own files.
//# sourceURL=node:internal/execution
