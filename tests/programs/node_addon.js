// Calls a function of the addon node_objects.c, which stops inside: FUNCTION NUMBER…
const fs = require('fs'), addon = require('./objects.node');
fs.writeSync(1, 'globals ' + require('v8').getHeapStatistics().used_global_handles_size + '\n');
addon[process.argv[2]](...process.argv.slice(3).map(Number));
