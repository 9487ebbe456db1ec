/** The programs of the contract: what real VMs run, and the kit's script of what a real guest's agent reports of them. */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type { Request } from "../../src/Execution.ts"
import * as Testing from "../../src/Testing.ts"

export const text = (bytes: Uint8Array | undefined): string => Buffer.from(bytes ?? []).toString()

export const python = (code: string, settings: Omit<Request, "language" | "code"> = {}): Request => ({
  language: "python",
  code,
  ...settings
})
export const bash = (code: string): Request => ({ language: "bash", code })

export const programs = {
  hello: "import sys; print('out'); print('err', file=sys.stderr)",
  assign: "x = 20",
  use: "x + 22",
  echo: "import os, sys; print(sys.stdin.read(), os.environ['A'], os.environ['B'], os.getcwd())",
  value: "[1, { a: null }]",
  exit: "echo before; exit 3",
  raise: "raise ValueError('no')",
  module: "import no_such_module",
  command: "no-such-command",
  refused: "open('/etc/shadow')",
  signal: "kill -SEGV $$",
  forever: "print('begun', flush=True)\nwhile True: pass",
  chatty: "print('0123456789' * 10)",
  wait: "import os, time\nprint('begun', flush=True); open('begun', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('gone')",
  go: "touch go",
  servers: `import socket, threading
def serve(port, answer):
    listener = socket.create_server(("127.0.0.1", port))
    def accept():
        while True: threading.Thread(target=answer, args=listener.accept()).start()
    threading.Thread(target=accept, daemon=True).start()
def web(connection, _):
    heard = b""
    while not heard.endswith(b"body"): heard += connection.recv(65536)
    method, path, _ = heard.split(b" ", 2)
    connection.sendall(b"HTTP/1.1 201 Created\\r\\nx-method: %b\\r\\nconnection: close\\r\\n\\r\\n%b body" % (method, path))
    connection.close()
def echo(connection, _):
    while heard := connection.recv(65536): connection.sendall(heard)
    connection.close()
serve(7001, web)
serve(7002, echo)`,
  append: "echo 2 >> w/old",
  later: `import os, threading, time
def later():
    while not os.path.exists("later"): time.sleep(0.01)
    print("late", flush=True)
threading.Thread(target=later).start()`,
  size: "read line; stty size",
  trap: "trap 'echo heard; exit 7' TERM; echo ready; sleep 1000 & wait"
} as const

/** The same programs for the kit. */
export const script: Testing.Script = (task) => {
  if (task.argv !== null) {
    if (task.code === programs.size) {
      return Effect.gen(function* () {
        yield* Stream.runHead(task.stdin)
        const { cols = 0, rows = 0 } = task.terminal() ?? {}
        return Testing.prints(`${rows} ${cols}\r\n`)
      })
    }
    if (task.code === programs.trap) {
      return Effect.gen(function* () {
        const heard = yield* Deferred.make<void>()
        task.trap((signal) => signal === "SIGTERM" && Deferred.doneUnsafe(heard, Effect.void))
        yield* task.stdout("ready\n")
        yield* Deferred.await(heard)
        return Testing.exits(7, { stdout: "heard\n" })
      })
    }
    switch (task.argv[0]) {
      case "cat":
        return Effect.as(Stream.runForEach(task.stdin, task.stdout), Testing.ends())
      case "false":
        return Testing.exits(1)
      case "sleep":
        return Testing.hangs
      default:
        return Testing.misses(task.argv[0] ?? "")
    }
  }
  switch (task.code) {
    case programs.hello:
      return Testing.ends({ stdout: "out\n", stderr: "err\n" })
    case programs.assign:
      return Effect.sync(() => {
        task.state.set("x", 20)
        return Testing.ends()
      })
    case programs.use: {
      const x = task.state.get("x")
      return typeof x === "number"
        ? Testing.gives(x + 22)
        : Testing.raises("NameError", { message: "name 'x' is not defined" })
    }
    case programs.echo:
      return Effect.map(task.stdinText, (stdin) =>
        Testing.prints(`${stdin} ${task.env["A"]} ${task.env["B"]} ${task.cwd}\n`)
      )
    case programs.value:
      return Testing.gives([1, { a: null }])
    case programs.exit:
      return Testing.exits(3, { stdout: "before\n" })
    case programs.raise:
      return Testing.raises("ValueError", { message: "no" })
    case programs.module:
      return Testing.raises("ModuleNotFoundError", { module: "no_such_module" })
    case programs.command:
      return Testing.misses("no-such-command")
    case programs.refused:
      return Testing.raises("PermissionError", { errno: "EACCES", path: "/etc/shadow" })
    case programs.signal:
      return Testing.killedBy("SIGSEGV")
    case programs.forever:
      return Effect.andThen(task.stdout("begun\n"), Testing.hangs)
    case programs.chatty:
      return Effect.as(task.stdout(`${"0123456789".repeat(10)}\n`), Testing.ends())
    case programs.wait:
      return Effect.gen(function* () {
        yield* task.stdout("begun\n")
        task.files.write("begun", "")
        while (task.files.read("go") === undefined) yield* Effect.sleep("1 millis")
        return Testing.prints("gone\n")
      })
    case programs.go:
      return Effect.sync(() => {
        task.files.write("go", "")
        return Testing.ends()
      })
    case programs.servers:
      return Effect.sync(() => {
        task.ports.listen(7001, async (request) => {
          const { pathname } = new URL(request.url)
          return new Response(`${pathname} ${await request.text()}`, {
            status: 201,
            headers: { "x-method": request.method }
          })
        })
        task.ports.listen(
          7002,
          Testing.tcp((connection) => void connection.pipe(connection))
        )
        return Testing.ends()
      })
    case programs.append:
      return Effect.sync(() => {
        task.files.write("w/old", `${text(task.files.read("w/old"))}2\n`)
        return Testing.ends()
      })
    case programs.later:
      return Effect.as(
        task.background(
          Effect.gen(function* () {
            while (task.files.read("later") === undefined) yield* Effect.sleep("1 millis")
            yield* task.stdout("late\n")
          })
        ),
        Testing.ends()
      )
    default:
      return Testing.prints("1\n")
  }
}
