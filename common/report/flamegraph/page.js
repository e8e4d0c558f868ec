/* ---- pointer, search and keys */
function describe(node) {
  const {measure} = state, name = NAMES[label[node]], file = meta.modules[meta.moduleOf[label[node]]];
  const own = measure.own[node], part = node !== state.zoom && end[node] <= end[state.zoom] && node > state.zoom && state.zoom !== ROOT && !meta.compared;
  const words = [figures(measure, node)];
  if (part) words.push(percent(measure.sum[node] / measure.sum[state.zoom]) + " of the visible part");
  if (!meta.compared && own && own !== measure.sum[node]) words.push(amount(own, measure.unit) + " its own");
  return {name: node ? name + (file ? " [" + file + "]" : "") : meta.title, words: words.join("; ")};
}
function detail(node, say) {
  if (node < 0) { $("detail").textContent = "Point at a frame, or move with the arrow keys."; return; }
  const {name, words} = describe(node);
  $("detail").textContent = name + ": " + words;
  if (say) $("said").textContent = shown(node) + ", level " + depth[node] + ": " + words;
}
function tip(node, x, y) {
  const box = $("tip");
  box.hidden = node < 0;
  if (node < 0) return;
  const {name, words} = describe(node);
  box.replaceChildren(element("b", name), ...words.split("; ").map(line => element("div", line)));
  for (const other of measures) if (other !== state.measure) box.append(element("div", other.title + ": " + figures(prepared(other), node), "pale"));
  const wide = box.offsetWidth, high = box.offsetHeight;
  box.style.left = Math.max(4, Math.min(x + 14, innerWidth - wide - 8)) + "px";
  box.style.top = (y + 18 + high > innerHeight ? Math.max(4, y - high - 10) : y + 18) + "px";
}
function over(node) {
  if (node === state.over) return;
  state.over = node;
  detail(node >= 0 ? node : state.at);
  redraw();
}
function go(node) {
  if (node < 0) return;
  state.at = node;
  if (node !== state.zoom && !(node > state.zoom && node < end[state.zoom]) && !(node < state.zoom && end[node] >= end[state.zoom])) zoomTo(parent[node]);
  if (place(node)[1] < 2 && node > state.zoom) zoomTo(parent[node]);
  reveal(node);
  detail(node, true);
  redraw();
}

/* Return the next or the previous sibling of `node`; -1 if there is none. */
function sibling(node, forth) {
  if (node <= 0) return -1;
  if (forth) return end[node] < end[parent[node]] ? end[node] : -1;
  let at = parent[node] + 1, before = -1;
  while (at < node) { before = at; at = end[at]; }
  return before;
}
function match(forth) {
  if (!state.search) return;
  const step = forth ? 1 : NODES - 1;
  for (let count = 0, node = Math.max(state.at, 0); count < NODES; count++) {
    node = (node + step) % NODES;
    if (state.search[label[node]] && state.measure.wide[node]) { go(node); return; }
  }
}
function searched(text) {
  if ($("search").value !== text) $("search").value = text;
  state.text = text;
  state.search = found(text) || null;
  const {measure, search} = state;
  let sum = 0, frames = 0, before = 0;
  if (search) {
    for (let node = 1; node < NODES;) {
      if (!search[label[node]]) { node++; continue; }
      frames++;
      sum += measure.sum[node];
      if (meta.compared) before += measure.sumBefore[node];
      node = end[node];
    }
  }
  const all = measure.sum[ROOT], part = all && !meta.compared ? " (" + percent(sum / all) + ")" : "";
  const what = (meta.compared ? amount(before, measure.unit) + " → " : "") + amount(sum, measure.unit) + part;
  $("matches").textContent = !text ? "" : found(text) === undefined ? "no pattern" : frames ? what + " in " + counted(frames, "place") : "nothing found";
  if (state.table) list(); else redraw();
}
function measured(name) {
  state.measure = prepared(measures.find(one => one.name === name));
  buttons($("measures"), measures.map(one => [one.name, one.title]), name, measured);
  const samples = counted(meta.samples, byModule ? "stack" : "row");
  $("sum").textContent = figures(state.measure, ROOT) + "; " + samples;
  searched(state.text);
  if (!state.measure.wide[state.zoom]) zoomTo(ROOT);
  detail(state.at);
}

/* ---- the head */
$("title").textContent = meta.title;
$("notes").append(...meta.notes.map(text => element("li", text)));
if (meta.compared) {
  for (const [kind, text] of [["up", "+ grew"], ["down", "− shrank"], ["flat", "as before"]]) {
    const made = element("span", text, "key");
    made.prepend(element("i", "", kind));
    $("legend").append(made);
  }
}

/* ---- light and dark: the system's, until the button is used */
const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "☀ Light" : "☾ Dark";
  redraw();
}
$("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));

/* ---- pointer and keys */
const pointed = event => {
  const box = canvas.getBoundingClientRect();
  return nodeAt(event.clientX - box.left, event.clientY - box.top);
};
graph.addEventListener("pointermove", event => { const node = pointed(event); over(node); tip(node, event.clientX, event.clientY); });
graph.addEventListener("pointerleave", () => { over(-1); tip(-1); });
graph.addEventListener("click", event => {
  const node = pointed(event);
  if (node < 0) return;
  state.at = node;
  tip(-1);
  zoomTo(node);
  detail(node, true);
});
graph.addEventListener("scroll", () => { tip(-1); redraw(); }, {passive: true});
$("whole").onclick = () => zoomTo(ROOT);
$("search").oninput = () => searched($("search").value);
$("search").addEventListener("keydown", event => { if (event.key === "Enter" && !state.table) { graph.focus(); match(true); } });

const MOVES = {
  ArrowUp: () => go(state.at > 0 ? parent[state.at] : ROOT),
  ArrowDown: () => go(state.at < 0 ? ROOT : state.at + 1 < end[state.at] ? state.at + 1 : -1),
  ArrowLeft: () => go(sibling(state.at, false)),
  ArrowRight: () => go(sibling(state.at, true)),
  Home: () => go(ROOT),
  Enter: () => { if (state.at >= 0) zoomTo(state.at); },
  " ": () => { if (state.at >= 0) zoomTo(state.at); },
  n: () => match(true),
  p: () => match(false),
};
graph.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in MOVES)) return;
  event.preventDefault();
  tip(-1);
  MOVES[event.key]();
});
addEventListener("keydown", event => {
  if (event.key === "Escape") {
    if (state.zoom !== ROOT) zoomTo(ROOT);
    else if (state.text) searched("");
  } else if (event.key === "/" && !event.target.matches("input")) { event.preventDefault(); $("search").focus(); $("search").select(); }
});
new ResizeObserver(draw).observe(graph); // draw before the browser paints the new size

theme(dark.matches ? "dark" : "light");
measured(state.measure.name);
view(false);
zoomTo(ROOT);
draw();
document.documentElement.dataset.ready = "yes";
