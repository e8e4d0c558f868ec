// A busy Node: native memory is allocated by interpreted, compiled, deoptimized and built-in JavaScript, and by threads of V8 and libuv.
const crypto = require('crypto'), fs = require('fs'), http = require('http'), zlib = require('zlib');
const kept = [];
let turn = 0;

class Holder {
  constructor() { this.content = Buffer.alloc(20000); }
}

function deep(depth, work) { return depth ? deep(depth - 1, work) : work(); }

function round() {
  for (let i = 0; i < 20; i++) {
    turn++;
    kept.push(deep(turn % 15, () => new Holder()));
    JSON.parse('{"a": [1, 2, {"b": "' + 'x'.repeat(50) + '"}]}');
    crypto.createHash('sha256').update('x' + turn).digest('hex');
    [3, 1, 2].sort(() => { Buffer.alloc(9000); return 1; });
    Reflect.construct(Holder, []);
    [...Array(3)].map(() => fs.readFileSync('/proc/self/stat'));
  }
  if (kept.length > 3000) kept.length = 0;
  zlib.gzip('x'.repeat(10000), () => {});
  fs.readFile('/proc/self/stat', () => {});
  Promise.resolve().then(() => Buffer.alloc(10000));
  new Function('a', 'return a + ' + turn)(1);
}

http.createServer((question, answer) => answer.end('hello')).listen(0, '127.0.0.1', function () {
  setInterval(() => http.get({ port: this.address().port, host: '127.0.0.1' }).on('error', () => {}), 20);
  setInterval(round, 5);
  console.log('ready');
});
