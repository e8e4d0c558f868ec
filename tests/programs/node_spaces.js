// Isolates with something in every space: this thread's, and those of as many workers as are asked for. Each prints what V8 says of its spaces
// through the addon node_spaces.c, and stops there; the main thread last, with "ready". Node runs with --expose-gc.
'use strict';
const {Worker, isMainThread, parentPort, workerData} = require('worker_threads');
const kept = [];

function fill(scale) {
  for (let i = 0; i < 60000 * scale; i++) kept.push({number: i, text: 'text ' + i});
  for (let i = 0; i < 5 * scale; i++) kept.push(new Array(200000).fill(i));
  for (let i = 0; i < 200; i++) kept.push(new Function('a', `let s = 0; for (let i = 0; i < a; i++) s += ${i}; return s;`)(20000));
  kept.splice(0, 30000 * scale); // leaves whole pages free
  gc();
  for (let i = 0; i < 3000 * scale; i++) kept.push({late: i});
  kept.push(new Array(90000).fill(1.5));
}

// By then, V8's background work (sweeping, compiling) is complete.
const settle = (then) => setTimeout(then, 1000);
const addon = () => require('./spaces.node');

if (!isMainThread) {
  fill(workerData + 1);
  addon();
  settle(() => {
    parentPort.postMessage('there');
    addon().told();
  });
} else {
  let left = +process.argv[2];
  fill(3);
  addon();
  const done = () => settle(() => addon().told());
  for (let number = 0; number < +process.argv[2]; number++) {
    new Worker(__filename, {workerData: number}).on('message', () => {
      if (!--left) done();
    });
  }
  if (!left) done();
}
