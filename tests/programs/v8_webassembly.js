// Functions of JavaScript and WebAssembly that call each other: `v8_webassembly.js ADDON MODE CALLS NAMES`.
// Mode stop: after CALLS calls, it prints its stack and stops itself. Mode free: it computes Fibonacci numbers in WebAssembly.
// NAMES: `names`, or `none` for a module without names; with `struct`, V8 inlines functions of WebAssembly from Node 22 on.
'use strict'
const native = require(process.argv[2])
const fs = require('fs')
const mode = process.argv[3], calls = Number(process.argv[4]), names = process.argv[5]
function number (value) {
  const bytes = []
  for (; value > 127; value >>= 7) bytes.push(value & 127 | 128)
  return [...bytes, value]
}
const text = value => [...number(Buffer.byteLength(value)), ...Buffer.from(value)]
const list = items => [...number(items.length), ...items.flat()]
const section = (id, body) => [id, ...number(body.length), ...body]
function code (...bytes) {
  const body = [0, ...bytes, 0x0b]
  return [...number(body.length), ...body]
}
const types = [[0x60, 1, 0x7f, 1, 0x7f], ...(names.includes('struct') ? [[0x5f, 0]] : [])]
const named = ['pause', 'chargeCard', 'placeOrder', 'größe', 'fibonacci']
const bytes = [
  0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
  ...section(1, list(types)),
  ...section(2, list([[...text('shop'), ...text('pause'), 0, 0]])),
  ...section(3, list([[0], [0], [0], [0]])),
  ...section(7, list([[...text('run'), 0, 3], [...text('compute'), 0, 4]])),
  ...section(10, list([
    code(0x20, 0, 0x10, 0, 0x41, 1, 0x6a), // calls function 0, adds 1
    code(0x20, 0, 0x10, 1, 0x41, 2, 0x6a),
    code(0x20, 0, 0x10, 2, 0x41, 3, 0x6a),
    code(0x20, 0, 0x41, 2, 0x48, 0x04, 0x7f, 0x20, 0, 0x05,
      0x20, 0, 0x41, 1, 0x6b, 0x10, 4, 0x20, 0, 0x41, 2, 0x6b, 0x10, 4, 0x6a, 0x0b)
  ])),
  ...(names.includes('names')
    ? section(0, [...text('name'), ...section(0, text('shop')), ...section(1, list(named.map((name, at) => [at, ...text(name)])))])
    : [])
]
function callSites (error, sites) {
  return sites.map(one => [one.getFunctionName(), one.getFileName() || one.getScriptNameOrSourceURL() || '', String(one)])
}
let left = calls
function pause (x) {
  if (--left > 0) return x
  Error.prepareStackTrace = callSites
  const stack = JSON.stringify(new Error('x').stack)
  Error.prepareStackTrace = undefined
  fs.writeSync(1, stack + '\n')
  native.stop()
  return x
}
const shop = new WebAssembly.Instance(new WebAssembly.Module(Uint8Array.from(bytes)), { shop: { pause } }).exports
function serve () { for (let i = 0; i < calls; i++) shop.run(i) }
function busy () { for (;;) shop.compute(25) }
if (mode === 'free') {
  fs.writeSync(1, 'ready\n')
  busy()
}
serve()
