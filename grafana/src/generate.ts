/** `npm run grafana`: writes `grafana/dashboards/*.json`. */

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { dashboardFiles } from './dashboards.ts'

const FOLDER = join(import.meta.dirname, '..', 'dashboards')

for (const { name, content } of dashboardFiles()) writeFileSync(join(FOLDER, name), content)
