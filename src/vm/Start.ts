/** Starts VMs: by booting the image, from a template, and again from what was parked. */
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
/** What is told to a machine that will be a template. */
const handoverToBuild = (vm: Vm) =>
  vm.handover({ hostname: "template", env: {}, limits: defaults, network: null }, "build")

const sealable = (shape: Shape, vm: Vm, machine: Launched): Booted => ({
  ...vm,
  seal: (state, socketDirectory) => seal(shape, vm, machine, state, socketDirectory)
})

/**
 * Boots a machine from the image onto new RAM and disk files, and waits until its interpreters are warm. `ram` must have
 * its full size already; `disk` is an empty overlay.
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
 * Goes on with copies of a template's memory and disk, to be sealed as another template: what is in the first one need not be
 * booted and warmed again.
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

/** Starts a clone from a template, up to the point where its guest runs; `handover` makes it somebody's. */
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
    // Reading moves the place in the file, so QEMU has its own.
    [template.state, "r"]
  ]
  return yield* start({ shape, ...parts }, files, "restore")
}, Observe.timed(Telemetry.restoreDuration))

/** Starts a QEMU with these files, from descriptor 5 on, loads the state in the last of them and lets its guest run. */
export const start = Effect.fnUntraced(function* (
  kept: Remains,
  files: ReadonlyArray<Opening>,
  kind: "restore" | "wake",
  steps?: Steps
): Effect.fn.Return<Vm, SandboxError, Scope.Scope> {
  const { shape } = kept
  const machine = yield* withOpen(files, (fds) => launch(shape, { kind }, fds))
  const vm = yield* join(isolationOf(shape), machine, kept, steps?.firstStream)
  // It is of no use to anybody, however long the scope stays open.
  yield* load(machine, Fd.state, steps).pipe(Effect.onError(machine.notStarted))
  return vm
})

/** A VM over a machine that somebody else makes, and whose guest runs: what the test kit is made of. */
export const over = Effect.fn("Vm.restore")(function* (
  isolation: Isolation,
  start: (ended: (end: Machine.End) => void) => Effect.Effect<Machine.Machine, SandboxError, Scope.Scope>
): Effect.fn.Return<Vm, SandboxError, Scope.Scope> {
  return yield* join(isolation, yield* counted(start))
}, Observe.timed(Telemetry.restoreDuration))
