import { MemoryStore } from '../src/index.ts'
import { storeConformance } from '../src/testing/store-conformance.ts'
import { TinyStore } from '../examples/tiny-store.ts'
let now = 0
storeConformance(() => new MemoryStore({ now: () => now }), { sharedState: false, keepsReferences: true, advance: (ms) => { now += ms } })
storeConformance(() => new TinyStore(), { sharedState: false })
