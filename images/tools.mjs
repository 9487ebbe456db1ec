// What building an image needs on this host. One table, for setup.mjs (which may run on Node 20), for the build and for doctor.
import { accessSync, constants, statSync } from "node:fs"
import { isAbsolute, join } from "node:path"

/**
 * Each row: a Debian package and what it brings, any one of which is enough. A name is a program on the search path, an
 * absolute path is a file. `when` limits a row to users other than root, to an image for this host's architecture
 * (`native`), or to one for another architecture (`cross-amd64`, `cross-arm64`: the image's).
 */
const table = [
  { package: "mmdebstrap", brings: ["mmdebstrap"] },
  {
    package: "debian-archive-keyring",
    brings: ["/usr/share/keyrings/debian-archive-keyring.pgp", "/usr/share/keyrings/debian-archive-keyring.gpg"]
  },
  { package: "erofs-utils", brings: ["mkfs.erofs"] },
  { package: "e2fsprogs", brings: ["mkfs.ext4"] },
  { package: "qemu-utils", brings: ["qemu-img"] },
  { package: "xz-utils", brings: ["xz"] },
  { package: "util-linux", brings: ["flock"] },
  { package: "bash", brings: ["bash"] },
  { package: "dpkg", brings: ["dpkg-deb"] },
  { package: "tar", brings: ["tar"] },
  { package: "npm", brings: ["npm"] },
  { package: "golang-go", brings: ["go"] },
  { package: "gcc", brings: ["gcc"], when: "native" },
  { package: "libc6-dev", brings: ["/usr/include/stdlib.h"], when: "native" },
  { package: "gcc-x86-64-linux-gnu", brings: ["x86_64-linux-gnu-gcc"], when: "cross-amd64" },
  { package: "libc6-dev-amd64-cross", brings: ["/usr/x86_64-linux-gnu/include/stdlib.h"], when: "cross-amd64" },
  { package: "gcc-aarch64-linux-gnu", brings: ["aarch64-linux-gnu-gcc"], when: "cross-arm64" },
  { package: "libc6-dev-arm64-cross", brings: ["/usr/aarch64-linux-gnu/include/stdlib.h"], when: "cross-arm64" },
  { package: "fakeroot", brings: ["fakeroot"], when: "not-root" }
]

/** The rows that apply to an image for `arch`, on a host of architecture `host`, built by root or by another user. */
export const neededTools = ({ arch, host, root }) => {
  const compiler = arch === host ? "native" : `cross-${arch}`
  return table.filter(({ when }) => when === undefined || when === compiler || (when === "not-root" && !root))
}

const isFile = (path, mode) => {
  try {
    accessSync(path, mode)
    return statSync(path).isFile()
  } catch {
    return false
  }
}

/** Whether a program is in one of the directories. Relative ones are skipped: the current directory may hold anything. */
export const hasProgram = (name, directories) =>
  directories.some((directory) => isAbsolute(directory) && isFile(join(directory, name), constants.X_OK))

/** The rows of `neededTools` of which this host has nothing; programs are looked for in `directories`. */
export const missingTools = ({ arch, host, root, directories }) =>
  neededTools({ arch, host, root }).filter(
    ({ brings }) => !brings.some((it) => (isAbsolute(it) ? isFile(it, constants.F_OK) : hasProgram(it, directories)))
  )
