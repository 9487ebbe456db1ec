/** Splits bytes into lines. */

/** Returns the complete lines so far and keeps the rest; `undefined` when a line is longer than `max` bytes. */
export const make = (max: number): ((bytes: Uint8Array) => ReadonlyArray<string> | undefined) => {
  let rest = Buffer.alloc(0)
  return (bytes) => {
    const all = rest.length === 0 ? Buffer.from(bytes) : Buffer.concat([rest, bytes])
    const lines: Array<string> = []
    let at = 0
    for (let end = all.indexOf(10); end !== -1; end = all.indexOf(10, at)) {
      lines.push(all.toString("utf8", at, end))
      at = end + 1
    }
    rest = Buffer.from(all.subarray(at))
    return rest.length > max ? undefined : lines
  }
}
