// Keeps buffers, compressing streams and timers; prints Node's own memory counters, and waits in JavaScript.
'use strict';
const zlib = require('zlib');
const kept = (globalThis.kept = []);
const STREAMS = 300, BUFFERS = 400, SIZE = 70000;
for (let i = 0; i < STREAMS; i++) {
  const stream = zlib.createDeflate();
  stream.write('some text');
  kept.push(stream);
}
for (let i = 0; i < BUFFERS; i++) kept.push(Buffer.alloc(SIZE, i));
const sleeper = new Int32Array(new SharedArrayBuffer(4));
setTimeout(() => {
  process.memoryUsage();
  const usage = process.memoryUsage();
  const line = JSON.stringify({ external: usage.external, arrayBuffers: usage.arrayBuffers, heapTotal: usage.heapTotal });
  require('fs').writeSync(1, line + '\nready\n');
  Atomics.wait(sleeper, 0, 0);
}, 1500);
