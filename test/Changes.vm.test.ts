import { assert, layer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { type Changes, Mark } from "../src/Changes.ts"
import { nameFromBytes } from "../src/Files.ts"
import { Sandbox } from "../src/Sandbox.ts"
import type { Session } from "../src/Session.ts"
import { session } from "./support/executions.ts"

/** Finds changes the slow way: walks all of the root but /usr, and reads what may change. */
const walk = `
find / -xdev -mindepth 1 '(' -path /var/lib/exec-sandbox -o -path /usr ')' -prune -o -printf '%p\\0%m %U %G %y %l\\0'
printf '\\0'
find /home /etc /tmp /opt -xdev -type f -print0 | xargs -0 sha256sum -z
`

/** Makes many random changes, the same for the same seed. Names have any bytes; some of the files are the image's. */
const act = `
import os, random, shutil, stat, sys
source = random.Random(int(sys.argv[1]))
names = [b"a", b"b b", b"c", "\\u00e4".encode(), b"new\\nline", b"\\xff"]
def pick():
    root = source.choice([b"/home/user", b"/home/user", b"/etc", b"/opt", b"/tmp"])
    if root == b"/etc" and source.random() < 0.5:
        # Two files belong to the machine: they are mounted there, and not among what changes are reported of.
        return os.path.join(root, source.choice(sorted(set(os.listdir(root)) - {b"hosts", b"machine-id"})))
    return os.path.join(root, *[source.choice(names) for _ in range(source.randint(1, 3))])
def regular(path): return os.path.lexists(path) and stat.S_ISREG(os.lstat(path).st_mode)
def write(path, mode="wb"):
    if regular(path) or not os.path.lexists(path):
        with open(path, mode) as file: file.write(b"line %d\\n" % source.randrange(9) * source.randrange(5))
def again(path):
    with open(path, "rb") as file: old = file.read()
    with open(path, "wb") as file: file.write(old)
for _ in range(120):
    path, other, way = pick(), pick(), source.randrange(13)
    try:
        if way < 3: write(path)
        elif way == 3: write(path, "ab")
        elif way == 4: os.remove(path)
        elif way == 5: shutil.rmtree(path)
        elif way == 6: os.makedirs(path)
        elif way == 7: os.rename(path, other)
        elif way == 8: os.symlink(os.path.basename(other), path)
        elif way == 9: os.link(path, other)
        elif way == 10 and not os.path.islink(path): os.chmod(path, source.choice([0o644, 0o755, 0o600]))
        elif way == 11 and regular(path): again(path)
        elif way == 12: os.mkfifo(path)
    except OSError: pass
`

/** Each file's mode, owner, type, link target, and the hash of its content if that may change, by its path. */
type Tree = { readonly [path: string]: string }

const parsed = (bytes: Uint8Array): Tree => {
  const words: Array<string> = []
  let rest = Buffer.from(bytes)
  for (let end = rest.indexOf(0); end >= 0; end = rest.indexOf(0)) {
    words.push(nameFromBytes(rest.subarray(0, end)))
    rest = rest.subarray(end + 1)
  }
  const found: Record<string, string> = {}
  const hashes = words.indexOf("")
  for (let at = 0; at < hashes; at += 2) found[words[at] ?? ""] = words[at + 1] ?? ""
  for (const line of words.slice(hashes + 1)) found[line.slice(66)] += line.slice(0, 64)
  return found
}

const asRoot = (it: Session, ...argv: ReadonlyArray<string>) =>
  it.run(argv, { user: "root", limits: { outputBytes: 16 * 1024 * 1024 } })

const treeOf = (it: Session) => Effect.map(asRoot(it, "bash", "-c", walk), ({ bytes }) => parsed(bytes.stdout))

const acting = (it: Session, seed: number) => asRoot(it, "python3", "-I", "-S", "-c", act, `${seed}`)

const difference = (before: Tree, after: Tree) => {
  const all: Array<string> = []
  for (const [path, was] of Object.entries(before)) {
    const is = after[path]
    if (is === undefined) all.push(`deleted ${path}`)
    else if (is !== was) all.push(`modified ${path}`)
  }
  for (const path of Object.keys(after)) if (before[path] === undefined) all.push(`created ${path}`)
  return all.sort()
}

const kinds = (changes: Changes | null) => changes?.files.map(({ kind, path }) => `${kind} ${path}`)

/** Replaces each rename by a deletion and a creation. */
const withoutRenames = ({ files }: Changes) =>
  files
    .flatMap(({ from, kind, path }) => (from === null ? [`${kind} ${path}`] : [`created ${path}`, `deleted ${from}`]))
    .sort()

layer(Sandbox.layer, { excludeTestServices: true, timeout: "240 seconds" })("Changes", (it) => {
  it.effect("are the same as a walk over everything finds, since a mark and since the start", () =>
    Effect.gen(function* () {
      const one = yield* session()
      const start = yield* treeOf(one)
      yield* acting(one, 1)
      const mark = yield* one.mark
      const before = yield* treeOf(one)
      yield* acting(one, 2)
      const after = yield* treeOf(one)

      const since = yield* one.changes({ since: mark, maxFiles: 10_000 })
      assert.deepStrictEqual(withoutRenames(since), difference(before, after))
      assert.isAbove(since.files.length, 10)
      assert.strictEqual(since.unlisted, 0)
      assert.strictEqual(since.counts.unexamined, 0)
      const all = yield* one.changes({ maxFiles: 10_000 })
      assert.deepStrictEqual(withoutRenames(all), difference(start, after))
    })
  )

  it.effect("come with patches, which turn another machine's files into the same ones", () =>
    Effect.gen(function* () {
      const prepare = String.raw`
mkdir -p src/deep "with space"
for n in 1 2 3 4 5 6; do seq $((n * 40)) > src/$n.txt; done
printf 'no newline' > src/deep/end; printf 'Zeile\n' > 'src/ä"'; printf 'x' > "with space/a b"; printf '\0\1' > binary; mkfifo pipe`
      const work = String.raw`
sed -i '5d;20s/$/ changed/;33i new' src/3.txt
printf '1\n2' > src/1.txt
rm src/2.txt
mv src/4.txt src/moved.txt; sed -i '7d' src/moved.txt
mv src/deep src/deeper
chmod +x src/5.txt
mkdir made; printf 'a\nb\n' > made/new; : > made/empty
printf ' at last' >> src/deeper/end; echo more >> 'src/ä"'; echo y > "with space/a b"
printf '\2' >> binary; ln -s made link; echo more >> .bashrc; rm .profile; seq 100000 > large; printf '\377' > latin`
      const one = yield* session()
      yield* one.exec({ language: "bash", code: prepare })
      const { changes, receipt } = yield* one.exec({ language: "bash", code: work, changes: true })
      assert.isNotNull(changes)
      if (changes === null) return
      const home = changes.files.map(({ from, kind, path }) => [kind, ...(from === null ? [] : [from]), path].join(" "))
      assert.deepStrictEqual(home, [
        "modified /home/user/.bashrc",
        "deleted /home/user/.profile",
        "modified /home/user/binary",
        "created /home/user/large",
        "created /home/user/latin",
        "created /home/user/link",
        "created /home/user/made",
        "created /home/user/made/empty",
        "created /home/user/made/new",
        "modified /home/user/src/1.txt",
        "deleted /home/user/src/2.txt",
        "modified /home/user/src/3.txt",
        "deleted /home/user/src/4.txt",
        "modified /home/user/src/5.txt",
        "renamed /home/user/src/deep /home/user/src/deeper",
        "renamed /home/user/src/deep/end /home/user/src/deeper/end",
        "created /home/user/src/moved.txt", // sed replaced it by another file
        'modified /home/user/src/ä"',
        "modified /home/user/with space/a b"
      ])
      assert.deepStrictEqual(receipt.filesChanged, changes.counts)

      const other = yield* session()
      yield* other.exec({ language: "bash", code: prepare })
      yield* other.run(["patch", "-p1", "-d", "/", "--fuzz=0"], { stdin: changes.patch })
      const [mine, theirs] = [yield* treeOf(one), yield* treeOf(other)]
      // No patch says these; and each machine has a name and an id of its own.
      assert.deepStrictEqual(difference(mine, theirs), [
        "deleted /home/user/large",
        "deleted /home/user/latin",
        "deleted /home/user/link",
        "modified /etc/hosts",
        "modified /etc/machine-id",
        "modified /home/user/binary"
      ])
    })
  )

  it.effect("are reported for failed executions, for programs, and for each execution separately", () =>
    Effect.gen(function* () {
      const it = yield* session()
      const failed = yield* Effect.flip(it.exec({ language: "python", code: "open('p', 'w'); 1 / 0", changes: true }))
      if (failed._tag !== "TaskFailed") return assert.fail(failed.message)
      assert.deepStrictEqual(kinds(failed.changes), ["created /home/user/p"])
      const killed = yield* Effect.flip(
        it.exec({ language: "python", code: "open('q', 'w'); import os; os.kill(os.getpid(), 9)", changes: true })
      )
      if (killed._tag !== "TaskFailed") return assert.fail(killed.message)
      assert.deepStrictEqual(kinds(killed.changes), ["created /home/user/q"])

      // Executions of one language that wait for each other get separate reports.
      const both = yield* Effect.forEach(
        [1, 2],
        (n) => it.exec({ language: "bash", code: `sleep 0.1; echo ${n} > ${n}`, changes: true }),
        { concurrency: "unbounded" }
      )
      assert.deepStrictEqual(
        both.flatMap(({ changes }) => kinds(changes)),
        ["created /home/user/1", "created /home/user/2"]
      )
      const none = yield* it.exec({ language: "bash", code: "echo 1 > 1; touch 2; : > new; rm new", changes: true })
      assert.deepStrictEqual(kinds(none.changes), [])
      assert.isNull((yield* it.exec({ language: "bash", code: "echo" })).changes)

      const asked = { patches: false, maxFiles: 1 }
      const program = yield* it.run("echo 3 > 1; rm 2 p", { changes: asked })
      assert.deepStrictEqual(kinds(program.changes), ["modified /home/user/1"])
      assert.strictEqual(program.changes?.files[0]?.omitted, "unasked")
      assert.deepInclude(program.receipt.filesChanged, { created: 0, modified: 1, deleted: 2, renamed: 0 })
      assert.strictEqual(program.changes?.unlisted, 2)
      const missing = yield* Effect.flip(it.run(["no-such-program"], { changes: true }))
      if (missing._tag !== "UnsupportedCommand") return assert.fail(missing.message)
      assert.deepStrictEqual(kinds(missing.changes), [])

      // Files that would block or flood a reader: the report does not read them, and the session lives.
      yield* it.exec({
        language: "bash",
        code: "mkfifo pipe; ln -s /dev/zero zero; truncate -s 1G sparse; yes | head -c 200000 > y"
      })
      const odd = yield* it.changes()
      const of = (path: string) => odd.files.find((it) => it.path === `/home/user/${path}`)
      assert.strictEqual(of("pipe")?.after?.type, "fifo")
      assert.strictEqual(of("zero")?.after?.target, "/dev/zero")
      assert.strictEqual(of("sparse")?.omitted, "large")
      assert.strictEqual(of("sparse")?.after?.size, 1024 ** 3)
      assert.isAbove(of("y")?.patch?.length ?? 0, 300_000)

      // A session that continues from here has changed nothing yet.
      const [fork] = yield* it.fork(1)
      if (fork?._tag !== "Success") return assert.fail("no fork")
      assert.deepStrictEqual(kinds(yield* fork.success.changes()), [])
      yield* fork.success.exec({ language: "bash", code: "echo more >> y" })
      assert.deepStrictEqual(kinds(yield* fork.success.changes()), ["modified /home/user/y"])

      // A mark older than the last sixteen, a mark of another session, and an invalid option.
      const first = yield* it.mark
      for (let n = 0; n < 16; n++) yield* it.mark
      const forgotten = yield* Effect.flip(it.changes({ since: first }))
      assert.strictEqual(forgotten.reason._tag, "InvalidInput")
      const foreign = yield* Effect.flip(it.changes({ since: new Mark({ session: "ses-other", id: 17 }) }))
      assert.strictEqual(foreign.reason._tag, "InvalidInput")
      const negative = yield* Effect.flip(it.changes({ maxFiles: -1 }))
      assert.strictEqual(negative.reason._tag, "InvalidInput")
    })
  )
})
