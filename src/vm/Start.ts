/** Starts VMs: boots the image, restores a template, or continues a parked machine. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Observe from "../internal/Observe.ts"
import { defaults } from "../Limits.ts"
import { Fd } from "../qemu/CommandLine.ts"
import type * as Machine from "../qemu/Machine.ts"
import type { Isolation } from "../Receipt.ts"
import type { SandboxError } from "../SandboxError.ts"
import * as Telemetry from "../Telemetry.ts"
import type { Booted, Remains, Shape, TemplateFiles, Vm } from "../Vm.ts"
import { type Opening, openParts, withOpen } from "./Descriptors.ts"
import { bootFailed } from "./Handover.ts"
import { counted, isolationOf, join, launch, type Launched } from "./Launch.ts"
import { bounded, load, restoreBound, seal, type Steps } from "./Migration.ts"

/** How long a boot may take until the interpreters are warm; emulation on busy cores is slow. */
const bootBound = "180 seconds"
/** The handover to a machine that will become a template. */
const handoverToBuild = (vm: Vm) =>
  vm.handover({ hostname: "template", env: {}, limits: defaults, network: null }, "build")

const sealable = (shape: Shape, vm: Vm, machine: Launched): Booted => ({
  ...vm,
  seal: (state, socketDirectory) => seal(shape, vm, machine, state, socketDirectory)
})

/**
 * Boots a machine from the image with new RAM and disk files, and waits until its interpreters are warm. `ram` must already
 * have its full size; `disk` is an empty overlay.
 */
export const boot = Effect.fn("Vm.boot")(function* (
  shape: Shape,
  files: { readonly ram: string; readonly disk: string },
  tscKhz: number | null
): Effect.fn.Return<Booted, SandboxError, Scope.Scope> {
  const { image } = shape
  const machine = yield* withOpen(
    [
      [files.ram, "r+"],
      [image.root, "r"],
      [image.scratch, "r"],
      [files.disk, "r+"],
      [image.kernel, "r"],
      [image.initrd, "r"]
    ],
    (fds) => launch(shape, { kind: "boot", tscKhz }, fds)
  )
  const vm = yield* join(isolationOf(shape), machine)
  yield* machine
    .commands({ execute: "qmp_capabilities" })
    .pipe(
      Effect.mapError(bootFailed("monitor", machine)),
      bounded(restoreBound, "monitor", machine),
      Effect.andThen(
        vm.greeting.pipe(Effect.mapError(bootFailed("boot", machine)), bounded(bootBound, "boot", machine))
      ),
      Effect.andThen(handoverToBuild(vm)),
      Effect.onError(machine.notStarted)
    )
  return sealable(shape, vm, machine)
})

/**
 * Continues from copies of a template's memory and disk, to be sealed as another template, so that nothing has to be booted
 * and warmed again.
 */
export const extend = Effect.fn("Vm.extend")(function* (
  shape: Shape,
  files: { readonly ram: string; readonly disk: string; readonly state: string }
): Effect.fn.Return<Booted, SandboxError, Scope.Scope> {
  const { image } = shape
  const machine = yield* withOpen(
    [
      [files.ram, "r+"],
      [image.root, "r"],
      [image.scratch, "r"],
      [files.disk, "r+"],
      [files.state, "r"]
    ],
    (fds) => launch(shape, { kind: "extend" }, fds)
  )
  const vm = yield* join(isolationOf(shape), machine)
  yield* load(machine, Fd.extended).pipe(Effect.andThen(handoverToBuild(vm)), Effect.onError(machine.notStarted))
  return sealable(shape, vm, machine)
})

/** Starts a clone from a template until its guest runs; `handover` then gives it an identity. */
export const restore = Effect.fn("Vm.restore")(function* (
  shape: Shape,
  template: TemplateFiles
): Effect.fn.Return<Vm, SandboxError, Scope.Scope> {
  const { image, qemu } = shape
  const parts = yield* openParts(template)
  const files: ReadonlyArray<Opening> = [
    [template.ram, qemu.atLeast(8, 2) ? "r" : "r+"],
    [image.root, "r"],
    [image.scratch, "r"],
    parts.overlay,
    parts.disk,
    // Reading moves the file's offset, so QEMU gets a descriptor of its own.
    [template.state, "r"]
  ]
  return yield* start({ shape, ...parts }, files, "restore")
}, Observe.timed(Telemetry.restoreDuration))

/** Starts a QEMU with these files from descriptor 5 on, loads the state from the last of them and continues the guest. */
export const start = Effect.fnUntraced(function* (
  remains: Remains,
  files: ReadonlyArray<Opening>,
  kind: "restore" | "wake",
  steps?: Steps
): Effect.fn.Return<Vm, SandboxError, Scope.Scope> {
  const { shape } = remains
  const machine = yield* withOpen(files, (fds) => launch(shape, { kind }, fds))
  const vm = yield* join(isolationOf(shape), machine, remains, steps?.firstStream)
  // The scope may stay open long after a failed start, so QEMU is killed at once.
  yield* load(machine, Fd.state, steps).pipe(Effect.onError(machine.notStarted))
  return vm
})

/** Makes a VM from a machine whose guest already runs; the test kit passes its fake machines here. */
export const over = Effect.fn("Vm.restore")(function* (
  isolation: Isolation,
  start: (ended: (end: Machine.End) => void) => Effect.Effect<Machine.Machine, SandboxError, Scope.Scope>
): Effect.fn.Return<Vm, SandboxError, Scope.Scope> {
  return yield* join(isolation, yield* counted(start))
}, Observe.timed(Telemetry.restoreDuration))
