// Answers HTTP requests on 127.0.0.1, and prints "ready" when the number of connections in its argument have closed. Written for Node 0.10.
var fs = require('fs'), left = +process.argv[2];
var server = require('http').createServer(function (request, response) {
  response.end('hello');
});
server.on('connection', function (socket) {
  socket.on('close', function () {
    if (!--left) setTimeout(fs.writeSync, 200, 1, 'ready\n');
  });
});
server.listen(0, '127.0.0.1', function () {
  fs.writeFileSync('port.part', '' + server.address().port);
  fs.renameSync('port.part', 'port');
});
