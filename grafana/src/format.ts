/** Colours and units as Grafana has them, as far as the dashboards use them. */

/** By the names that Grafana gives them; `text` and `faint` are ours. */
export const COLORS: Readonly<Record<string, string>> = {
  green: '#73bf69',
  blue: '#5794f2',
  yellow: '#f2cc0c',
  orange: '#ff9830',
  red: '#f2495c',
  purple: '#b877d9',
  text: '#ccccdc',
  faint: '#8e9099',
}

/** For lines without a colour of their own, in this order. */
export const PALETTE = [
  '#73bf69',
  '#5794f2',
  '#f2cc0c',
  '#ff9830',
  '#f2495c',
  '#b877d9',
  '#8ab8ff',
  '#ffa6b0',
  '#c0d8ff',
] as const

/** A value with its unit. */
export function formatted(value: number, unit: string): string {
  switch (unit) {
    case 'percentunit':
      return `${short(value * 100)} %`
    case 'ms':
      return `${short(value)} ms`
    case 'reqps':
    case 'ops':
      return `${short(value)}/s`
    case 'bytes':
      return bytes(value)
    default:
      return short(value)
  }
}

function bytes(value: number): string {
  if (value >= 2 ** 20) return `${short(value / 2 ** 20)} MiB`
  if (value >= 2 ** 10) return `${short(value / 2 ** 10)} KiB`
  return `${short(value)} B`
}

function short(value: number): string {
  return String(Number(value.toPrecision(3)))
}

/** Text for an SVG. */
export function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
}
