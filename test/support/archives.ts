/** Archives as registries serve them: npm's tarballs and Python's wheels. */
import { createHash } from "node:crypto"
import { crc32, gzipSync } from "node:zlib"

/** An entry of a tar archive, of at most 512 bytes. */
const entryOf = (name: string, text: string): Buffer => {
  const header = Buffer.alloc(512)
  header.write(name)
  header.write("0000755", 100)
  header.write(text.length.toString(8).padStart(11, "0"), 124)
  header.write("        0", 148)
  const sum = header.reduce((total, byte) => total + byte, 0)
  header.write(`${sum.toString(8).padStart(6, "0")}\0`, 148)
  return Buffer.concat([header, Buffer.from(text.padEnd(512, "\0"))])
}

/** A package for npm: files of at most 512 bytes each. */
export const tarball = (files: Readonly<Record<string, string>>): Buffer =>
  gzipSync(
    Buffer.concat([
      ...Object.entries(files).map(([name, text]) => entryOf(`package/${name}`, text)),
      Buffer.alloc(1024)
    ])
  )

/** A zip archive whose entries are stored. */
const zip = (files: Readonly<Record<string, string>>): Buffer => {
  const entries: Array<Buffer> = []
  const directory: Array<Buffer> = []
  let at = 0
  for (const [name, text] of Object.entries(files)) {
    const content = Buffer.from(text)
    const common = Buffer.alloc(26)
    common.writeUInt16LE(20, 0)
    common.writeUInt32LE(0x21, 6)
    common.writeUInt32LE(crc32(content), 10)
    common.writeUInt32LE(content.length, 14)
    common.writeUInt32LE(content.length, 18)
    common.writeUInt16LE(name.length, 22)
    const local = Buffer.concat([Buffer.from("PK\x03\x04"), common, Buffer.from(name), content])
    const rest = Buffer.alloc(14)
    rest.writeUInt32LE(at, 10)
    directory.push(Buffer.concat([Buffer.from("PK\x01\x02\x14\x00"), common, rest, Buffer.from(name)]))
    entries.push(local)
    at += local.length
  }
  const listed = Buffer.concat(directory)
  const end = Buffer.alloc(18)
  end.writeUInt16LE(entries.length, 4)
  end.writeUInt16LE(entries.length, 6)
  end.writeUInt32LE(listed.length, 8)
  end.writeUInt32LE(at, 12)
  return Buffer.concat([...entries, listed, Buffer.from("PK\x05\x06"), end])
}

const digest = (text: string): string => createHash("sha256").update(text).digest("base64url")

/** A wheel that holds these files. */
export const wheel = (name: string, version: string, files: Readonly<Record<string, string>>): Buffer => {
  const info = `${name}-${version}.dist-info`
  const all: Record<string, string> = {
    ...files,
    [`${info}/METADATA`]: `Metadata-Version: 2.1\nName: ${name}\nVersion: ${version}\n`,
    [`${info}/WHEEL`]: "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
  }
  const record = Object.entries(all).map(([file, text]) => `${file},sha256=${digest(text)},${text.length}\n`)
  return zip({ ...all, [`${info}/RECORD`]: `${record.join("")}${info}/RECORD,,\n` })
}
