// Argument: what it holds, and how many. "buffers": with memory outside of V8's heap. "pairs": objects of two kinds. "closures": functions
// whose names are computed. "once": functions that Node binds, and those that they call. "calls": calls of an async function that wait.
// "named": objects of a class with the name of such calls. "slices": parts of large buffers. "strings": parts of long strings.
// "contexts": contexts of scripts.
'use strict'
class Outer { constructor (n) { this.inner = new Inner(n) } }
class Inner { constructor (n) { this.n = n } }
class Generator { constructor (work) { this.work = work } }

const emitter = new (require('events'))().setMaxListeners(0)
const vm = require('vm')
const never = new Promise(() => {})
async function handle (n) {
  const own = new Outer(n)
  await never
  return own
}
function onData (n) { return () => n }

const count = Number(process.argv[3])
global.audit = []
const kinds = {
  buffers: () => Buffer.alloc(20000),
  pairs: n => new Outer(n),
  once: n => emitter.once('data', onData(new Outer(n))),
  calls: handle,
  named: () => new Generator(onData),
  slices: () => Buffer.alloc(20000, 1).subarray(0, 100),
  strings: n => String.fromCharCode(97 + n % 20).repeat(2000).concat(n).split('x')[0].substring(10, 60),
  contexts: n => vm.createContext({ n }),
  closures: n => ({ [`name${n % 2}`]: () => n })[`name${n % 2}`]
}
for (let n = 0; n < count; n++) global.audit.push(kinds[process.argv[2]](n))
gc()
gc()
setInterval(() => {}, 1e9)
require('fs').writeSync(1, 'ready\n')
