/* ---- the data: nodes in preorder (see tree.py), in packed columns (see pack.py) */
const meta = JSON.parse($("meta").textContent);
$("meta").textContent = "";
const NODES = meta.nodes, NAMES = meta.names, ROOT = 0;

const packed = await inflated($("data"));
if (!packed) return;
let read = 0;
function column(made) {
  for (let at = 0, before = 0; at < NODES; at++) {
    let byte = packed[read++], code = byte & 127;
    for (let scale = 128; byte & 128; scale *= 128) { byte = packed[read++]; code += (byte & 127) * scale; }
    code--;
    before += code % 2 ? -(code + 1) / 2 : code / 2;
    made[at] = before;
  }
  return made;
}
const depth = column(new Int32Array(NODES)), label = column(new Int32Array(NODES));
NAMES[0] = "all";

/* For each measure: the value of each node itself (`own`), and including its descendants (`sum`). If two snapshots are compared, these are
   the values of the second one, and there are the same values of the first one. `wide` determines the widths: the sum of the larger own
   value of each node in both snapshots, so that nodes that have disappeared are visible, too. */
const measures = meta.measures.map(one => {
  const first = column(new Float64Array(NODES)), second = meta.compared ? column(new Float64Array(NODES)) : null;
  return {...one, own: second || first, before: second ? first : null, ready: false};
});

/* A node's parent, and the number after its last descendant. */
const parent = new Int32Array(NODES), end = new Int32Array(NODES);
let deepest = 0;
{
  const open = [];
  for (let node = 0; node < NODES; node++) {
    const level = depth[node];
    for (let at = open.length - 1; at >= level; at--) end[open[at]] = node;
    open.length = level;
    parent[node] = level ? open[level - 1] : -1;
    open.push(node);
    if (level > deepest) deepest = level;
  }
  for (const node of open) end[node] = NODES;
}

/* Compute the sums and positions of a measure when it is first shown. `left` is the position at which a node begins, from 0 to wide[ROOT]. */
function prepared(measure) {
  if (measure.ready) return measure;
  const {own, before} = measure;
  const summed = values => {
    const sums = Float64Array.from(values);
    for (let node = NODES - 1; node > 0; node--) sums[parent[node]] += sums[node];
    return sums;
  };
  measure.sum = summed(own);
  measure.sumBefore = before ? summed(before) : null;
  measure.wide = before ? summed(own.map((value, node) => Math.max(value, before[node]))) : measure.sum;
  const left = measure.left = new Float64Array(NODES), next = new Float64Array(NODES);
  for (let node = 1; node < NODES; node++) {
    const above = parent[node];
    left[node] = next[node] = next[above];
    next[above] += measure.wide[node];
  }
  measure.ready = true;
  return measure;
}
const change = (measure, node) => measure.sum[node] - measure.sumBefore[node];
const percent = part => part > 0 && part < 0.0005 ? "< 0.1 %" : (part * 100).toFixed(part < 0.0995 ? 1 : 0) + " %";

/* Return "12 MiB, 34 % of all"; if two snapshots are compared, "3.0 MiB → 12 MiB, + 9.0 MiB". */
function figures(measure, node) {
  const now = amount(measure.sum[node], measure.unit), unit = measure.unit === "bytes" ? "" : " " + measure.title.toLowerCase();
  if (meta.compared) return amount(measure.sumBefore[node], measure.unit) + " → " + now + unit + ", " + signed(change(measure, node), measure.unit);
  return now + unit + (node && measure.sum[ROOT] ? ", " + percent(measure.sum[node] / measure.sum[ROOT]) + " of all" : "");
}

/* Return the names that match a search: a part of the name, in upper or lower case, or a pattern between slashes. Return null if there is no
   search, and undefined if the pattern is not valid. */
function found(text) {
  if (!text) return null;
  let matches;
  const pattern = /^\/(.+)\/$/.exec(text);
  if (pattern) {
    let expression;
    try { expression = new RegExp(pattern[1], "i"); } catch (error) { return undefined; }
    matches = name => expression.test(name);
  } else {
    const part = text.toLowerCase();
    matches = name => name.toLowerCase().includes(part);
  }
  return Uint8Array.from(NAMES, (name, at) => at && (matches(name) || matches(meta.modules[meta.moduleOf[at]])) ? 1 : 0);
}
