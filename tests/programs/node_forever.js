// Closes handles, each with a callback, and fires timers, endlessly. Prints "ready" after the first ones. Written for Node 0.10.
var TCP = process.binding('tcp_wrap').TCP, fs = require('fs');
function batch() {
  var open = 20;
  for (var i = 0; i < 20; i++) {
    new TCP().close(function () {
      if (!--open) setTimeout(batch, 2);
    });
  }
}
var fired = 0;
setInterval(function () { fs.writeFileSync('fired', String(++fired)); }, 20);
batch();
fs.writeSync(1, 'ready\n');
