/** The kinds of panel that the dashboards have. */

import {
  BigValueColorMode,
  BigValueGraphMode,
  GraphThresholdsStyleConfigBuilder,
  GraphThresholdsStyleMode,
  LegendDisplayMode,
  LegendPlacement,
  ReduceDataOptionsBuilder,
  ScaleDistribution,
  ScaleDistributionConfigBuilder,
  SortOrder,
  StackingConfigBuilder,
  StackingMode,
  TooltipDisplayMode,
  VisibilityMode,
  VizLegendOptionsBuilder,
  VizTooltipOptionsBuilder,
} from '@grafana/grafana-foundation-sdk/common'
import { type Threshold, ThresholdsConfigBuilder, ThresholdsMode } from '@grafana/grafana-foundation-sdk/dashboard'
import { DataqueryBuilder } from '@grafana/grafana-foundation-sdk/prometheus'
import { PanelBuilder as StatBuilder } from '@grafana/grafana-foundation-sdk/stat'
import { PanelBuilder as TimeseriesBuilder } from '@grafana/grafana-foundation-sdk/timeseries'

/** The data source that is chosen at the top of a dashboard; at first the provisioned one. */
export const DATASOURCE = { type: 'prometheus', uid: `\${datasource}` }

export interface Query {
  readonly expr: string
  /** What its series are called, from their labels: `{{store}} p99`. */
  readonly legend: string
}

export interface Panel {
  readonly title: string
  /** What it shows, and what to do about it. */
  readonly description: string
  readonly queries: readonly Query[]
  /** As Grafana calls it: `ms`, `reqps`, `percentunit`, `bytes`, `short`. */
  readonly unit: string
  /** Of 24. @default 12 */
  readonly width?: number
  /** Colour from a value upwards, the first one from below all values. */
  readonly thresholds?: readonly Threshold[]
}

export interface Timeseries extends Panel {
  /** How thresholds are drawn. @default lines */
  readonly band?: boolean
  readonly stacked?: boolean
  /** For values that are far apart, such as durations in trouble and without. */
  readonly logarithmic?: boolean
  /** Fixed colours of lines, by their names. */
  readonly colors?: Readonly<Record<string, string>>
}

/** A share of replays, with the band of healthy ones: 0.5 to 2 %. */
export const REPLAY_SHARE = {
  unit: 'percentunit',
  band: true,
  thresholds: [
    { value: null, color: 'transparent' },
    { value: 0.005, color: 'green' },
    { value: 0.02, color: 'transparent' },
  ],
} as const

/** What became of a claim, in the same colours everywhere. */
export const OUTCOME_COLORS = {
  claimed: 'green',
  replayed: 'blue',
  in_progress: 'yellow',
  mismatch: 'orange',
  taken_over: 'purple',
  uncertain: 'purple',
  error: 'red',
} as const

/** Lines at values, each of its colour. */
export function lines(...at: readonly (readonly [value: number, color: string])[]): readonly Threshold[] {
  return [{ value: null, color: 'transparent' }, ...at.map(([value, color]) => ({ value, color }))]
}

/** Green below a value, red from it on. */
export function atMost(value: number): readonly Threshold[] {
  return [
    { value: null, color: 'green' },
    { value, color: 'red' },
  ]
}

/** Values over time. */
export function timeseries(panel: Timeseries): TimeseriesBuilder {
  const { title, description, unit, width = 12, stacked = false, logarithmic = false, colors = {} } = panel
  const builder = new TimeseriesBuilder()
    .title(title)
    .description(description)
    .datasource(DATASOURCE)
    .targets(targetsOf(panel))
    .unit(unit)
    .span(width)
    .height(8)
    .fillOpacity(stacked ? 40 : 8)
    .showPoints(VisibilityMode.Never)
    .stacking(new StackingConfigBuilder().mode(stacked ? StackingMode.Normal : StackingMode.None))
    .legend(legend())
    .tooltip(new VizTooltipOptionsBuilder().mode(TooltipDisplayMode.Multi).sort(SortOrder.Descending))
  if (logarithmic) builder.scaleDistribution(new ScaleDistributionConfigBuilder().type(ScaleDistribution.Log).log(10))
  else builder.min(0)
  for (const [name, color] of Object.entries(colors)) {
    builder.overrideByName(name, [{ id: 'color', value: { mode: 'fixed', fixedColor: color } }])
  }
  return withThresholds(builder, panel)
}

function legend(): VizLegendOptionsBuilder {
  return new VizLegendOptionsBuilder()
    .showLegend(true)
    .displayMode(LegendDisplayMode.Table)
    .placement(LegendPlacement.Bottom)
    .calcs(['lastNotNull', 'max'])
}

function withThresholds(builder: TimeseriesBuilder, { thresholds = [], band = false }: Timeseries): TimeseriesBuilder {
  if (thresholds.length === 0) return builder
  const style = band ? GraphThresholdsStyleMode.DashedAndArea : GraphThresholdsStyleMode.Dashed
  return builder
    .thresholds(new ThresholdsConfigBuilder().mode(ThresholdsMode.Absolute).steps([...thresholds]))
    .thresholdsStyle(new GraphThresholdsStyleConfigBuilder().mode(style))
}

/** The newest value, large. */
export function stat(panel: Panel): StatBuilder {
  const { title, description, unit, width = 6, thresholds = [{ value: null, color: 'blue' }] } = panel
  return new StatBuilder()
    .title(title)
    .description(description)
    .datasource(DATASOURCE)
    .targets(targetsOf(panel))
    .unit(unit)
    .span(width)
    .height(4)
    .graphMode(BigValueGraphMode.Area)
    .colorMode(BigValueColorMode.Value)
    .reduceOptions(new ReduceDataOptionsBuilder().calcs(['lastNotNull']))
    .thresholds(new ThresholdsConfigBuilder().mode(ThresholdsMode.Absolute).steps([...thresholds]))
}

function targetsOf({ queries }: Panel): DataqueryBuilder[] {
  return queries.map(({ expr, legend }, i) =>
    new DataqueryBuilder()
      .expr(expr)
      .legendFormat(legend)
      .range()
      .refId(String.fromCharCode('A'.charCodeAt(0) + i)),
  )
}
