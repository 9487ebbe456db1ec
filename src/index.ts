/**
 * Run untrusted code in throw-away QEMU microVMs on your own machine.
 *
 * @since 0.1.0
 */

/** The admission of VMs against the host's memory and CPU. @since 0.1.0 */
export * as Capacity from "./Capacity.ts"

/** Which files have changed. @since 0.1.0 */
export * as Changes from "./Changes.ts"

/** The request to run code in a session, its output events, and its result or error. @since 0.1.0 */
export * as Execution from "./Execution.ts"

/** Files of a session: read, write, list, watch, and copy in and out. @since 0.1.0 */
export * as Files from "./Files.ts"

/** What this host can do. @since 0.1.0 */
export * as Host from "./Host.ts"

/** The images that guests run from. @since 0.1.0 */
export * as Image from "./Image.ts"

/** How much one execution may use. @since 0.1.0 */
export * as Limits from "./Limits.ts"

/** What a session may reach. @since 0.1.0 */
export * as NetworkPolicy from "./NetworkPolicy.ts"

/** What a session has in addition to the image, and which packages may be requested. @since 0.1.0 */
export * as Packages from "./Packages.ts"

/** A program that runs in a session, with pipes or a terminal. @since 0.1.0 */
export * as Process from "./Process.ts"

/** The servers in a session's guest, reached from the host. @since 0.1.0 */
export * as Ports from "./Ports.ts"

/** Clones that are ready before they are requested. @since 0.1.0 */
export * as Pool from "./Pool.ts"

/** What happened in one execution, as data. @since 0.1.0 */
export * as Receipt from "./Receipt.ts"

/** Where the receipts of all executions go. @since 0.1.0 */
export * as Receipts from "./Receipts.ts"

/** The service that runs untrusted code. @since 0.1.0 */
export * as Sandbox from "./Sandbox.ts"

/** The five error channels. @since 0.1.0 */
export * as SandboxError from "./SandboxError.ts"

/** Values that the code can use but never see. @since 0.1.0 */
export * as Secrets from "./Secrets.ts"

/** Exclusive use of one VM. @since 0.1.0 */
export * as Session from "./Session.ts"

/** The library's spans and metrics, by name. @since 0.1.0 */
export * as Telemetry from "./Telemetry.ts"

/** Saved sessions, to continue from. @since 0.1.0 */
export * as Snapshot from "./Snapshot.ts"

/** The sealed machines that clones start from. @since 0.1.0 */
export * as Template from "./Template.ts"
