/** The dashboards: generated, current, complete, and asking for metrics that exist. */

import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { parse } from 'yaml'
import { PROVISIONED_DATASOURCE } from '../grafana/src/board.ts'
import { dashboardFiles } from '../grafana/src/dashboards.ts'
import { dashboards } from './support/prometheus/dashboards.ts'
import { metricsIn, unknownMetrics } from './support/prometheus/metrics.ts'

const GRAFANA = join(import.meta.dirname, '..', 'grafana')

test('the dashboards in the repository are those that their source makes', () => {
  const files = dashboardFiles()
  assert.deepEqual(readdirSync(join(GRAFANA, 'dashboards')).sort(), files.map(({ name }) => name).sort())
  for (const { name, content } of files) {
    assert.equal(readFileSync(join(GRAFANA, 'dashboards', name), 'utf8'), content, `${name} is old: npm run grafana`)
  }
})

test('each panel says what to do, and has a unit and a query', () => {
  for (const { name, panels } of dashboards()) {
    assert.ok(panels.length >= 9, name)
    for (const { title, description, queries, unit } of panels) {
      assert.ok(description.length > 60, `${name}: ${title} says too little`)
      assert.ok(queries.length > 0, `${name}: ${title} asks for nothing`)
      assert.ok(unit, `${name}: ${title} has no unit`)
    }
  }
})

test('the panels of a dashboard fill its 24 columns without a gap and without covering each other', () => {
  for (const { name, panels } of dashboards()) {
    const cells = panels.flatMap(({ title, at: { x, y, w, h } }) => {
      assert.ok(x + w <= 24, `${name}: ${title} is cut off`)
      return Array.from({ length: w * h }, (_, i) => `${x + (i % w)},${y + Math.floor(i / w)}`)
    })
    assert.equal(new Set(cells).size, cells.length, `${name} has panels that overlap`)
    const height = Math.max(...panels.map(({ at }) => at.y + at.h))
    assert.equal(cells.length, 24 * height, `${name} has gaps`)
  }
})

test('the panels ask for metrics that exist, and for nothing else', async () => {
  for (const { name, panels } of dashboards()) {
    for (const { title, queries } of panels) {
      for (const { expr } of queries) {
        assert.ok(metricsIn(expr).length > 0 || expr.includes('ALERTS'), `${name}: ${title} asks for no metric`)
        assert.deepEqual(await unknownMetrics(expr), [], `${name}: ${title}`)
      }
    }
  }
})

test('what must not be missed is marked: the healthy band of replays, 5 ms of Redis and 25 ms of DynamoDB', () => {
  const overview = dashboards().find(({ name }) => name === 'overview')
  const marksOf = (title: RegExp) =>
    overview?.panels.find((panel) => title.test(panel.title))?.thresholds.map(({ value }) => value)
  assert.deepEqual(marksOf(/^Replay rate by store/), [null, 0.005, 0.02])
  assert.deepEqual(marksOf(/^Registration p50 and p99/), [null, 5, 25])
})

test('Grafana finds the data source that the dashboards start with, and the folder that compose mounts', () => {
  const provisioning = (name: string) => parse(readFileSync(join(GRAFANA, 'provisioning', name), 'utf8'))
  assert.equal(provisioning('datasources/prometheus.yml').datasources[0].uid, PROVISIONED_DATASOURCE)
  assert.equal(provisioning('dashboards/dashboards.yml').providers[0].options.path, '/var/lib/grafana/dashboards')
  for (const { name, text } of dashboards()) assert.ok(text.includes(PROVISIONED_DATASOURCE), name)
})
