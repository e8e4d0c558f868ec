// A heap of many objects, all of them dropped and collected. Prints what V8 says that it has before and after, then "ready", and waits.
// Node runs with --expose-gc.
'use strict';
const fs = require('fs'), v8 = require('v8');
const size = () => v8.getHeapSpaceStatistics().filter((one) => one.space_name === 'old_space')[0].space_size;
const said = {};
let kept = [];
for (let i = 0; i < +process.argv[2]; i++) kept.push(new Array(100).fill(i + 0.5));
said.before = size();
kept = null;
gc();
said.after = size();
said.heapTotal = process.memoryUsage().heapTotal;
fs.writeSync(1, JSON.stringify(said) + '\nready\n');
Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
