// Starts workers: two that keep objects, and one that keeps none. It prints, for each thread, its script and the size of its live objects.
// The argument is the number of objects that the first worker keeps; the second one keeps a quarter of them.
'use strict'
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads')
const v8 = require('v8')
const fs = require('fs')
class Session { constructor (n) { this.number = n; this.name = `session ${n} of many`; this.parts = [n, `part ${n}`] } }
const cache = new Map()
function used () {
  gc()
  gc()
  return v8.getHeapStatistics().used_heap_size
}
if (!isMainThread) {
  for (let n = 0; n < workerData.count; n++) cache.set(n, new Session(n))
  parentPort.on('message', () => parentPort.postMessage({ script: __filename, used: used(), count: cache.size }))
  setInterval(() => cache.size, 1e9)
  return void parentPort.postMessage('started')
}
const script = `${__dirname}/v8_workers.js`
const idle = 'const { parentPort } = require("worker_threads"); parentPort.on("message", () => parentPort.postMessage("idle")); parentPort.postMessage(0)'
const total = Number(process.argv[2])
const options = count => ({ workerData: { count } })
const workers = [new Worker(script, options(total)), new Worker(script, options(total / 4)), new Worker(idle, { eval: true })]
const answer = worker => new Promise(resolve => worker.once('message', resolve))
async function main () {
  await Promise.all(workers.map(answer))
  const found = []
  for (const worker of workers) {
    worker.postMessage('report')
    found.push(await answer(worker))
  }
  fs.writeSync(1, `${JSON.stringify({ workers: found, main: used() })}\nready\n`)
}
main()
