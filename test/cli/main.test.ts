/** Wrong use of the command line. What starts its process: `main.slow.test.ts`. */
import { assert, describe, it } from "@effect/vitest"
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterAll } from "vitest"
import { runInside } from "../support/runInside.ts"

const scratch = mkdtempSync(join(tmpdir(), "exec-sandbox-cli-"))
afterAll(() => rmSync(scratch, { recursive: true, force: true }))

const scratchFile = (name: string, content: string | Uint8Array): string => {
  const file = join(scratch, name)
  writeFileSync(file, content)
  return file
}

describe("a usage error", () => {
  const wrong: ReadonlyArray<readonly [ReadonlyArray<string>, RegExp]> = [
    [[], /USAGE/],
    [["rnu"], /Unknown subcommand "rnu"[^]*run/],
    [["run"], /USAGE[^]*Missing required argument: code/],
    [["run", ""], /USAGE[^]*Missing required argument: code/],
    [["run", "--nope", "print(1)"], /Unrecognized flag: --nope/],
    [["run", "--net", "all", "print(1)"], /Unrecognized flag: --net/],
    [["run", "--network", "some", "print(1)"], /--network/],
    [["run", "print(1)", "print(2)"], /Unexpected positional argument: "print\(2\)"/],
    [["run", "-l", "ruby", "1"], /--language[^]*python/],
    [["run", "-m", "64", "print(1)"], /--memory: "64"[^]*128/],
    [["run", "-m", "1e9", "print(1)"], /--memory/],
    [["run", "-t", "0", "print(1)"], /--time: "0"[^]*seconds/],
    [["run", "-t", "-1", "print(1)"], /--time/],
    [["run", "-t", "x", "print(1)"], /--time/],
    [["run", "-e", "X", "print(1)"], /--env: "X"[^]*NAME=VALUE/],
    [["run", "--secret", "TOKEN", "print(1)"], /--secret: "TOKEN"[^]*NAME@HOST/],
    [["run", "--secret", "TOKEN=NO_SUCH_VARIABLE@a.example", "print(1)"], /--secret TOKEN: its .*variable is not set/],
    [["run", "--secret", "TOKEN=./missing@a.example", "print(1)"], /--secret TOKEN: its file cannot be read/],
    [["run", "--secret", "PATH@10.0.0.1", "print(1)"], /secrets\.PATH\.hosts\.0/],
    [["run", "--secret", "PATH@a.example", "print(1)"], /does not grant "a\.example"[^]*allow "a\.example"/],
    [["run", "--upload", "file", "print(1)"], /--upload: "file"[^]*HOST:GUEST/],
    [["run", "--upload", ":guest", "print(1)"], /HOST:GUEST/],
    [["run", "--upload", "host:", "print(1)"], /HOST:GUEST/],
    [["run", "--download", "", "print(1)"], /GUEST\[:HOST\]/],
    [["run", "--download", "/", "print(1)"], /GUEST\[:HOST\]/],
    [["run", "--download", "a:", "print(1)"], /GUEST\[:HOST\]/],
    [["run", "-f", "a.py", "print(1)"], /not both/],
    [["run", "script.py"], /-f script\.py/],
    [["run", "./script"], /-f \.\/script/],
    [["run", "-f", "a.rb"], /"a\.rb"[^]*\.mts/],
    [["run", "-f", join(scratch, "missing.py")], /cannot read .*missing\.py.*ENOENT/],
    [["run", "-f", scratch, "-l", "bash"], /EISDIR/],
    [["run", "-f", scratchFile("latin1.py", Buffer.from([0xe4])), "-q"], /not UTF-8/],
    [["image"], /USAGE/],
    [["image", "pull", "https://example.com/x"], /--sha256/],
    [["image", "remove"], /USAGE[^]*Missing required argument/],
    [["template", "warm", "-m", "64"], /--memory/],
    [["template", "prune", "--keep", "lots"], /--keep/],
    [["completions", "tcsh"], /bash/]
  ]
  for (const [args, said] of wrong) {
    it(`exec-sandbox ${args.join(" ").replace(scratch, "")}`, async () => {
      const done = await runInside(args)
      assert.deepStrictEqual([done.code, done.stdout], [2, ""])
      assert.match(done.stderr, said)
    })
  }
})
