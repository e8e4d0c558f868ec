// Calls the addon node_scoped.c in this thread and in WORKERS workers, each a different number of times. Arguments: ADDON WORKERS
const { Worker, isMainThread, workerData } = require('worker_threads');
const addon = isMainThread ? process.argv[2] : workerData.addon;
const work = require(addon);
if (isMainThread) {
  const workers = Number(process.argv[3]);
  let waiting = workers;
  for (let number = 1; number <= workers; number++)
    new Worker(__filename, { workerData: { addon, times: 10 * (number + 1) } }).on('message', () => {
      if (--waiting === 0) work(10, workers + 1);
    });
} else {
  require('worker_threads').parentPort.postMessage('here');
  work(workerData.times, 0);
}
