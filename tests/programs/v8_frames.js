// A busy program: `v8_frames.js ADDON MODE STOPS SEED`. It calls itself in all ways that JavaScript has.
// Mode stop: it prints its stack, and stops itself. Mode late: it prints the stack after each stop. Modes abort and fault: it ends at the
// first stop. Mode free: it runs on. Mode calls: it calls the addon STOPS times for each line of input, and prints the stacks of these calls.
// With a fifth argument, `worker`, a worker does so.
'use strict'
const { Worker, isMainThread } = require('worker_threads')
if (isMainThread && process.argv[6] === 'worker') return void new Worker(__filename, { argv: process.argv.slice(2) })
const native = require(process.argv[2])
const mode = process.argv[3], stops = Number(process.argv[4])
const fs = require('fs')
const EventEmitter = require('events')
Error.stackTraceLimit = 300
function structured (error, sites) {
  return sites.map(one => [one.getFunctionName() || '', one.getFileName() || '', one.getLineNumber() || 0, one.isAsync ? !!one.isAsync() : false])
}
let left = mode === 'free' ? 1e15 : mode === 'calls' ? 20000 : 100
let done = 0, seed = Number(process.argv[5])
function random (most) {
  seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff
  return (seed >> 8) % most
}
function show (error) {
  Error.prepareStackTrace = structured
  const text = JSON.stringify(error.stack)
  Error.prepareStackTrace = undefined
  fs.writeSync(1, text + '\n')
}
const ends = { stop: native.stop, late: native.stop, abort: () => process.abort(), fault: native.fault }
const end = ends[mode]
function next () { if (++done >= stops) process.exit(0); left = 100 + random(20000) }
const calls = new Map()
function note () {
  Error.prepareStackTrace = structured
  const frames = JSON.stringify(new Error('x').stack.slice(1).filter(one => !one[3]).map(one => one.slice(0, 3)))
  Error.prepareStackTrace = undefined
  calls.set(frames, (calls.get(frames) || 0) + 1)
  return 30000 + 8 * (done % 4)
}
function wait (text) { fs.writeSync(1, text); if (!fs.readSync(0, Buffer.alloc(1), 0, 1)) process.exit(0) }
function call () {
  if (!done) wait('ready\n')
  native.probe(note())
  if (global.gc && done % 3 === 1) global.gc()
  if (++done % stops === 0) wait(JSON.stringify(Array.from(calls, ([frames, count]) => [count, 0, JSON.parse(frames)])) + '\ndone\n')
  left = 100 + random(20000)
}
function halt () { if (mode === 'calls') return call(); if (mode !== 'late') show(new Error('x')); end(); if (mode === 'late') show(new Error('x')); next() }
function tick (x) {
  if (--left <= 0) halt()
  return x + 1
}
// Small functions that are inlined
function one (x) { return two(x) + 1 }
const two = x => three(x, 1) + 1
function three (x) {
  return tick(
    x)
}
class Base {
  constructor (depth) {
    this.value = run(depth)
  }

  method (depth) {
    return run(depth) + 1
  }

  static make (depth) { return new this(depth) }
  get property () { return run(this.depth) }
  set property (depth) { this.value = run(depth) }
}
class Derived extends Base {
  constructor (depth) {
    super(depth - 1)
    this.depth = 1
  }

