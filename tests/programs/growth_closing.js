// For each number on standard input, closes this number of TCP handles with a callback, and prints "ready". Written for Node 0.10.
var TCP = process.binding('tcp_wrap').TCP, fs = require('fs'), byte = new Buffer(1);

function asked() {
  var line = '';
  while (fs.readSync(0, byte, 0, 1) && byte[0] != 10) line += String.fromCharCode(byte[0]);
  return +line;
}

function batch(left) {
  var count = Math.min(left, 1000), open = count;
  if (!count) {
    fs.writeSync(1, 'ready\n');
    setImmediate(function () { batch(asked()); });
    return;
  }
  for (var i = 0; i < count; i++) {
    new TCP().close(function () {
      if (!--open) setImmediate(function () { batch(left - count); });
    });
  }
}
batch(0);
