// Native memory that JavaScript objects keep alive, and what the process itself counts of it. Prints one line of JSON, then "ready", and waits.
'use strict';
const net = require('net');
const tls = require('tls');
const zlib = require('zlib');

const kept = [];
const CONTEXTS = 120, STREAMS = 300, SERVERS = 50, BUFFERS = 400, SIZE = 70000;
for (let i = 0; i < STREAMS; i++) {
  const stream = zlib.createDeflate();
  stream.write('some text'); // zlib's state is made at the first write
  kept.push(stream);
}
for (let i = 0; i < BUFFERS; i++) kept.push(Buffer.alloc(SIZE, i));
for (let i = 0; i < CONTEXTS; i++) kept.push(tls.createSecureContext());

// HTTP/2 sessions with both ends in this process.
const http2 = require('http2');
const SESSIONS = 20;
const servers = [];
const sleeper = new Int32Array(new SharedArrayBuffer(4));

function report() {
  process.memoryUsage();
  const usage = process.memoryUsage();
  const line = JSON.stringify({
    classes: { ZlibStream: STREAMS, SecureContext: CONTEXTS, 'http2::Http2Session': 2 * SESSIONS },
    listening: SERVERS + 1,
    buffers: BUFFERS,
    external: usage.external,
    arrayBuffers: usage.arrayBuffers,
    heapTotal: usage.heapTotal,
  });
  require('fs').writeSync(1, line + '\nready\n');
  Atomics.wait(sleeper, 0, 0);
}

function listen() {
  if (servers.length === SERVERS) return connect();
  const server = net.createServer();
  servers.push(server);
  server.listen(0, '127.0.0.1', listen);
}

function connect() {
  const server = http2.createServer();
  let open = 0;
  server.on('session', (session) => {
    kept.push(session);
    if (++open === SESSIONS) setTimeout(report, 1500);
  });
  server.listen(0, '127.0.0.1', () => {
    for (let i = 0; i < SESSIONS; i++) kept.push(http2.connect(`http://127.0.0.1:${server.address().port}`));
  });
}

listen();
