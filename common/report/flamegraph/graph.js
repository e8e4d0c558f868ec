/* ---- the graph: a canvas as large as the visible part, which is redrawn after each change */
const ROW = 20, GAP = 1, THIN = 0.5, MARGIN = 8;
const graph = $("graph"), canvas = $("canvas"), context = canvas.getContext("2d");
const state = {measure: measures[meta.main], zoom: ROOT, at: -1, over: -1, search: null, text: "", table: false};
let width = 0, colours = {}, letter = 7, waiting = 0;

/* Colours of names: by module if there are several modules, otherwise by name. In a comparison, colours show growth. */
const PALETTES = {
  light: {hues: ["#f2b5a0", "#f5cf8e", "#d9dd92", "#a9dcae", "#9fd8d6", "#a9c8f0", "#c9bdf2", "#edb9dd"], flat: "#dfe3e8", up: "#d7372b", down: "#2b6fd7"},
  dark: {hues: ["#7d4132", "#79582a", "#626528", "#33633a", "#2c605f", "#365684", "#524880", "#753f66"], flat: "#3a424c", up: "#c4372c", down: "#2f66bd"},
};
const byModule = meta.modules.filter(name => name).length > 1;
function hashed(text) {
  let hash = 2166136261;
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 16777619);
  return hash >>> 8;
}
/* The hue of each name, and how pale it is, so that neighbours from one file have different colours. */
const hues = NAMES.map((name, at) => byModule ? meta.moduleOf[at] % 8 : hashed(name) % 8), PALE = [0, 0.16, 0.32];
const tints = {};
function taken() {
  const of = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = PALETTES[document.documentElement.dataset.theme] || PALETTES.light;
  colours = {ground: of("--ground"), ink: of("--ink"), pale: of("--pale"), accent: of("--accent"), found: of("--found"), ...palette};
  colours.tints = tints[colours.ground] ||= NAMES.map((name, at) => mixed(palette.hues[hues[at]], colours.ground, PALE[hashed(name) % 3]));
  context.font = "12px " + of("--mono");
  letter = context.measureText("MMMMMMMMMM").width / 10;
}
const channels = text => [1, 3, 5].map(at => parseInt(text.slice(at, at + 2), 16));
function mixed(one, other, part) {
  const to = channels(other);
  return "rgb(" + channels(one).map((value, at) => Math.round(value + (to[at] - value) * part)).join() + ")";
}
function fill(node) {
  const {measure, search} = state;
  if (search && search[label[node]]) return colours.found;
  let made;
  if (!meta.compared) made = node ? colours.tints[label[node]] : colours.flat;
  else {
    const wide = Math.max(measure.sum[node], measure.sumBefore[node]), part = wide ? change(measure, node) / wide : 0;
    made = part ? mixed(colours.flat, part > 0 ? colours.up : colours.down, 0.12 + 0.66 * Math.sqrt(Math.abs(part))) : colours.flat;
  }
  return search ? mixed(made.startsWith("#") ? made : hex(made), colours.ground, 0.75) : made;
}
const hex = rgb => "#" + rgb.match(/\d+/g).map(n => (+n).toString(16).padStart(2, "0")).join("");

/* Return the left edge and the width of a node in pixels. The ancestors of the node that is zoomed to have the whole width. */
function place(node) {
  const {measure, zoom} = state, all = measure.wide[zoom];
  if (node <= zoom && end[node] >= end[zoom]) return [0, width];
  return [(measure.left[node] - measure.left[zoom]) / all * width, measure.wide[node] / all * width];
}

