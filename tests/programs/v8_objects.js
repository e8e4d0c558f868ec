// Objects of many kinds, whose numbers the program prints. It writes V8's own snapshot of its heap to the
// file of the first argument, and then waits without running code. The second argument is the number of
// orders.
'use strict'
const fs = require('fs')
const v8 = require('v8')

class Order { constructor (n) { this.number = n; this.lines = [new Line(n), new Line(n + 1)]; this.note = 'order number ' + n } }
class Line { constructor (n) { this.amount = n * 1.5; this.text = null } }
class Special extends Order { constructor (n) { super(n); this.extra = { n } } }
class Registry extends Map {}
function Legacy (n) { this.n = n }
function makeAnonymous (n) { return new (class { constructor () { this.n = n } })() }
const LOCAL = class Named { constructor (n) { this.n = n } }

const count = Number(process.argv[3])
const kept = []
for (let n = 0; n < count; n++) kept.push(new Order(n))
for (let n = 0; n < count / 4; n++) kept.push(new Special(n))
for (let n = 0; n < 100; n++) {
  kept.push(new Legacy(n), makeAnonymous(n), new LOCAL(n), () => n, Symbol('mark ' + n), new Date(n), new RegExp('a' + n, 'g'))
  kept.push(new Map([[n, n]]), new Set([n]), new WeakMap([[kept, n]]), new Registry([[n, n]]), Promise.resolve(n), new Error('e' + n))
  kept.push(new Uint8Array(1000), new Float64Array(4), new ArrayBuffer(100), new DataView(new ArrayBuffer(16)), Buffer.from('x' + n))
  kept.push(new Proxy({ n }, {}), BigInt(n) << 100n, (function () { return arguments })(n), function * () {}(), Object(n), Object('s' + n))
  kept.push([1.5, 2.5, n + 0.25], ['a', n, {}], new Array(20).fill(n), Object.create(null), JSON.parse(`{"n":${n},"k${n}":[1,2]}`))
  kept.push('slice of a long text '.repeat(3).slice(5, 40 + n % 9), 'Zeichen ü€' + n, ['cons string', n, 'that is long enough'].join(' '))
}
const dictionary = {}
for (let n = 0; n < 2000; n++) dictionary['key' + n] = n // a dictionary of properties
const sparse = []
sparse[1e6] = 1 // a dictionary of elements
const large = [new Array(100000).fill(0.5), new Array(800000).fill(2.5), new Array(60000).fill('large'), 'long '.repeat(100000)] // large objects
const never = new Promise(() => {})
async function wait () { const own = new Order(-1); await never; return own }
kept.push(never, wait(), dictionary, sparse, large)
for (let n = 0; n < 5000; n++) Math.hypot(n, new Line(n).amount) // garbage, and code worth compiling

const quarter = Math.ceil(count / 4)
const made = { Order: count + 1, Special: quarter, Line: 2 * (count + 1 + quarter), Legacy: 100, Named: 100 }
const still = new Int32Array(new SharedArrayBuffer(4))
v8.writeHeapSnapshot(process.argv[2])
fs.writeSync(1, `${JSON.stringify(made)}\nready\n`)
Atomics.wait(still, 0, 0)
module.exports = kept
