"use strict";
(async () => {
const $ = id => document.getElementById(id);
const meta = JSON.parse($("meta").textContent);
const STATES = meta.states, USED = 1, UNTOUCHED = 2, PAGE = meta.page;
const GUTTER = 140, HEAD = 40, BELOW = 16, SIDE = 20;

/* ---- the data: for each page a byte of state and share, a byte of size, and a byte of type; then the blocks, if there are not too many */
const packed = Uint8Array.from(atob($("data").textContent.trim()), c => c.charCodeAt(0));
$("data").textContent = "";
let bytes;
try {
  bytes = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
} catch (error) {
  $("title").textContent = "This browser cannot unpack the page's data: use a browser of 2023 or newer.";
  return;
}
const COUNT = meta.pages, BLOCKS = meta.blocks;
const blockAt = new Uint32Array(bytes, 0, BLOCKS), blockSize = new Uint32Array(bytes, 4 * BLOCKS, BLOCKS);
let from = 8 * BLOCKS;
const take = count => { from += count; return new Uint8Array(bytes, from - count, count); };
const pages = take(COUNT), sizes = take(COUNT), types = take(COUNT), blockState = take(BLOCKS), blockType = take(BLOCKS);
const stateOf = page => pages[page] & 7, shareOf = page => pages[page] >> 3;

const number = n => n.toLocaleString("en-US");
const hex = n => "0x" + n.toString(16);
function size(n) {
  if (n < 1024) return n + " B";
  let unit = -1;
  do { n /= 1024; unit++; } while (n >= 999.5 && unit < 3);
  return (n < 9.95 ? n.toFixed(1) : n.toFixed(0)) + " " + ["KiB", "MiB", "GiB", "TiB"][unit];
}
const percent = part => part < 0.0005 ? "< 0.1 %" : (part * 100).toFixed(part < 0.0995 ? 1 : 0) + " %";
function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

/* ---- areas and parts: pages are numbered through all areas; a part is contiguous memory */
const areas = meta.areas;
const parts = areas.flatMap(area => area.parts.map(([start, end, first, count, block, blocks]) => ({area, start, end, first, count, block, blocks})));
function lastFrom(list, value, key) {
  let low = 0, high = list.length;
  while (low < high) { const middle = (low + high) >> 1; if (key(list[middle]) <= value) low = middle + 1; else high = middle; }
  return list[low - 1];
}
const partOf = page => lastFrom(parts, page, part => part.first);
const addressOf = page => { const part = partOf(page); return Math.max(part.start, (Math.floor(part.start / PAGE) + page - part.first) * PAGE); };

/* ---- colours */
const dark = matchMedia("(prefers-color-scheme: dark)");
const shades = new Uint8Array(512 * 3); // colours of the 256 values of a page's first byte; then the same colours, dimmed by a filter
let ground, ink, pale, line, accent;
function rgb(text) { return [1, 3, 5].map(at => parseInt(text.slice(at, at + 2), 16)); }
const mix = (a, b, part) => a.map((value, at) => value + (b[at] - value) * part);
function colours() {
  const of = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  ground = of("--ground"); ink = of("--ink"); pale = of("--pale"); line = of("--line"); accent = of("--accent");
  const back = rgb(ground), faint = rgb(dark.matches ? meta.faint[1] : meta.faint[0]);
  for (let value = 0; value < 256; value++) {
    let colour = rgb(STATES[value & 7].colours[dark.matches ? 1 : 0]);
    if ((value & 7) === USED) colour = mix(faint, colour, (value >> 3) / 31);
    shades.set(colour, value * 3);
    shades.set(mix(colour, back, 0.86), (value + 256) * 3);
  }
  for (const made of document.querySelectorAll("[data-state]")) made.style.background = STATES[made.dataset.state].colours[dark.matches ? 1 : 0];
}

/* ---- filters */
const chosen = new Set();
let dimmed = new Uint8Array(COUNT), filtered = false;
const band = at => { const n = meta.sizes[at]; return n ? Math.max(4, Math.ceil(Math.log2(n))) : 0; };
const bands = meta.sizes.map((_, at) => band(at));
function filter() {
  const wantedBand = $("sizes").value === "" ? -1 : +$("sizes").value, wantedType = $("types").value === "" ? -1 : +$("types").value;
  filtered = chosen.size > 0 || wantedBand >= 0 || wantedType >= 0;
  let left = 0;
  for (let page = 0; page < COUNT; page++) {
    const fits = (!chosen.size || chosen.has(pages[page] & 7)) && (wantedBand < 0 || bands[sizes[page]] === wantedBand) &&
      (wantedType < 0 || types[page] === wantedType);
    dimmed[page] = fits ? 0 : 1;
    left += fits;
  }
  $("matches").textContent = filtered ? number(left) + " of " + number(COUNT) + " pages (" + size(left * PAGE) + ")" : "";
  draw();
}

/* ---- zoom: each cell represents a number of pages that is a power of two */
const scroller = $("scroller"), canvas = $("canvas"), context = canvas.getContext("2d");
let levels = [], level = 0, columns = 1, total = 0, width = 0, height = 0, ratio = 1;
function makeLevels() {
  levels = [];
  let per = 1;
  while (per * 64 < Math.max(...areas.map(area => area.count))) per *= 2;
  for (; per > 1; per /= 2) levels.push({per, cell: 4});
  for (const cell of [4, 6, 8, 12, 16, 24, 32]) levels.push({per: 1, cell});
}
function place(at) {
  const {per, cell} = levels[at], across = Math.max(1, Math.floor((width - GUTTER - SIDE) / cell));
  let y = 8;
  const tops = areas.map(area => {
    const top = y, rows = Math.ceil(Math.ceil(area.count / per) / across);
    y += HEAD + rows * cell + BELOW;
    return {top, rows};
  });
  return {across, tops, height: y};
}
let tops = [];
function arrange() {
  const placed = place(level);
  columns = placed.across; tops = placed.tops; total = placed.height;
  $("space").style.height = Math.max(total, height) + "px";
  const {per, cell} = levels[level];
  $("scale").textContent = per > 1 ? "a cell is " + number(per) + " pages, " + size(per * PAGE) : "a cell is a page" + (cell > 4 ? ", enlarged" : "");
  $("in").disabled = level === levels.length - 1;
  $("out").disabled = level === 0;
}
function fit() { // without headings, the cells should not be much higher than the visible part
  const tall = at => place(at).tops.reduce((sum, top) => sum + top.rows, 0) * levels[at].cell;
  level = 0;
  while (level + 1 < levels.length && tall(level + 1) <= 1.2 * Math.max(height, 300)) level++;
}
function resize() {
  width = scroller.clientWidth; height = scroller.clientHeight; ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px"; canvas.style.height = height + "px";
}
/* Return the page at a point of the canvas, and the point at which a page is drawn. */
function under(x, y) {
  const {per, cell} = levels[level], at = y + scroller.scrollTop;
  const index = tops.findIndex((top, i) => at >= top.top + HEAD && at < top.top + HEAD + top.rows * cell);
  if (index < 0 || x < GUTTER) return null;
  const column = Math.floor((x - GUTTER) / cell), row = Math.floor((at - tops[index].top - HEAD) / cell);
  const first = (row * columns + column) * per;
  if (column >= columns || first >= areas[index].count) return null;
  const page = areas[index].first + first, begin = Math.floor(addressOf(page) / PAGE) * PAGE;
  return {area: areas[index], page, count: Math.min(per, areas[index].count - first), at: begin + PAGE * (((x - GUTTER) / cell) % 1)};
}
function position(page) {
  const {per, cell} = levels[level], index = areas.indexOf(lastFrom(areas, page, area => area.first));
  const number = Math.floor((page - areas[index].first) / per);
  return {x: GUTTER + number % columns * cell, y: tops[index].top + HEAD + Math.floor(number / columns) * cell};
}
function zoom(step, x = width / 2, y = height / 2) {
  const wanted = Math.min(levels.length - 1, Math.max(0, level + step));
  if (wanted === level) return;
  const held = under(x, y) || near(y);
  level = wanted;
  arrange();
  if (held) scroller.scrollTop = position(held.page).y - y + levels[level].cell / 2;
  unpin();
  draw();
}
function near(y) { // the first page at this height, or below it
  const at = y + scroller.scrollTop, {per, cell} = levels[level];
  const index = tops.findIndex(top => at < top.top + HEAD + top.rows * cell);
  if (index < 0) return null;
  const row = Math.max(0, Math.floor((at - tops[index].top - HEAD) / cell));
  return {page: Math.min(areas[index].first + row * columns * per, areas[index].first + areas[index].count - 1)};
}

/* ---- drawing */
let marked = -1;
function draw() {
  const scroll = scroller.scrollTop, {per, cell} = levels[level];
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = ground;
  context.fillRect(0, 0, width, height);
  for (let index = 0; index < areas.length; index++) {
    const area = areas[index], top = tops[index].top - scroll, bottom = top + HEAD + tops[index].rows * cell;
    if (bottom < 0) continue;
    if (top > height) break;
    grid(area, top + HEAD, tops[index].rows);
    context.font = "600 13px system-ui, sans-serif";
    context.fillStyle = ink;
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    context.fillText(area.name, SIDE, top + 28);
    const after = SIDE + context.measureText(area.name).width + 12;
    context.font = "13px system-ui, sans-serif";
    context.fillStyle = pale;
    context.fillText(area.sums, after, top + 28);
    context.font = "11px ui-monospace, 'DejaVu Sans Mono', Menlo, monospace";
    const every = Math.max(1, Math.ceil(30 / cell));
    for (let row = 0; row < tops[index].rows; row += every) {
      const y = top + HEAD + row * cell + 9;
      if (y > -20 && y < height + 20) context.fillText(hex(addressOf(area.first + row * columns * per)), SIDE, y);
    }
  }
  if (marked >= 0) {
    const {x, y} = position(marked);
    context.strokeStyle = ink;
    context.lineWidth = 2;
    context.strokeRect(x - 1, y - scroll - 1, cell + 2, cell + 2);
  }
  document.documentElement.dataset.drawn = +(document.documentElement.dataset.drawn || 0) + 1;
}
function grid(area, top, rows) {
  const {per, cell} = levels[level], first = Math.max(0, Math.floor(-top / cell)), last = Math.min(rows, Math.ceil((height - top) / cell));
  if (first >= last) return;
  const wide = Math.round(columns * cell * ratio), tall = Math.round((last - first) * cell * ratio);
  const image = new ImageData(wide, tall), out = new Uint32Array(image.data.buffer), gap = cell >= 8 ? Math.round(ratio) : 0;
  for (let row = first; row < last; row++) {
    const y0 = Math.round((row - first) * cell * ratio), y1 = Math.min(tall, Math.round((row - first + 1) * cell * ratio));
    for (let column = 0; column < columns; column++) {
      const low = (row * columns + column) * per;
      if (low >= area.count) break;
      const high = Math.min(low + per, area.count), colour = average(area.first + low, area.first + high);
      out.fill(colour, y0 * wide + Math.round(column * cell * ratio), y0 * wide + Math.round((column + 1) * cell * ratio) - gap);
    }
    for (let y = y0 + 1; y < y1 - gap; y++) out.copyWithin(y * wide, y0 * wide, (y0 + 1) * wide);
  }
  context.save();
  context.setTransform(1, 0, 0, 1, 0, 0);
  layer.width = wide; layer.height = tall;
  layer.getContext("2d").putImageData(image, 0, 0);
  context.drawImage(layer, Math.round(GUTTER * ratio), Math.round((top + first * cell) * ratio));
  context.restore();
}
const layer = document.createElement("canvas");
function average(low, high) {
  let red = 0, green = 0, blue = 0;
  for (let page = low; page < high; page++) {
    const at = (pages[page] + (dimmed[page] << 8)) * 3;
    red += shades[at]; green += shades[at + 1]; blue += shades[at + 2];
  }
  const count = high - low;
  return (255 << 24 | Math.round(blue / count) << 16 | Math.round(green / count) << 8 | Math.round(red / count)) >>> 0;
}

/* ---- the tooltip */
const tip = $("tip");
let pinned = false;
function alike(page) {
  const part = partOf(page), most = 1 << 22, state = stateOf(page), used = state === USED || state === UNTOUCHED;
  const same = other => stateOf(other) === state && (!used || (sizes[other] === sizes[page] && types[other] === types[page]));
  let low = page, high = page + 1;
  while (low > part.first && page - low < most && same(low - 1)) low--;
  while (high < part.first + part.count && high - page < most && same(high)) high++;
  return [low, high];
}
function describe({area, page, count, at}) {
  tip.replaceChildren();
  const state = STATES[stateOf(page)], [low, high] = alike(page), title = element("b"), swatch = element("span", undefined, "swatch");
  swatch.dataset.state = stateOf(page);
  title.append(swatch, count > 1 ? "first of " + number(count) + " pages: " + state.name : state.name);
  const begin = addressOf(low), part = partOf(page), end = Math.min(part.end, addressOf(high - 1) + PAGE);
  const lines = [[area.name, "pale"], [hex(begin) + " – " + hex(end), "where"],
    [(high - low > 1 ? number(high - low) + " pages alike, " : "a page, ") + size(end - begin), ""]];
  if (stateOf(page) === USED || stateOf(page) === UNTOUCHED) lines.push([Math.round(shareOf(page) / 31 * 100) + " % of the page at " + hex(addressOf(page)) + " is in use", ""]);
  if (sizes[page]) lines.push(["blocks of " + (meta.about[sizes[page]] ? "about " : "") + size(meta.sizes[sizes[page]]), ""]);
  if (types[page]) lines.push(["type " + meta.types[types[page]], ""]);
  const kept = area.spare.length && lastFrom(area.spare, Math.max(addressOf(page), begin), one => one[0]);
  if (kept && addressOf(page) < kept[1] && stateOf(page) >= 5) lines.push(["the allocator's “" + kept[2] + "”, " + size(kept[1] - kept[0]), ""]);
  if (count > 1) lines.push([mixture(page, count), "pale"]);
  lines.push([state.meaning, "pale"]);
  tip.append(title, ...lines.map(([text, kind]) => element("div", text, kind)));
  const table = blocksOf(page, part, count > 1 ? 0 : at);
  if (table) tip.append(table);
  swatch.style.background = state.colours[dark.matches ? 1 : 0];
}
function mixture(page, count) {
  const sums = new Array(8).fill(0);
  for (let at = page; at < page + count; at++) sums[stateOf(at)]++;
  return sums.map((sum, at) => [sum, at]).filter(([sum]) => sum).sort((a, b) => b[0] - a[0])
    .map(([sum, at]) => number(sum) + " " + STATES[at].name.replace("free, ", "")).join(", ");
}
function blocksOf(page, part, wanted) { // the blocks of the page: the block at `wanted`, which is highlighted, and a few blocks before it
  if (!part.blocks) return null;
  const low = addressOf(page), high = (Math.floor(low / PAGE) + 1) * PAGE, table = element("table");
  const start = at => part.start + blockAt[at] * 4;
  let at = part.block, last = part.block + part.blocks;
  while (at < last) { const middle = (at + last) >> 1; if (start(middle) + blockSize[middle] <= low) at = middle + 1; else last = middle; }
  const holds = at => wanted >= start(at) && (at + 1 === part.block + part.blocks || wanted < start(at + 1));
  let shown = 0, more = 0, before = 0;
  const first = at;
  while (at < part.block + part.blocks && start(at) < high && !holds(at)) at++;
  at = at === part.block + part.blocks || start(at) >= high ? first : Math.max(first, at - 2);
  before = at - first;
  if (before) { const row = element("tr"); row.append(element("td", number(before) + " before", "pale")); table.append(row); }
  for (; at < part.block + part.blocks && start(at) < high; at++) {
    if (shown === 8) { more++; continue; }
    shown++;
    const row = element("tr", undefined, holds(at) ? "here" : "");
    row.append(element("td", hex(start(at))), element("td", number(blockSize[at]) + " B", "n"),
      element("td", ["in use", "cached", "free", "metadata"][blockState[at]]), element("td", meta.types[blockType[at]] || ""));
    table.append(row);
  }
  if (more) { const row = element("tr"); row.append(element("td", "and " + number(more) + " more", "pale")); table.append(row); }
  return shown ? table : null;
}
function showTip(found, x, y) {
  describe(found);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 16, innerWidth - box.width - 8)) + "px";
  tip.style.top = Math.max(4, y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18) + "px";
  if (marked !== found.page) { marked = found.page; draw(); }
}
function unpin() {
  pinned = false;
  tip.classList.remove("pinned");
  tip.hidden = true;
  marked = -1;
}
function go(text) {
  const wanted = Number(text);
  const part = Number.isFinite(wanted) && parts.find(one => wanted >= one.start && wanted < one.end);
  $("address").classList.toggle("bad", text !== "" && !part);
  if (!part) return;
  const page = part.first + Math.floor(wanted / PAGE) - Math.floor(part.start / PAGE);
  scroller.scrollTop = position(page).y - height / 2;
  const {x, y} = position(page), box = canvas.getBoundingClientRect();
  showTip({area: part.area, page, count: 1, at: wanted}, box.left + x, box.top + y - scroller.scrollTop);
  pinned = true;
  tip.classList.add("pinned");
}