  method (depth) { return super.method(depth - 1) }
  toString () { return 'a' + run(this.depth) }
  toJSON () { return run(this.depth) }
  [Symbol.toPrimitive] (hint) { return run(this.depth) }
  * [Symbol.iterator] () { yield run(this.depth); yield * [1, 2] }
}
const derived = new (class extends Derived { })(1)
const emitter = new EventEmitter()
emitter.on('event', function onEvent (depth) { run(depth) })
const proxy = new Proxy({}, { get (target, name) { return run(Number(name.slice(1))) } })
const bound = function toBind (a, depth) { return run(depth) }.bind(null, 1)
const evaluated = eval('(function evaluated (depth) {\n return run(depth) })')
const made = new Function('run', 'depth', 'return run(depth)')
function extra () { return run(arguments[1]) }
function fewer (depth, b, c) {
  return run(depth)
}
function * generate (depth) {
  const x = yield run(depth)
  yield x
}
function guarded (depth) {
  try { run(depth); throw new Error('x') } catch (error) {
    return run(depth - 1)
  } finally { random(2) }
}
function spread (...all) { return run(...all) }
function defaults (depth, value = run(depth)) { return value }
function tagged (strings, depth) { return run(depth) }
// Functions that have the same source, and names that the program computes
const shown = ['first', 'second', 'δ'].map(name => ({ [name]: depth => run(depth) })[name])
class Computed {
  ['method' + 1] (depth) { return run(depth) }
  static ['made' + 1] (depth) { return run(depth) }
  get ['read' + 1] () { return run(derived.depth) }
}
const computed = new Computed()
const literal = { ['inLiteral' + 1] (depth) { return run(depth) } }
const renamed = Object.defineProperty(function original (depth) { return run(depth) }, 'name', { value: 'renamed' })
function order (a, b) { run(1); return a - b }
class Fields { field = run(derived.depth) }
const ways = [
  depth => { derived.depth = depth - 2; return new Fields().field },
  depth => one(depth),
  depth => { let sum = 0; for (let i = 0; i < 3; i++) sum += one(i); return sum },
  depth => new Base(depth).value,
  depth => new Derived(depth).value,
  depth => derived.method(depth),
  depth => Base.make(depth).value,
  depth => { derived.depth = depth - 1; return derived.property },
  depth => { derived.property = depth - 1; return 1 },
  depth => [1, 2].map(x => run(depth - x)).length,
  depth => { let sum = 0; [1, 2].forEach(function (x) { sum += run(depth - x) }); return sum },
  depth => [1, 2].reduce((sum, x) => sum + run(depth - 1), 0),
  depth => [3, 1, 2].sort(order)[0],
  depth => [1, 2, 3].filter(x => x > 2 && run(depth - 1)).length,
  depth => [1, 2, 3].find(x => x === 2 && run(depth - 1) > 1e9) || 1,
  depth => bound(depth - 1),
  depth => fewer.call(null, depth - 1),
  depth => extra.apply(null, [1, depth - 1, 3]),
  depth => Reflect.apply(extra, null, [1, depth - 1]),
  depth => Reflect.construct(Base, [depth - 1], Derived).value,
  depth => proxy['x' + (depth - 1)],
  depth => { derived.depth = depth - 2; return `${derived}`.length },
  depth => { derived.depth = depth - 2; return derived * 2 },
  depth => { derived.depth = depth - 2; return JSON.stringify(derived).length },
  depth => JSON.parse('[1,2]', (key, value) => { if (key === '1') run(depth - 1); return value }).length,
  depth => 'abc'.replace(/b/, () => String(run(depth - 1))).length,
  depth => { derived.depth = depth - 2; const [a] = derived; return a },
  depth => { const made = generate(depth - 1); made.next(); return made.next(2).value },
  depth => guarded(depth - 1),
  depth => spread(depth - 1, 2, 3),
  depth => defaults(depth - 1),
  depth => tagged`a${depth - 1}b`,
  depth => evaluated(depth - 1),
  depth => made(run, depth - 1),
  depth => { emitter.emit('event', depth - 1); return 1 },
  depth => { new Map([[1, 2]]).forEach((value, key) => run(depth - 1)); return 2 },
  depth => extra(1, depth - 1, 3, 4),
  depth => Array.from([1, 2], x => run(depth - 2)).length,
  depth => { const inner = n => { if (n) return inner(n - 1); return run(depth - 2) }; return inner(2) }
]
if (mode === 'calls') {
  ways.push(depth => shown[random(shown.length)](depth - 1))
  ways.push(depth => computed.method1(depth - 1))
  ways.push(depth => computed.constructor.made1(depth - 1))
  ways.push(depth => { derived.depth = depth - 2; return computed.read1 })
  ways.push(depth => literal.inLiteral1(depth - 1))
  ways.push(depth => renamed(depth - 1))
  ways.push(depth => { native.callBack(() => run(depth - 1)); return 1 })
}
function run (depth) {
  if (depth <= 0) return tick(depth)
  return ways[random(ways.length)](depth - 1) | 0
}
async function leaf (depth) {
  run(depth)
  await null
  run(depth - 1)
  return depth
}
async function middle (depth) {
  try {
    return await leaf(depth) + await leaf(depth)
  } finally { run(1) }
}
const outer = async depth => {
  const found = await middle(depth)
  return found
}
async function * produce () {
  yield run(2)
  yield await outer(2)
}
async function main () {
  for (;;) {
    for (let i = 0; i < (mode === 'free' ? 50000 : 100); i++) run(6)
    await outer(4)
    await Promise.all([outer(3), outer(2)])
    await Promise.race([outer(3), outer(2)])
    for await (const x of produce()) run(x & 1)
    await new Promise(resolve => setTimeout(() => { run(3); resolve() }, 0))
    await new Promise(resolve => setImmediate(resolve))
    await Promise.resolve(1).then(function then (x) { return run(3) })
  }
}
if (mode === 'free') fs.writeSync(1, 'ready\n')
main()
