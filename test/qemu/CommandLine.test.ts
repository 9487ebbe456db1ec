import { assert, describe, it } from "@effect/vitest"
import { commandLine, type Input, kernelCommandLine } from "../../src/qemu/CommandLine.ts"

const boot: Input = {
  arch: "amd64",
  accelerator: "tcg",
  memoryMiB: 640,
  seccomp: true,
  portName: "port",
  readonlyRam: false,
  start: { kind: "boot", tscKhz: 2_600_000 }
}
const restore: Input = { ...boot, start: { kind: "restore" } }

/** The values of a flag, in order. */
const values = (input: Input, flag: string): ReadonlyArray<string> => {
  const args = commandLine(input)
  return args.flatMap((arg, index) => (arg === flag ? [args[index + 1] ?? ""] : []))
}

describe("CommandLine", () => {
  it("has no default devices and no network device", () => {
    for (const input of [boot, restore]) {
      const args = commandLine(input)
      for (const flag of ["-nodefaults", "-no-user-config", "-no-reboot"]) assert.include(args, flag)
      assert.isFalse(args.some((arg) => /^-(nic|netdev|net)$/.test(arg) || arg.includes("virtio-net")))
    }
  })

  it("boots with shared memory and restores with private memory", () => {
    assert.match(values(boot, "-object")[0] ?? "", /^memory-backend-file,id=ram,size=640M,mem-path=.*,share=on$/)
    assert.match(values(restore, "-object")[0] ?? "", /,share=off$/)
    assert.match(values({ ...restore, readonlyRam: true }, "-object")[0] ?? "", /,share=off,readonly=on,rom=off$/)
    assert.match(values({ ...boot, readonlyRam: true }, "-object")[0] ?? "", /,share=on$/)
  })

  it("names a kernel only where it boots", () => {
    assert.strictEqual(values(boot, "-kernel").length, 1)
    assert.strictEqual(values(restore, "-kernel").length, 0)
    assert.deepStrictEqual(values(restore, "-incoming"), ["defer"])
    assert.deepStrictEqual(values(boot, "-incoming"), [])
  })

  it("sets the TSC's frequency only under emulation, where its calibration can hang", () => {
    assert.include(kernelCommandLine(boot), "tsc_early_khz=2600000")
    assert.notInclude(kernelCommandLine({ ...boot, accelerator: "kvm" }), "tsc_early_khz")
    assert.include(kernelCommandLine(boot), "init_on_alloc=0")
    assert.notInclude(kernelCommandLine({ ...boot, accelerator: "kvm" }), "init_on_alloc=0")
    assert.notInclude(kernelCommandLine({ ...boot, start: { kind: "boot", tscKhz: null } }), "tsc_early_khz")
  })

  it("offers cmpxchg16b to programs, but not to an emulated kernel, whose flags it can corrupt", () => {
    assert.deepStrictEqual(values(boot, "-cpu"), ["max,-erms,-fsrm"])
    assert.include(kernelCommandLine(boot), "clearcpuid=cx16")
    assert.notInclude(kernelCommandLine({ ...boot, accelerator: "kvm" }), "clearcpuid")
    assert.deepStrictEqual(values({ ...boot, arch: "arm64" }, "-cpu"), ["max"])
  })

  it("KVM on x86-64", () => {
    const input: Input = { ...boot, accelerator: "kvm" }
    assert.deepStrictEqual(values(input, "-M"), ["microvm,pic=off,acpi=on,isa-serial=off,memory-backend=ram"])
    assert.deepStrictEqual(values(input, "-accel"), ["kvm"])
    assert.deepStrictEqual(values(input, "-cpu"), ["host"])
  })

  it("HVF and KVM on arm64", () => {
    const hvf: Input = { ...boot, arch: "arm64", accelerator: "hvf", seccomp: false }
    assert.deepStrictEqual(values(hvf, "-M"), ["virt,gic-version=3,memory-backend=ram"])
    assert.deepStrictEqual(values(hvf, "-accel"), ["hvf"])
    assert.deepStrictEqual(values(hvf, "-cpu"), ["host"])
    assert.deepStrictEqual(values(hvf, "-sandbox"), [])
    assert.notInclude(kernelCommandLine(hvf), "reboot=t")
    assert.deepStrictEqual(values({ ...hvf, accelerator: "kvm" }, "-M"), values(hvf, "-M"))
  })

  it("denies QEMU new programs, privileges and resource control where it supports the filter", () => {
    assert.deepStrictEqual(values(boot, "-sandbox"), [
      "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
    ])
  })

  for (const kind of ["restore", "wake", "receive"] as const) {
    it(`${kind}: puts a clone's disk on the template's, and that on the image's`, () => {
      const nodes = values({ ...restore, start: { kind } }, "-blockdev").map(
        (text) =>
          JSON.parse(text) as { readonly "node-name": string; readonly "read-only": boolean; readonly backing?: string }
      )
      assert.deepStrictEqual(
        nodes.map((node) => [node["node-name"], node["read-only"], node.backing]),
        [
          ["root", true, undefined],
          ["scratch-base", true, undefined],
          ["template-disk", true, "scratch-base"],
          ["scratch", false, "template-disk"]
        ]
      )
    })
  }

  it("loads a copy into a memory file of its own, and does not run", () => {
    const receive: Input = { ...restore, start: { kind: "receive" } }
    assert.match(values(receive, "-object").join(), /,share=on$/)
    assert.deepStrictEqual(values(receive, "-blockdev"), values(restore, "-blockdev"))
    assert.deepStrictEqual(values(receive, "-incoming"), ["defer"])
    assert.include(commandLine(receive), "-S")
    assert.notInclude(commandLine(restore), "-S")
  })

  it("continues from a copy of a template, with memory and disk of its own", () => {
    const extend: Input = { ...restore, start: { kind: "extend" } }
    assert.deepStrictEqual(values(extend, "-object"), values(boot, "-object"))
    assert.deepStrictEqual(values(extend, "-blockdev"), values(boot, "-blockdev"))
    assert.deepStrictEqual(values(extend, "-incoming"), ["defer"])
    assert.notInclude(commandLine(extend), "-S")
    assert.notInclude(commandLine(extend), "-kernel")
  })

  it("opens nothing by a path of the host", () => {
    for (const arg of [...commandLine(boot), ...commandLine(restore)]) {
      assert.notMatch(arg, /(?:=|"|^)\/(?!proc\/self\/fd\/|dev\/fd\/|dev\/fdset\/)/)
    }
  })
})