/* ---- the user */
let grabbed = null;
scroller.addEventListener("pointerdown", event => { grabbed = {y: event.clientY, top: scroller.scrollTop, moved: false}; });
addEventListener("pointermove", event => {
  if (grabbed && event.buttons & 1) {
    if (Math.abs(event.clientY - grabbed.y) > 4) { grabbed.moved = true; scroller.classList.add("moving"); if (!pinned) unpin(); }
    if (grabbed.moved) scroller.scrollTop = grabbed.top + grabbed.y - event.clientY;
    return;
  }
  if (pinned) return;
  const box = canvas.getBoundingClientRect(), inside = scroller.contains(event.target);
  const found = inside ? under(event.clientX - box.left, event.clientY - box.top) : null;
  if (found) showTip(found, event.clientX, event.clientY);
  else if (!tip.hidden) { unpin(); draw(); }
});
addEventListener("pointerup", event => {
  const click = grabbed && !grabbed.moved;
  grabbed = null;
  scroller.classList.remove("moving");
  if (!click) return;
  const was = pinned, box = canvas.getBoundingClientRect();
  unpin();
  const found = was ? null : under(event.clientX - box.left, event.clientY - box.top);
  if (found) { showTip(found, event.clientX, event.clientY); pinned = true; tip.classList.add("pinned"); } else draw();
});
scroller.addEventListener("wheel", event => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  const box = canvas.getBoundingClientRect();
  zoom(event.deltaY < 0 ? 1 : -1, event.clientX - box.left, event.clientY - box.top);
}, {passive: false});
scroller.addEventListener("dblclick", event => { const box = canvas.getBoundingClientRect(); zoom(1, event.clientX - box.left, event.clientY - box.top); });
scroller.addEventListener("scroll", () => { if (!pinned) { tip.hidden = true; marked = -1; } draw(); });
addEventListener("keydown", event => {
  if (event.target.matches("input, select")) return;
  if (event.key === "+" || event.key === "=") zoom(1);
  else if (event.key === "-") zoom(-1);
  else if (event.key === "0") { fit(); arrange(); draw(); }
  else if (event.key === "Escape") { unpin(); draw(); }
});
$("in").onclick = () => zoom(1);
$("out").onclick = () => zoom(-1);
$("fit").onclick = () => { fit(); arrange(); scroller.scrollTop = 0; draw(); };
$("address").onchange = event => go(event.target.value.trim());
addEventListener("resize", () => { resize(); arrange(); draw(); });
dark.addEventListener("change", () => { colours(); draw(); });

