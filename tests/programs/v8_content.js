// Argument: what it holds, and how many. "buffers": with memory outside of V8's heap. "pairs": objects of two kinds. "closures": functions
// whose names are computed.
'use strict'
class Outer { constructor (n) { this.inner = new Inner(n) } }
class Inner { constructor (n) { this.n = n } }

const count = Number(process.argv[3])
global.audit = []
const kinds = {
  buffers: () => Buffer.alloc(20000),
  pairs: n => new Outer(n),
  closures: n => ({ [`name${n % 2}`]: () => n })[`name${n % 2}`]
}
for (let n = 0; n < count; n++) global.audit.push(kinds[process.argv[2]](n))
gc()
gc()
setInterval(() => {}, 1e9)
require('fs').writeSync(1, 'ready\n')
