// Starts worker threads. The first one stops inside a callback, the others wait for events.
const workers = require('worker_threads'), fs = require('fs');
if (workers.isMainThread) {
  let left = +process.argv[2];
  for (let number = 0; number < +process.argv[2]; number++) {
    new workers.Worker(__filename, {argv: [number]}).on('message', () => {
      if (!--left) setTimeout(() => fs.writeSync(1, 'ready\n'), 300);
    });
  }
  setInterval(() => {}, 1e6);
} else {
  workers.parentPort.postMessage('there');
  if (process.argv[2] === '0') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1e7);
  setInterval(() => {}, 1e6);
}
