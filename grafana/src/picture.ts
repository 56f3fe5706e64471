/** A dashboard as a picture (SVG) of given data, near enough to what Grafana draws to be recognised. */

import { COLORS, escaped, formatted } from './format.ts'
import { type Box, type Graph, graph } from './graph.ts'

export interface PicturePanel extends Graph {
  readonly title: string
  /** `stat` shows the newest value, everything else is drawn over time. */
  readonly type: string
  /** In cells of a grid of 24 columns. */
  readonly at: Box
}

const CELL = { w: 50, h: 32 }
const GAP = 6
const HEADER = 44
const LEGEND_ROW = 15
const MAX_LEGEND = 9
/** Characters that a name may have for three of them to fit side by side in half a dashboard. */
const SHORT_NAME = 20
/** Of a character of a legend, in pixels, and of what stands beside the name there. */
const CHARACTER = 6
const BESIDE_NAME = 75

/** The whole dashboard between two instants, in seconds since 1970. */
export function picture(title: string, panels: readonly PicturePanel[], start: number, end: number): string {
  const width = 24 * CELL.w
  const height = HEADER + Math.max(...panels.map(({ at }) => at.y + at.h)) * CELL.h
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"
 font-family="Inter, 'DejaVu Sans', Arial, sans-serif" font-size="11" fill="${COLORS['text']}">
<title>${escaped(title)}</title>
<rect width="100%" height="100%" fill="#111217"/>
<text x="12" y="29" font-size="18">${escaped(title)}</text>
${panels.map((panel) => panelPicture(panel, start, end)).join('\n')}
</svg>
`
}

function panelPicture(panel: PicturePanel, start: number, end: number): string {
  const { at, title, type } = panel
  const box = {
    x: at.x * CELL.w + GAP / 2,
    y: HEADER + at.y * CELL.h,
    w: at.w * CELL.w - GAP,
    h: at.h * CELL.h - GAP,
  }
  return `<g><rect x="${box.x}" y="${box.y}" width="${box.w}" height="${box.h}" rx="3" fill="#181b1f" stroke="#2c2f36"/>
<text x="${box.x + 10}" y="${box.y + 18}" font-size="12" font-weight="600">${escaped(title)}</text>
${type === 'stat' ? stat(panel, box) : graphWithLegend(panel, box, start, end)}</g>`
}

function stat({ lines, thresholds, unit }: PicturePanel, box: Box): string {
  return lines
    .map(({ points }, i) => {
      const value = points.at(-1)?.[1] ?? 0
      const color = thresholds.findLast((step) => step.value === null || value >= step.value)?.color ?? 'text'
      const place = `x="${box.x + (box.w * (i + 0.5)) / lines.length}" y="${box.y + box.h - 28}" text-anchor="middle"`
      return `<text ${place} font-size="34" fill="${COLORS[color] ?? color}">${formatted(value, unit)}</text>`
    })
    .join('\n')
}

function graphWithLegend(panel: PicturePanel, box: Box, start: number, end: number): string {
  const shown = panel.lines.slice(0, MAX_LEGEND)
  const columns = shown.some(({ name }) => name.length > SHORT_NAME) ? 2 : 3
  const rows = Math.ceil(shown.length / columns)
  const plot = { x: box.x + 62, y: box.y + 32, w: box.w - 76, h: box.h - 56 - rows * LEGEND_ROW }
  const width = (box.w - 20) / columns
  const names = shown.map(({ name, color, points }, i) => {
    const x = Math.round(box.x + 12 + (i % columns) * width)
    const y = box.y + box.h - 8 - (rows - 1 - Math.floor(i / columns)) * LEGEND_ROW
    const value = formatted(points.at(-1)?.[1] ?? 0, panel.unit)
    return `<rect x="${x}" y="${y - 6}" width="12" height="3" fill="${color}"/>
<text x="${x + 17}" y="${y}" font-size="10">${cut(name, width)} <tspan fill="${COLORS['faint']}">${value}</tspan></text>`
  })
  return [graph(panel, plot, start, end), ...names].join('\n')
}

/** As much of a name as fits into a column of the legend. */
function cut(name: string, width: number): string {
  const fitting = Math.floor((width - BESIDE_NAME) / CHARACTER)
  return escaped(name.length > fitting ? `${name.slice(0, fitting - 1)}…` : name)
}