/* ---- the head */
$("title").textContent = meta.title;
$("summary").textContent = meta.summary;
const all = STATES.reduce((sum, state) => sum + state.bytes, 0) || 1;
for (const [at, state] of STATES.map((state, at) => [at, state]).filter(([, state]) => state.bytes).sort((a, b) => a[1].order - b[1].order)) {
  const slice = element("i"), chip = element("button"), swatch = element("span", undefined, "swatch");
  slice.dataset.state = swatch.dataset.state = at;
  slice.style.width = state.bytes / all * 100 + "%";
  slice.title = state.name + ": " + size(state.bytes);
  chip.title = state.meaning + (at === USED ? ": a stronger colour means that more of the page is in use" : "") + "; click to show only these";
  chip.setAttribute("aria-pressed", "false");
  chip.append(swatch, state.name, element("span", size(state.bytes) + " · " + percent(state.bytes / all), "amount"));
  chip.onclick = () => {
    if (!chosen.delete(at)) chosen.add(at);
    chip.setAttribute("aria-pressed", String(chosen.has(at)));
    filter();
  };
  $("bar").append(slice);
  $("chips").append(chip);
}
function options(select, every, rows) {
  select.append(new Option(every, ""), ...rows.map(([value, text]) => new Option(text, value)));
  select.onchange = filter;
  select.disabled = !rows.length;
}
const inBand = new Map(), ofType = new Map();
for (let page = 0; page < COUNT; page++) {
  if (sizes[page]) inBand.set(bands[sizes[page]], (inBand.get(bands[sizes[page]]) || 0) + 1);
  if (types[page]) ofType.set(types[page], (ofType.get(types[page]) || 0) + 1);
}
options($("sizes"), "all", [...inBand].sort((a, b) => a[0] - b[0]).map(([at, count]) =>
  [at, (at > 4 ? number(2 ** (at - 1) + 1) + " – " : "up to ") + number(2 ** at) + " B  (" + number(count) + " pages)"]));
options($("types"), "all", [...ofType].sort((a, b) => b[1] - a[1]).map(([at, count]) => [at, meta.types[at] + "  (" + number(count) + " pages)"]));

colours();
resize();
makeLevels();
fit();
arrange();
draw();
document.documentElement.dataset.ready = "yes";
})();
