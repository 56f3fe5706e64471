/** The alerts: right for promtool, tested one by one, and each with a page that says what to do. */

import assert from 'node:assert/strict'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { parse } from 'yaml'
import { promtool } from './support/prometheus/binaries.ts'
import { metricsIn, unknownMetrics } from './support/prometheus/metrics.ts'
import { newFolder } from './support/redis/processes.ts'

interface Rule {
  readonly alert: string
  readonly expr: string
  readonly labels: { readonly severity?: string }
  readonly annotations: Readonly<Record<string, string>>
}

interface RuleTests {
  readonly tests: readonly { readonly name: string }[]
}

const root = join(import.meta.dirname, '..')
const RULES = join(root, 'grafana', 'alerts', 'idempotency.yml')
const RULE_TESTS = join(root, 'grafana', 'alerts', 'tests', 'idempotency.test.yml')
const rulesText = readFileSync(RULES, 'utf8')
const rules = (parse(rulesText) as { groups: { rules: Rule[] }[] }).groups.flatMap((group) => group.rules)
const ruleTests = parse(readFileSync(RULE_TESTS, 'utf8')) as RuleTests

test('promtool finds no fault with the rules', async () => {
  await promtool('check', 'rules', RULES)
})

test('each alert fires when it should, and is quiet when it should be', async () => {
  await promtool('test', 'rules', RULE_TESTS)
})

for (const { alert, expr } of rules) {
  test(`the tests of ${alert} notice when it can no longer fire, and when it always does`, async () => {
    const names = ruleTests.tests.map(({ name }) => name)
    assert.equal(names.filter((name) => name.startsWith(`${alert} fires: `)).length, 1, 'a test in which it fires')
    assert.equal(
      names.filter((name) => name.startsWith(`${alert} is quiet: `)).length,
      1,
      'a test in which it is quiet',
    )
    await assert.rejects(testWith(alert, `(${expr}) and on () (vector(1) > 1)`), /got: nil/)
    await assert.rejects(testWith(alert, `(${expr}) or on () vector(1)`), /exp: nil/)
  })
}

/** Runs the tests of one alert with its expression replaced. */
async function testWith(alert: string, expr: string): Promise<void> {
  const document = parse(rulesText) as { groups: { rules: { alert: string; expr: string }[] }[] }
  for (const rule of document.groups.flatMap((group) => group.rules)) if (rule.alert === alert) rule.expr = expr
  const folder = newFolder('alerts')
  // JSON is YAML.
  writeFileSync(join(folder, 'rules.yml'), JSON.stringify(document))
  const tests = ruleTests.tests.filter(({ name }) => name.startsWith(`${alert} `))
  writeFileSync(join(folder, 'tests.yml'), JSON.stringify({ ...ruleTests, rule_files: ['rules.yml'], tests }))
  await promtool('test', 'rules', join(folder, 'tests.yml'))
}

test('each alert says how bad it is, what happened, and which page to open', () => {
  for (const { alert, labels, annotations } of rules) {
    assert.match(labels.severity ?? '', /^(warning|critical)$/, alert)
    assert.ok(annotations['summary'], `${alert} has no summary`)
    assert.ok(annotations['description'], `${alert} has no description`)
    assert.equal(annotations['runbook_url'], `docs/runbooks/${alert}.md`)
  }
})

test('each alert has a page, and each page an alert', () => {
  const pages = readdirSync(join(root, 'docs', 'runbooks')).filter((name) => name !== 'README.md')
  assert.deepEqual(pages.sort(), rules.map(({ alert }) => `${alert}.md`).sort())
})

test('each page says what the alert means, what to check, what to do and what not to do', () => {
  for (const { alert } of rules) {
    const page = readFileSync(join(root, 'docs', 'runbooks', `${alert}.md`), 'utf8')
    const headings = [...page.matchAll(/^#+ (.*)$/gm)].map(([, heading]) => heading)
    assert.deepEqual(headings, [alert, 'What it means', 'What to check', 'What to do', 'What not to do'], alert)
  }
})

test('the index of the pages has each of them', () => {
  const index = readFileSync(join(root, 'docs', 'runbooks', 'README.md'), 'utf8')
  for (const { alert } of rules) assert.ok(index.includes(`(${alert}.md)`), `${alert} is not in the index`)
})

test('the alerts ask for metrics that exist, and for nothing else', async () => {
  for (const { alert, expr } of rules) {
    assert.ok(metricsIn(expr).length > 0, `${alert} asks for no metric`)
    assert.deepEqual(await unknownMetrics(expr), [], alert)
  }
})
