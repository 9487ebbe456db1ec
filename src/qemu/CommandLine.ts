/**
 * QEMU's command line for one machine: a pure function, so that the paths that cannot run here (KVM, HVF) are at least
 * tested to the letter. QEMU opens nothing by path: every file and socket is an inherited descriptor, so an unprivileged
 * QEMU needs no access to anybody's directories.
 */

/** The accelerators QEMU can run a guest on. */
export type Accelerator = "kvm" | "hvf" | "tcg"

/** The descriptors a machine inherits; 0 and 1 are its QMP connection and 2 its messages. */
export const Fd = {
  channel: 3,
  console: 4,
  ram: 5,
  root: 6,
  scratchBase: 7,
  scratch: 8,
  /** boot only */
  kernel: 9,
  initrd: 10,
  /** extend: the state to go on from */
  extended: 9,
  /** restore and receive: the template's disk, between the base and the clone's own */
  templateDisk: 9,
  /** restore: the state; receive: the connection that everything comes from */
  state: 10
} as const

export interface Input {
  readonly arch: "amd64" | "arm64"
  readonly accelerator: Accelerator
  readonly memoryMiB: number
  readonly seccomp: boolean
  /** The name of the channel's virtio-serial port. */
  readonly portName: string
  /** From QEMU 8.2 a private mapping does not need the right to write to the file. */
  readonly readonlyRam: boolean
  readonly start:
    | { readonly kind: "boot"; readonly tscKhz: number | null }
    /** A machine that waits for a template's state; RAM already holds kernel and initrd. */
    | { readonly kind: "restore" }
    /** A machine that waits for a template's state, on copies of its memory and disk that are its own. */
    | { readonly kind: "extend" }
    /** The same for a machine that stands still when its state is loaded. */
    | { readonly kind: "wake" }
    /** A machine that takes another one's memory and state over, into a file of its own, and does not run. */
    | { readonly kind: "receive" }
}

/** The same path on Linux and macOS for a descriptor of the process itself. */
const descriptor = (fd: number): string => (process.platform === "linux" ? `/proc/self/fd/${fd}` : `/dev/fd/${fd}`)

/**
 * Accounting that nobody reads, and hardening of the guest's kernel against its own users. Under emulation they cost a short
 * execution a third of its time; the machine is the boundary, and one tenant is all that a kernel has.
 */
const sparing = [
  "psi=0",
  "audit=0",
  "nowatchdog",
  "lsm=landlock",
  "init_on_alloc=0",
  "hardened_usercopy=off",
  "randomize_kstack_offset=off",
  "transparent_hugepage=madvise"
]

/** The guest kernel's command line. */
export const kernelCommandLine = (input: Input): string => {
  const tscKhz = input.start.kind === "boot" ? input.start.tscKhz : null
  return [
    "quiet",
    "panic=-1",
    "console=hvc0",
    "mitigations=off",
    ...(input.accelerator === "tcg" ? sparing : []),
    ...(input.arch === "amd64" ? ["reboot=t", "no_timer_check", "tsc=reliable"] : []),
    // QEMU 7.2's emulation of cmpxchg16b now and then leaves a half of its operand in the flags (seen: EFLAGS = RAX | 0x202), and
    // then the kernel's allocator dies of a trap flag nobody set. So the kernel does without; programs that are built for it
    // (x86-64-v2, NumPy 2.5) still find it in the CPU.
    ...(input.arch === "amd64" && input.accelerator === "tcg" ? ["clearcpuid=cx16"] : []),
    // Without it the TSC's calibration fails now and then under emulation, and the boot hangs.
    ...(input.arch === "amd64" && input.accelerator === "tcg" && tscKhz !== null ? [`tsc_early_khz=${tscKhz}`] : [])
  ].join(" ")
}

const machine = (input: Input): ReadonlyArray<string> =>
  input.arch === "amd64"
    ? ["-M", "microvm,pic=off,acpi=on,isa-serial=off,memory-backend=ram"]
    : ["-M", "virt,gic-version=3,memory-backend=ram"]

