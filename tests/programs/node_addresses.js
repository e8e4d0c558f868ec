// Keeps blocks of malloc's by their addresses in JavaScript's objects, forgets as many without freeing them: COUNT. Half of both is old when
// that happens, half is young. Node runs with --expose-gc.
'use strict';
const addon = require('./addresses.node');
const count = +process.argv[2], kept = [], old = [];

function one(keep) {
  return {external: addon.external(72, keep), number: addon.number(56, keep), array: new BigUint64Array([addon.number(40, keep), 1n])};
}

function fill(into) {
  for (let i = 0; i < count; i++) {
    kept.push(one(1));
    into.push(one(0));
  }
}

// Between these steps, no JavaScript frame is on the stack.
const steps = [
  () => fill(old),
  () => (gc(), gc()),
  () => (old.length = 0),
  () => fill([]),
  () => gc(),
  () => gc(),
  () => { for (let i = 0; i < count / 10; i++) kept.push(one(1)); },
];
(function next() {
  if (steps.length) {
    steps.shift()();
    setTimeout(next, 50);
  } else {
    setTimeout(addon.ready, 500);
    setTimeout(() => kept, 1e8); // keeps the process alive
  }
})();
