/** Home regions: three servers as three regions. */

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { homeRegion } from '../src/stores/dynamodb/regions.ts'

const THREE = ['eu-west-1', 'us-east-1', 'ap-south-1']
const keys = Array.from({ length: 9_000 }, (_, i) => `idem#v1#acct_${i % 7}#POST:/payments#key-${i}`)

describe('the home region of a key', () => {
  it('is the same in whatever order a node lists the regions', () => {
    for (const key of keys.slice(0, 500)) {
      assert.equal(homeRegion(THREE, key), homeRegion(THREE.toReversed(), key), key)
    }
  })

  it('is each of them for about as many keys', () => {
    for (const region of THREE) {
      const own = keys.filter((key) => homeRegion(THREE, key) === region).length
      // 3,000 expected, standard deviation 45: six of them either way.
      assert.ok(own > 2_730 && own < 3_270, `${region} has ${own} of ${keys.length}`)
    }
  })

  it('stays where it is when another region goes', () => {
    const [gone = '', ...left] = THREE
    for (const key of keys) {
      const home = homeRegion(THREE, key)
      if (home !== gone) assert.equal(homeRegion(left, key), home, key)
    }
  })
})
