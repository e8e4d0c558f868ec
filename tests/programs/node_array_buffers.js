// Buffers in use, buffers without references, and messages that no port has received. Prints Node's memory counters, and waits in JavaScript.
'use strict';
const { MessageChannel } = require('worker_threads');
const KEPT = 100, DROPPED = 600, SIZE = 50000, MESSAGES = 2000;
globalThis.channel = new MessageChannel();
for (let i = 0; i < MESSAGES; i++) channel.port1.postMessage('m'.repeat(3000));
globalThis.kept = Array.from({ length: KEPT }, (_, i) => Buffer.alloc(SIZE, i));
(() => {
  const dropped = new Map();
  for (let i = 0; i < DROPPED; i++) dropped.set(i, Buffer.alloc(SIZE, i));
  return dropped.size;
})();
const { arrayBuffers } = process.memoryUsage();
require('fs').writeSync(1, JSON.stringify({ arrayBuffers, kept: KEPT * SIZE, size: SIZE, messages: MESSAGES * 3000 }) + '\nready\n');
Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
