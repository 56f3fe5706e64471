/** All dashboards, as the files that Grafana reads. */

import type { DashboardBuilder } from '@grafana/grafana-foundation-sdk/dashboard'
import { dynamodb } from './dynamodb.ts'
import { migration } from './migration.ts'
import { overview } from './overview.ts'
import { redis } from './redis.ts'

const DASHBOARDS: Readonly<Record<string, () => DashboardBuilder>> = { overview, redis, dynamodb, migration }

/** Name and content of each file in `grafana/dashboards`. */
export function dashboardFiles(): { readonly name: string; readonly content: string }[] {
  return Object.entries(DASHBOARDS).map(([name, build]) => {
    const dashboard = build().build()
    const panels = dashboard.panels?.map((panel, i) => ({ id: i + 1, ...panel }))
    return { name: `${name}.json`, content: `${JSON.stringify({ ...dashboard, panels }, null, 2)}\n` }
  })
}
