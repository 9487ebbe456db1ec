/**
 * QEMU's command line for one machine: a pure function, so that tests also cover accelerators that the test host lacks (KVM,
 * HVF). QEMU opens nothing by path: every file and socket is an inherited descriptor, so an unprivileged QEMU needs no access
 * to directories.
 */

/** The accelerators that QEMU can run a guest on. */
export type Accelerator = "kvm" | "hvf" | "tcg"

/** The descriptors that QEMU inherits; 0 and 1 are its QMP connection, and 2 is its stderr. */
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
  /** extend: the state to continue from */
  extended: 9,
  /** restore and receive: the template's disk, between the base and the clone's own */
  templateDisk: 9,
  /** restore, wake and receive: the state */
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
    /** Waits for a template's state; RAM already contains kernel and initrd. */
    | { readonly kind: "restore" }
    /** Waits for a template's state, on its own copies of the template's memory and disk. */
    | { readonly kind: "extend" }
    /** The same as `restore`, but stays paused when its state is loaded. */
    | { readonly kind: "wake" }
    /** Waits for the state of a copied machine, on the copy's memory and disk, and stays paused. */
    | { readonly kind: "receive" }
}

/** The path of a process's own descriptor, on Linux and macOS. */
const descriptor = (fd: number): string => (process.platform === "linux" ? `/proc/self/fd/${fd}` : `/dev/fd/${fd}`)

/**
 * Turns off unused accounting, and hardening of the guest's kernel against its own users. Under emulation they take a third of
 * the time of a short execution. The boundary is the VM, and each kernel has only one tenant.
 */
const sparing = [
  "psi=0",
  "audit=0",
  "nowatchdog",
  "lsm=landlock,yama",
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
    // QEMU 7.2's emulation of cmpxchg16b sometimes leaves half of its operand in the flags (seen: EFLAGS = RAX | 0x202), and then
    // a stray trap flag kills the kernel's allocator. So the kernel does not use it; programs that are built for it (x86-64-v2,
    // NumPy 2.5) still find it in the CPU.
    ...(input.arch === "amd64" && input.accelerator === "tcg" ? ["clearcpuid=cx16"] : []),
    // Without this the TSC's calibration sometimes fails under emulation, and the boot hangs.
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
      // "Fast" string instructions are emulated byte by byte, 4096 steps to clear a page, so the CPU does not offer them.
      // Translated code takes 90 MB after every interpreter has run for a while; a cache of 64 MiB overflows and is flushed.
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
    // The guest's flushes are useless: the disk exists only as long as the VM.
    cache: { "no-flush": true },
    file: { driver: "file", filename: `/dev/fdset/${disk.fd}`, locking: "off", cache: { "no-flush": true } },
    ...(disk.backing === undefined ? {} : { backing: disk.backing })
  })
]

/** A machine that has a template's disk, or a copy of one, below its own: all but those that become a template. */
const isCopy = ({ start: { kind } }: Input): boolean => kind === "restore" || kind === "wake" || kind === "receive"

const disks = (input: Input): ReadonlyArray<Disk> => [
  { name: "root", fd: Fd.root, format: "raw", writable: false },
  { name: "scratch-base", fd: Fd.scratchBase, format: "qcow2", writable: false },
  ...(isCopy(input)
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
  // When the host's disk is full, the guest gets an I/O error; the machine is not paused.
  "virtio-blk-device,drive=scratch,serial=scratch,werror=report,rerror=report",
  "-device",
  // Only the console and the channel: the guest checks all possible ports at every interrupt.
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
