// Closes a number of TCP handles, each with a callback, and then prints "ready". Written for Node 0.10.
var TCP = process.binding('tcp_wrap').TCP, left = +process.argv[2], fs = require('fs');
function batch() {
  var count = Math.min(left, 1000), open = count;
  if (!count) {
    fs.writeSync(1, 'ready\n');
    setInterval(function () {}, 100000);
    return;
  }
  left -= count;
  for (var i = 0; i < count; i++) {
    new TCP().close(function () {
      if (!--open) setImmediate(batch);
    });
  }
}
batch();
