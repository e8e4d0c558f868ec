// Calls a function of the addon node_objects.c, which stops inside: FUNCTION NUMBER…
// Node runs with --expose-gc: what is garbage goes before the global handles are counted, not after.
const fs = require('fs'), addon = require('./objects.node');
gc();
gc();
fs.writeSync(1, 'globals ' + require('v8').getHeapStatistics().used_global_handles_size + '\n');
addon[process.argv[2]](...process.argv.slice(3).map(Number));