const accelerator = (input: Input): ReadonlyArray<string> => {
  switch (input.accelerator) {
    case "kvm":
    case "hvf":
      return ["-accel", input.accelerator, "-cpu", "host"]
    case "tcg":
      // "Fast" string instructions are emulated a byte at a time, so that clearing a page is 4096 steps: better not to have them.
      // 64 MiB of translated code overflow, and all is translated again, when every interpreter has run for a while (90 MB).
      return ["-accel", "tcg,thread=single,tb-size=128", "-cpu", input.arch === "amd64" ? "max,-erms,-fsrm" : "max"]
  }
}

interface Disk {
  readonly name: string
  readonly fd: number
  readonly format: "raw" | "qcow2"
  readonly writable: boolean
  readonly backing?: string
}

const blockdev = (disk: Disk): ReadonlyArray<string> => [
  "-add-fd",
  `fd=${disk.fd},set=${disk.fd}`,
  "-blockdev",
  JSON.stringify({
    driver: disk.format,
    "node-name": disk.name,
    "read-only": !disk.writable,
    // The guest's flushes protect nothing: the disk lives as long as the VM.
    cache: { "no-flush": true },
    file: { driver: "file", filename: `/dev/fdset/${disk.fd}`, locking: "off", cache: { "no-flush": true } },
    ...(disk.backing === undefined ? {} : { backing: disk.backing })
  })
]

const disks = (input: Input): ReadonlyArray<Disk> => [
  { name: "root", fd: Fd.root, format: "raw", writable: false },
  { name: "scratch-base", fd: Fd.scratchBase, format: "qcow2", writable: false },
  ...(input.start.kind === "restore" || input.start.kind === "receive"
    ? [
        {
          name: "template-disk",
          fd: Fd.templateDisk,
          format: "qcow2",
          writable: false,
          backing: "scratch-base"
        } as const,
        { name: "scratch", fd: Fd.scratch, format: "qcow2", writable: true, backing: "template-disk" } as const
      ]
    : [{ name: "scratch", fd: Fd.scratch, format: "qcow2", writable: true, backing: "scratch-base" } as const])
]

const memory = (input: Input): ReadonlyArray<string> => {
  const cloned = input.start.kind === "restore" || input.start.kind === "wake"
  const share = cloned ? "share=off" : "share=on"
  const readonly = cloned && input.readonlyRam ? ",readonly=on,rom=off" : ""
  return [
    "-m",
    `${input.memoryMiB}`,
    "-object",
    `memory-backend-file,id=ram,size=${input.memoryMiB}M,mem-path=${descriptor(Fd.ram)},${share}${readonly}`
  ]
}

/** All of QEMU's arguments. */
export const commandLine = (input: Input): ReadonlyArray<string> => [
  ...machine(input),
  ...accelerator(input),
  "-smp",
  "1",
  "-nodefaults",
  "-no-user-config",
  "-display",
  "none",
  "-no-reboot",
  ...memory(input),
  ...disks(input).flatMap(blockdev),
  "-device",
  "virtio-blk-device,drive=root,serial=root",
  "-device",
  // A full host disk is the guest's I/O error, not a machine that stands still.
  "virtio-blk-device,drive=scratch,serial=scratch,werror=report,rerror=report",
  "-device",
  // The console and the channel; the guest looks through all there could be at every interrupt.
  "virtio-serial-device,max_ports=2",
  "-chardev",
  `socket,id=channel,fd=${Fd.channel}`,
  "-device",
  `virtserialport,chardev=channel,name=${input.portName}`,
  "-chardev",
  `socket,id=console,fd=${Fd.console}`,
  "-device",
  "virtconsole,chardev=console",
  "-chardev",
  "stdio,id=monitor,signal=off",
  "-mon",
  "chardev=monitor,mode=control",
  ...(input.seccomp ? ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"] : []),
  ...(input.start.kind === "boot"
    ? ["-kernel", descriptor(Fd.kernel), "-initrd", descriptor(Fd.initrd), "-append", kernelCommandLine(input)]
    : ["-incoming", "defer"]),
  ...(input.start.kind === "receive" || input.start.kind === "wake" ? ["-S"] : [])
]
