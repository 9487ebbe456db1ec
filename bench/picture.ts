/** The distributions as an SVG: each measurement's samples on a logarithmic axis, the middle half as a box, the median as a line. */
import { type Measurement, quantile, short } from "./Measure.ts"

const row = 22
const left = 330
const plot = 620
const right = 90
const top = 46

const escape = (text: string): string => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;")

const fixed = (value: number): string => value.toFixed(1)

/** Draws a panel of measurements that have the same unit. */
const panel = (unit: string, measurements: ReadonlyArray<Measurement>, y: number): { svg: string; height: number } => {
  const values = measurements.flatMap((it) => it.samples).filter((value) => value > 0)
  const low = Math.floor(Math.log10(Math.min(...values)))
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))))
  const x = (value: number): number => left + (plot * (Math.log10(Math.max(value, 10 ** low)) - low)) / (high - low)
  const height = top + measurements.length * row + 20
  const parts: Array<string> = [`<text x="8" y="${y + 22}" class="h">${escape(unit)}</text>`]
  for (let power = low; power <= high; power++) {
    const at = fixed(x(10 ** power))
    parts.push(
      `<line x1="${at}" x2="${at}" y1="${y + top - 8}" y2="${y + height - 20}" class="g"/>`,
      `<text x="${at}" y="${y + top - 14}" class="t m">${power < 0 ? (10 ** power).toFixed(-power) : 10 ** power}</text>`
    )
  }
  measurements.forEach((it, index) => {
    const middle = y + top + index * row + row / 2
    const isFloor = measurements.some((other) => other.suite === it.suite && other.floor === it.name)
    const kind = isFloor ? "f" : "o"
    const at = (q: number): number => x(quantile(it.samples, q))
    const [p5, p25, p50, p75, p95] = [at(0.05), at(0.25), at(0.5), at(0.75), at(0.95)]
    parts.push(
      `<text x="${left - 10}" y="${fixed(middle + 4)}" class="t e">${escape(`${it.suite} · ${it.name}`)}</text>`,
      `<line x1="${fixed(p5)}" x2="${fixed(p95)}" y1="${middle}" y2="${middle}" class="w ${kind}"/>`,
      `<rect x="${fixed(p25)}" y="${middle - 6}" width="${fixed(Math.max(1, p75 - p25))}" height="12" class="b ${kind}"/>`,
      ...it.samples.map((value) => `<circle cx="${fixed(x(value))}" cy="${middle}" r="1.6" class="p"/>`),
      `<line x1="${fixed(p50)}" x2="${fixed(p50)}" y1="${middle - 8}" y2="${middle + 8}" class="d ${kind}"/>`,
      `<text x="${left + plot + 10}" y="${fixed(middle + 4)}" class="t">${short(quantile(it.samples, 0.5))}</text>`
    )
  })
  return { svg: parts.join("\n"), height }
}

const style = `
svg { background: #fff; font: 12px system-ui, sans-serif }
.h { font-weight: 600; font-size: 14px } .t { fill: #333 } .m { text-anchor: middle } .e { text-anchor: end }
.g { stroke: #e4e4e4 } .w { stroke-width: 1.5 } .d { stroke-width: 2.5 } .p { fill: #000; fill-opacity: .25 }
.b { fill-opacity: .35 } .o { stroke: #1f6feb } rect.o { fill: #1f6feb; stroke: none } .f { stroke: #999 } rect.f { fill: #999; stroke: none }`

/** Draws the picture; `title` has the conditions of the run. Floors are grey. */
export const picture = (title: string, measurements: ReadonlyArray<Measurement>): string => {
  const drawn = measurements.filter((it) => it.samples.some((value) => value > 0))
  let y = 30
  const panels = [...Map.groupBy(drawn, (it) => it.unit ?? "ms")].map(([unit, own]) => {
    const { height, svg } = panel(unit, own, y)
    y += height
    return svg
  })
  const width = left + plot + right
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${y}" viewBox="0 0 ${width} ${y}">` +
    `<style>${style}</style>\n<text x="8" y="22" class="t">${escape(title)}</text>\n${panels.join("\n")}\n</svg>\n`
  )
}
