/** The dashboards as Grafana reads them, reduced to what the tests ask about and the pictures show. */

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

export interface Threshold {
  readonly value: number | null
  readonly color: string
}

export interface DashboardPanel {
  readonly type: string
  readonly title: string
  readonly description: string
  readonly unit: string
  readonly queries: readonly { readonly expr: string; readonly legend: string }[]
  readonly thresholds: readonly Threshold[]
  /** `dashed`, `dashed+area` or `off`. */
  readonly thresholdsStyle: string
  readonly isStacked: boolean
  readonly isLogarithmic: boolean
  /** Fixed colours of lines, by their names. */
  readonly colors: Readonly<Record<string, string>>
  /** In cells of the 24 columns wide grid. */
  readonly at: { readonly x: number; readonly y: number; readonly w: number; readonly h: number }
}

/** A choice at the top of a dashboard. */
export interface DashboardVariable {
  readonly name: string
  readonly type: string
  readonly query: string
  readonly current: { readonly value: string }
  /** What "All" is filled in as; without it all values that were found. */
  readonly allValue?: string
}

export interface Dashboard {
  readonly name: string
  readonly title: string
  readonly panels: readonly DashboardPanel[]
  readonly variables: readonly DashboardVariable[]
  /** The file as it is. */
  readonly text: string
}

/** The parts of Grafana's format that are read here. */
interface DashboardJson {
  readonly title: string
  readonly panels: readonly PanelJson[]
  readonly templating: { readonly list: readonly DashboardVariable[] }
}

interface PanelJson {
  readonly type: string
  readonly title: string
  readonly description: string
  readonly gridPos: DashboardPanel['at']
  readonly targets: readonly { readonly expr: string; readonly legendFormat: string }[]
  readonly fieldConfig: {
    readonly defaults: {
      readonly unit: string
      readonly thresholds?: { readonly steps: readonly Threshold[] }
      readonly custom?: {
        readonly thresholdsStyle?: { readonly mode: string }
        readonly stacking?: { readonly mode: string }
        readonly scaleDistribution?: { readonly type: string }
      }
    }
    readonly overrides: readonly {
      readonly matcher: { readonly options: string }
      readonly properties: readonly { readonly value: { readonly fixedColor: string } }[]
    }[]
  }
}

const FOLDER = join(import.meta.dirname, '..', '..', '..', 'grafana', 'dashboards')

/** All of them, from the files. */
export function dashboards(): Dashboard[] {
  return readdirSync(FOLDER).map((file) => {
    const text = readFileSync(join(FOLDER, file), 'utf8')
    const { title, panels, templating } = JSON.parse(text) as DashboardJson
    return { name: file.replace('.json', ''), title, text, panels: panels.map(panelOf), variables: templating.list }
  })
}

function panelOf({ type, title, description, gridPos, targets, fieldConfig }: PanelJson): DashboardPanel {
  const { unit, thresholds, custom } = fieldConfig.defaults
  const colors = fieldConfig.overrides.map(({ matcher, properties }) => [
    matcher.options,
    properties[0]?.value.fixedColor,
  ])
  return {
    type,
    title,
    description,
    unit,
    queries: targets.map(({ expr, legendFormat }) => ({ expr, legend: legendFormat })),
    thresholds: thresholds?.steps ?? [],
    thresholdsStyle: custom?.thresholdsStyle?.mode ?? 'off',
    isStacked: custom?.stacking?.mode === 'normal',
    isLogarithmic: custom?.scaleDistribution?.type === 'log',
    colors: Object.fromEntries(colors),
    at: gridPos,
  }
}
