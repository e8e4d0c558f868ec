// Retains many objects in one place, in the way that the first argument names, and prints what holds them; then it waits.
// The second argument is the number of objects, the third an addon (napi).
'use strict'
const EventEmitter = require('events')
const [kind, total, file] = [process.argv[2], Number(process.argv[3]), process.argv[4]]

class Session { constructor (n) { this.number = n; this.name = `session ${n} of many`; this.parts = [n, `part ${n}`] } }
class Bus extends EventEmitter {}
class Registry {}
Registry.entries = new Map()
const bus = new Bus()
const cache = new Map()
const never = new Promise(() => {})

function subscribe (n) { const own = new Session(n); bus.on('data', function onData () { return own.number }) }
function sessions () { return Array.from({ length: total }, (_, n) => new Session(n)) }
async function wait (own) { await never; return own }
function handlerFor (n) { const own = new Session(n); return function onTick () { return own } }

const holders = {
  listeners () { bus.setMaxListeners(0); for (let n = 0; n < total; n++) subscribe(n); return ['variable bus', 'onData'] },
  map () { for (let n = 0; n < total; n++) cache.set(`key ${n}`, new Session(n)); return ['variable cache', 'Session'] },
  static () { for (let n = 0; n < total; n++) Registry.entries.set(n, new Session(n)); return ['variable Registry', 'Session'] },
  global () { globalThis.everything = sessions(); return ['global variable everything', 'Session'] },
  exports () { module.exports.kept = sessions(); return ['exports of module', 'Session'] },
  promises () { for (let n = 0; n < total; n++) wait(new Session(n)); return ['variable never', 'Session'] },
  timers () { for (let n = 0; n < total; n++) setTimeout(handlerFor(n), 1e8); return ['variable timerListMap', 'onTick'] },
  chain () {
    let last = new Promise(resolve => { globalThis.start = resolve })
    for (let n = 0; n < total; n++) { const own = new Session(n); last = last.then(() => own) }
    return ['global variable start', 'Session']
  },
  napi () { const addon = require(file); for (let n = 0; n < total; n++) addon.keep(new Session(n)); return [file, 'Session'] },
  wrapped () {
    const addon = require(file)
    for (let n = 0; n < total; n++) { const own = new Session(n); addon.wrap(own); cache.set(n, own) }
    for (let n = 0; n < total; n++) { const own = new Session(n); addon.watch(own); addon.listen(function onTick () { return own }) }
    return ['variable cache', 'Session']
  },
  buffers () {
    for (let n = 0; n < total; n++) cache.set(n, (own => () => own)(Buffer.alloc(20000, 1)))
    return ['variable cache', 'Buffer']
  },
  external () {
    const addon = require(file)
    for (let n = 0; n < total; n++) cache.set(n, addon.buffer())
    return ['variable cache', 'ArrayBuffer']
  },
  data () { const addon = require(file); for (let n = 0; n < total; n++) cache.set(n, addon.data()); return ['variable cache', 'Map'] },
  bare () { const addon = require(file); for (let n = 0; n < total; n++) cache.set(n, addon.bare()); return ['variable cache', 'Map'] },
  intervals () {
    for (let n = 0; n < total; n++) setInterval(handlerFor(n), 1e8 + n % 8)
    return ['variable timerListMap', 'Session']
  },
  addon () {
    const addon = require(file)
    for (const way of ['keep', 'keepInTable', 'keepInCache', 'forget']) for (let n = 0; n < total; n++) addon[way](new Session(n))
    addon.keepGlobal(new Session(total))
    return [file, 'Session']
  },
  nested () {
    const application = { services: { messages: new Bus() } }
    application.services.messages.setMaxListeners(0)
    globalThis.application = application
    for (let n = 0; n < total; n++) application.services.messages.on('data', handlerFor(n))
    return ['global variable application', 'onTick']
  },
  topics () { for (let n = 0; n < total; n++) bus.on(`topic ${n}`, handlerFor(n)); return ['variable bus', 'onTick'] },
  target () {
    globalThis.clock = new EventTarget()
    for (let n = 0; n < total; n++) globalThis.clock.addEventListener('second', handlerFor(n))
    return ['global variable clock', 'onTick']
  },
  few () { const addon = require(file); for (let n = 0; n < total; n++) addon.keep({ n }); return [file, 'Object'] }
}

const [holder, content] = holders[kind]()
gc()
gc()
setInterval(() => [bus, cache, Registry, never], 1e9)
require('fs').writeSync(1, `${JSON.stringify({ holder, content, count: total, file: __filename })}\nready\n`)
