/** Run by store-conformance.test.ts in a child process: the suite on the broken store named by BROKEN_STORE. */

import { storeConformance } from '../../src/testing/store-conformance.ts'
import { BROKEN_STORES, MapStore } from './broken-stores.ts'

const { BROKEN_STORE = '' } = process.env
const store = BROKEN_STORE === '' ? new MapStore() : BROKEN_STORES[BROKEN_STORE]?.create()
if (store === undefined) throw new Error(`there is no broken store named ${BROKEN_STORE}`)

storeConformance(() => store, {
  sharedState: false,
  advance: (ms) => {
    store.now += ms
  },
  roundTrips: () => store.trips,
  writeUnknownVersion: (scopedKey) => store.plantUnknownVersion(scopedKey),
})
