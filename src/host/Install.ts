/** Shell commands that install what is missing, for this system's package manager. */
import { readFileSync } from "node:fs"
import type { Architecture } from "./Model.ts"

/** The families of systems whose package names are known. */
type Family = "debian" | "fedora" | "arch" | "alpine" | "suse" | "macos" | "other"

/** From /etc/os-release: its ID, else the first known one in its ID_LIKE. */
export const familyOf = (osRelease: string): Family => {
  const value = (key: string) => new RegExp(`^${key}="?([^"\n]*)"?$`, "m").exec(osRelease)?.[1] ?? ""
  for (const id of [value("ID"), ...value("ID_LIKE").split(" ")]) {
    if (id === "debian" || id === "ubuntu") return "debian"
    if (id === "fedora" || id === "rhel" || id === "centos") return "fedora"
    if (id === "arch" || id === "alpine") return id
    if (id.startsWith("opensuse") || id === "suse") return "suse"
  }
  return "other"
}

const family = (): Family => {
  if (process.platform === "darwin") return "macos"
  try {
    return familyOf(readFileSync("/etc/os-release", "utf8"))
  } catch {
    return "other"
  }
}

const installers = {
  debian: "apt-get install -y",
  fedora: "dnf install -y",
  arch: "pacman -S --needed",
  alpine: "apk add",
  suse: "zypper install -y"
}

const install = (manager: keyof typeof installers, packages: ReadonlyArray<string>): string =>
  `${process.geteuid?.() === 0 ? "" : "sudo "}${installers[manager]} ${packages.join(" ")}`

const qemuPackages: Record<keyof typeof installers, Record<Architecture, string>> = {
  debian: { amd64: "qemu-system-x86", arm64: "qemu-system-arm" },
  fedora: { amd64: "qemu-system-x86-core", arm64: "qemu-system-aarch64-core" },
  arch: { amd64: "qemu-system-x86", arm64: "qemu-system-aarch64" },
  alpine: { amd64: "qemu-system-x86_64", arm64: "qemu-system-aarch64" },
  suse: { amd64: "qemu-x86", arm64: "qemu-arm" }
}

/** Installs QEMU for guests of this architecture. */
export const installQemu = (guest: Architecture): string => {
  const system = family()
  if (system === "macos") return "brew install qemu"
  if (system === "other") return `install the package with qemu-system-${guest === "arm64" ? "aarch64" : "x86_64"}`
  return install(system, [qemuPackages[system][guest]])
}

/** Installs Debian's packages with the tools that build an image. */
export const installBuildTools = (packages: ReadonlyArray<string>): string =>
  family() === "debian" ? install("debian", packages) : "pull a prebuilt image, or build it on Debian or Ubuntu"
