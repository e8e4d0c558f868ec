// Argument: what it holds, and how many. "buffers": with memory outside of V8's heap. "pairs": objects of two kinds.
'use strict'
class Outer { constructor (n) { this.inner = new Inner(n) } }
class Inner { constructor (n) { this.n = n } }

const count = Number(process.argv[3])
global.audit = []
for (let n = 0; n < count; n++) global.audit.push(process.argv[2] === 'buffers' ? Buffer.alloc(20000) : new Outer(n))
gc()
gc()
setInterval(() => {}, 1e9)
require('fs').writeSync(1, 'ready\n')