function draw() {
  waiting = 0;
  const {measure, zoom} = state, ratio = devicePixelRatio || 1, height = graph.clientHeight, top = graph.scrollTop;
  width = graph.clientWidth - 2 * MARGIN;
  canvas.width = Math.round(graph.clientWidth * ratio);
  canvas.height = Math.round(height * ratio);
  taken();
  context.setTransform(ratio, 0, 0, ratio, MARGIN * ratio, -top * ratio);
  context.textBaseline = "middle";
  const first = Math.floor(top / ROW) - 1, last = Math.ceil((top + height) / ROW);
  for (let node = zoom; node >= 0; node = parent[node]) if (depth[node] >= first && depth[node] <= last) box(node, 0, width);
  if (!measure.wide[zoom]) return;
  const scale = width / measure.wide[zoom], origin = measure.left[zoom];
  const thin = state.search ? mixed(colours.flat, colours.ground, 0.75) : colours.flat;
  let row = -1, from = 0, to = 0; // adjacent thin nodes are drawn as one line
  const line = () => {
    if (row >= 0) { context.fillStyle = thin; context.fillRect(from, row * ROW + MARGIN, Math.max(to - from, THIN), ROW - GAP); }
    row = -1;
  };
  for (let node = zoom + 1; node < end[zoom];) {
    const wide = measure.wide[node] * scale;
    if (depth[node] > last) { node = end[node]; continue; }
    const left = (measure.left[node] - origin) * scale;
    if (wide < THIN) {
      if (depth[node] >= first && wide > 0) {
        if (row !== depth[node] || left > to + 1) { line(); row = depth[node]; from = left; }
        to = left + wide;
      }
      node = end[node];
      continue;
    }
    if (depth[node] >= first) box(node, left, wide);
    node++;
  }
  line();
  if (state.at >= 0) edge(state.at, colours.ink, 2);
  if (state.over >= 0 && state.over !== state.at) edge(state.over, colours.accent, 1.5);
}
function box(node, left, wide) {
  const y = depth[node] * ROW + MARGIN;
  const above = node < state.zoom;
  context.globalAlpha = above ? 0.55 : 1;
  context.fillStyle = fill(node);
  context.fillRect(left, y, Math.max(wide - (wide > 3 ? GAP : 0), THIN), ROW - GAP);
  const letters = Math.floor((wide - 8) / letter);
  if (letters >= 3) {
    let text = shown(node);
    if (text.length > letters) text = text.slice(0, letters - 1) + "…";
    context.fillStyle = state.search && !state.search[label[node]] ? colours.pale : state.search ? "#1b1f24" : colours.ink;
    context.fillText(text, left + 4, y + ROW / 2);
  }
  context.globalAlpha = 1;
}
/* Return the name of a node. In a comparison, the name has a sign, because not everyone can distinguish the colours. */
function shown(node) {
  const name = NAMES[label[node]];
  if (!meta.compared) return name;
  const grown = change(state.measure, node);
  return grown ? (grown > 0 ? "+ " : "− ") + name : name;
}
function edge(node, colour, thick) {
  const [left, wide] = place(node);
  if (left + wide < 0 || left > width) return;
  context.strokeStyle = colour;
  context.lineWidth = thick;
  context.strokeRect(left + thick / 2, depth[node] * ROW + MARGIN + thick / 2, Math.max(wide - GAP - thick, 1), ROW - GAP - thick);
}
function redraw() { if (!waiting) waiting = setTimeout(draw); }

/* Return the node at a point of the canvas; -1 if there is none. */
function nodeAt(x, y) {
  const level = Math.floor((y + graph.scrollTop - MARGIN) / ROW), {measure, zoom} = state;
  x -= MARGIN;
  if (level < 0 || level > deepest || x < 0 || x > width) return -1;
  if (level <= depth[zoom]) {
    let node = zoom;
    while (depth[node] > level) node = parent[node];
    return node;
  }
  const value = measure.left[zoom] + x / width * measure.wide[zoom];
  for (let node = zoom + 1; node < end[zoom];) {
    if (value < measure.left[node]) return -1;
    if (value >= measure.left[node] + measure.wide[node]) { node = end[node]; continue; }
    if (depth[node] === level) return node;
    node++;
  }
  return -1;
}

function zoomTo(node) {
  state.zoom = node;
  $("whole").hidden = node === ROOT;
  let rows = 0;
  for (let at = node; at < end[node]; at++) if (depth[at] > rows) rows = depth[at];
  $("space").style.height = (rows + 1) * ROW + 2 * MARGIN + "px";
  reveal(node);
  redraw();
}
function reveal(node) {
  const y = depth[node] * ROW + MARGIN;
  if (y < graph.scrollTop) graph.scrollTop = y - MARGIN;
  else if (y + ROW > graph.scrollTop + graph.clientHeight) graph.scrollTop = y + 2 * ROW - graph.clientHeight;
}
