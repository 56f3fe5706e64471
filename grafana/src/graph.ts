/** The part of a picture that is drawn over time: axes, thresholds and lines, as SVG. */

import { COLORS, formatted } from './format.ts'

/** A line of a graph. */
export interface Line {
  readonly name: string
  readonly color: string
  /** Seconds since 1970 and value, in order of time. */
  readonly points: readonly (readonly [at: number, value: number])[]
}

/** What is drawn, besides where. */
export interface Graph {
  readonly unit: string
  readonly lines: readonly Line[]
  /** Colour from a value upwards. */
  readonly thresholds: readonly { readonly value: number | null; readonly color: string }[]
  /** Fill between the thresholds, besides drawing them. */
  readonly hasBand: boolean
  readonly isStacked: boolean
  readonly isLogarithmic: boolean
}

/** In pixels. */
export interface Box {
  readonly x: number
  readonly y: number
  readonly w: number
  readonly h: number
}

/** What turns times and values into places. */
interface Scale {
  readonly plot: Box
  readonly seconds: number
  /** The values that the axis names, from the lowest to the highest. */
  readonly ticks: readonly number[]
  xOf(at: number): number
  yOf(value: number): number
}

/** Draws into a box what happened between two instants, in seconds since 1970. */
export function graph(what: Graph, plot: Box, start: number, end: number): string {
  const lines = what.isStacked ? stacked(what.lines) : what.lines
  const scale = scaleOf({ ...what, lines }, plot, start, end)
  const drawn = lines.map((line) => lineOf(line, scale, what.isStacked)).reverse()
  return [axes(scale, what.unit), thresholds(what, scale), ...drawn].join('\n')
}

/** Each line on top of those before it. */
function stacked(lines: readonly Line[]): Line[] {
  const sums = new Map<number, number>()
  return lines.map((line) => ({
    ...line,
    points: line.points.map(([at, value]) => {
      const sum = (sums.get(at) ?? 0) + value
      sums.set(at, sum)
      return [at, sum] as const
    }),
  }))
}

function scaleOf(what: Graph, plot: Box, start: number, end: number): Scale {
  const ticks = what.isLogarithmic ? powersOfTen(what) : quarters(what)
  const place = what.isLogarithmic ? Math.log10 : (value: number) => value
  const [low, high] = [ticks[0] ?? 0, ticks.at(-1) ?? 1]
  const shareOf = (value: number) => (place(value) - place(low)) / (place(high) - place(low))
  return {
    plot,
    ticks,
    seconds: end - start,
    xOf: (at) => round(plot.x + (plot.w * (at - start)) / (end - start)),
    yOf: (value) => round(plot.y + plot.h * (1 - shareOf(Math.min(Math.max(value, low), high)))),
  }
}

/** Around all values and thresholds. */
function powersOfTen({ lines, thresholds }: Graph): number[] {
  const values = lines.flatMap(({ points }) => points.map(([, value]) => value)).filter((value) => value > 0)
  const all = [...values, ...marksOf(thresholds)]
  const low = Math.floor(Math.log10(all.length === 0 ? 1 : Math.min(...all)))
  const high = Math.ceil(Math.log10(Math.max(...all, 10 ** (low + 1))))
  return Array.from({ length: high - low + 1 }, (_, i) => 10 ** (low + i))
}

/** From 0 to a round number above all values; above a threshold too, when the values come near it. */
function quarters({ lines, thresholds }: Graph): number[] {
  const highest = Math.max(0, ...lines.flatMap(({ points }) => points.map(([, value]) => value)))
  const marks = marksOf(thresholds)
  const near = marks.filter((mark) => mark <= highest * 4 || mark === Math.min(...marks))
  const wanted = Math.max(highest, ...near) * 1.08 || 1
  const magnitude = 10 ** Math.floor(Math.log10(wanted))
  const factor = [1, 1.2, 1.5, 2, 3, 4, 5, 6, 8, 10].find((candidate) => candidate * magnitude >= wanted) ?? 10
  return [0, 0.25, 0.5, 0.75, 1].map((share) => share * factor * magnitude)
}

function marksOf(thresholds: Graph['thresholds']): number[] {
  return thresholds.flatMap(({ value }) => (value === null ? [] : [value]))
}

function axes({ plot, ticks, seconds, yOf }: Scale, unit: string): string {
  const rows = ticks.map((tick) => {
    const y = yOf(tick)
    return `<line x1="${plot.x}" y1="${y}" x2="${plot.x + plot.w}" y2="${y}" stroke="#25282e"/>
<text x="${plot.x - 6}" y="${y + 4}" text-anchor="end" font-size="10" fill="${COLORS['faint']}">${formatted(tick, unit)}</text>`
  })
  const columns = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const place = `x="${round(plot.x + plot.w * share)}" y="${plot.y + plot.h + 15}" text-anchor="middle"`
    return `<text ${place} font-size="10" fill="${COLORS['faint']}">${Math.round(seconds * share)} s</text>`
  })
  return [...rows, ...columns].join('\n')
}

function thresholds({ thresholds: steps, hasBand }: Graph, { plot, ticks, yOf }: Scale): string {
  const top = ticks.at(-1) ?? 0
  return steps
    .map(({ value, color }, i) => {
      if (value === null || value > top) return ''
      // The upper edge of a band is where the next one begins, and has the colour of the band.
      const edge = color === 'transparent' ? (steps[i - 1]?.color ?? color) : color
      const y = yOf(value)
      const upper = yOf(steps[i + 1]?.value ?? top)
      const band = `<rect x="${plot.x}" y="${upper}" width="${plot.w}" height="${round(y - upper)}"`
      const fill = hasBand && color !== 'transparent' ? `${band} fill="${COLORS[color] ?? color}" opacity="0.18"/>` : ''
      const line = `<line x1="${plot.x}" y1="${y}" x2="${plot.x + plot.w}" y2="${y}"`
      return `${fill}${line} stroke="${COLORS[edge] ?? edge}" stroke-dasharray="6 4"/>`
    })
    .join('\n')
}

function lineOf({ points, color }: Line, { plot, xOf, yOf }: Scale, isFilled: boolean): string {
  const [first] = points
  const last = points.at(-1)
  if (first === undefined || last === undefined) return ''
  const path = points.map(([at, value]) => `${xOf(at)},${yOf(value)}`).join(' ')
  const line = `<polyline points="${path}" fill="none" stroke="${color}" stroke-width="1.5"/>`
  if (!isFilled) return line
  const bottom = plot.y + plot.h
  const area = `${xOf(first[0])},${bottom} ${path} ${xOf(last[0])},${bottom}`
  return `<polygon points="${area}" fill="#181b1f"/><polygon points="${area}" fill="${color}" opacity="0.4"/>${line}`
}

function round(value: number): number {
  return Math.round(value * 10) / 10
}
