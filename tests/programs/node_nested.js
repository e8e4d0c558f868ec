// Loads the addon node_counts.c inside nested callbacks; it stops there. Written for Node 0.10 and later.
function nested(depth) {
  if (depth)
    return [1].map(function () {
      return nested(depth - 1);
    })[0];
  require(process.argv[2]);
}
require('vm').runInNewContext('nested(3)', {nested: nested});
