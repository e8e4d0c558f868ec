/* ---- the chart: curves of the chosen rows; if none is chosen, of the rows that grew most */
const CURVES = 8, WORTH = 0.005; // maximum number of curves; a row is drawn only if it grew by at least this fraction of the first row's growth
const state = {category: categories.find(one => one.word === meta.opened) || categories[0], mode: "change", unit: "bytes", chosen: [], sample: -1, near: null};
const chart = $("chart"), tip = $("tip");
let shown = [];      // curves: {row, name, colour, values, base}; base: in a stack, the values below this curve
let frame = null;    // the scales of the drawing

const xs = meta.times || meta.samples.map(one => one[1]);
const inUnit = (row, unit) => row[unit];
const most = values => values.reduce((high, value) => Math.max(high, value === null ? 0 : Math.abs(value)), 0);
const inCategory = unit => state.category.rows.filter(row => inUnit(row, unit));
function grownIn(row, unit) { const values = inUnit(row, unit); return (values[LAST] || 0) - (values[0] || 0); }

/* Return the possible modes. Rows that overlap, or that the user has chosen, are not stacked. */
const modes = () => state.category.stacked && state.unit === "bytes" && !state.chosen.length ? ["stacked", "values", "change"] : ["values", "change"];
const modeNow = () => modes().includes(state.mode) ? state.mode : "values";

function candidates() {
  if (state.chosen.length) return state.chosen.filter(row => inUnit(row, state.unit));
  const rows = inCategory(state.unit);
  const rank = modeNow() === "stacked" ? row => most(row[state.unit]) : row => grownIn(row, state.unit);
  const sorted = rows.map(row => [rank(row), most(row[state.unit]), row]).sort((a, b) => b[0] - a[0] || b[1] - a[1]).map(one => one[2]);
  const found = distinct(sorted).slice(0, CURVES), least = found.length ? WORTH * rank(found[0]) : 0;
  return least > 0 ? found.filter(row => rank(row) >= least) : found;
}
/* "All" contains rows and their parts. If several of them have the same curve, only one is shown. */
function distinct(rows) {
  const seen = new Set();
  return rows.filter(row => {
    const key = row[state.unit].join();
    return !seen.has(key) && seen.add(key);
  });
}

function curves() {
  const mode = modeNow(), unit = state.unit;
  const made = candidates().map((row, at) => ({row, name: row.label, colour: "var(--c" + at % CURVES + ")", dashed: at >= CURVES, values: row[unit], raw: row[unit]}));
  if (mode === "stacked") {
    const kept = new Set(made.map(curve => curve.row)), others = inCategory(unit).filter(row => !kept.has(row));
    if (others.length) {
      const sum = meta.samples.map((_, at) => others.reduce((total, row) => total + (row[unit][at] || 0), 0));
      made.push({row: null, name: counted(others.length, "other row"), colour: "var(--other)", values: sum, raw: sum});
    }
    let base = new Array(COUNT).fill(0);
    for (const curve of made.slice().reverse()) {
      curve.base = base;
      base = base.map((value, at) => value + (curve.raw[at] || 0));
      curve.values = base;
    }
  }
  const total = series[meta.total.series].bytes;
  if (total && unit === "bytes" && !state.chosen.length && ["share", "grew"].includes(state.category.word)) {
    made.unshift({row: null, total: true, name: "total " + meta.total.name, colour: "var(--ink)", values: total, raw: total});
  }
  if (mode === "change") for (const curve of made) {
    const first = curve.raw.find(value => value !== null) || 0;
    curve.values = curve.raw.map(value => value === null ? null : value - first);
  }
  return made;
}

/* ---- scales */
function bounds(list) {
  let low = 0, high = 0;
  for (const curve of list) for (const value of curve.values) if (value !== null) { if (value < low) low = value; if (value > high) high = value; }
  if (high <= low) return [0, state.unit === "bytes" ? 1024 : 1];
  const margin = 0.03 * (high - low);
  return [low < 0 ? low - margin : 0, high > 0 ? high + margin : 0];
}
function step(span, ticks, least) {
  const rough = span / ticks, power = 10 ** Math.floor(Math.log10(rough));
  const found = [1, 2, 5, 10].map(one => one * power).find(one => one >= rough);
  return Math.max(found, least);
}
function ticksOf(low, high, wanted, unit) {
  let scale = 1, name = "";
  if (unit === "bytes") {
    const power = Math.min(4, Math.floor(Math.log(Math.max(1, high, -low)) / Math.log(1024) + 1e-9));
    scale = 1024 ** power;
    name = power ? " " + UNITS[power - 1] : " B";
  }
  const every = step((high - low) / scale, wanted, unit === "bytes" && scale > 1 ? 0 : 1), found = [];
  const first = Math.ceil(low / scale / every - 1e-9), last = Math.floor(high / scale / every + 1e-9);
  for (let at = first; at <= last; at++) {
    const value = +(at * every).toPrecision(12);
    found.push([value * scale, (modeNow() === "change" && value > 0 ? "+ " : "") + (value < 0 ? "− " : "") + decimal(Math.abs(value)) + (value ? name : unit === "bytes" ? " B" : "")]);
  }
  return found;
}
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200];
/* Return the ticks of the time axis: times of day if these are known and useful, otherwise the time since the first sample. If times are
   unknown, return the numbers of the samples. */
function timeTicks(width) {
  const low = xs[0], high = xs[LAST], wanted = Math.max(2, Math.floor(width / 110));
  if (!meta.times) {
    const every = Math.max(1, Math.ceil(step(Math.max(1, high - low), wanted, 1))), found = [];
    for (let at = every === 1 ? low : Math.ceil(low / every) * every; at <= high; at += every) found.push([at, decimal(at)]);
    if (every > 1 && found.length && found[0][0] - low >= every / 2) found.unshift([low, decimal(low)]);
    return [found, "sample"];
  }
  const span = high - low;
  if (meta.start === null || span < 30) {
    const [length, name] = span >= 2 * 86400 ? [86400, "d"] : span >= 2 * 3600 ? [3600, "h"] : span >= 120 ? [60, "min"] : [1, "s"];
    const every = step(span / length, wanted, 0), found = [];
    for (let at = 0; at * every * length <= span * (1 + 1e-9); at++) found.push([at * every * length, +(at * every).toPrecision(10) + " " + name]);
    return [found, "time since the first sample"];
  }
  const days = [1, 2, 7, 14, 30, 60, 91, 182, 365].map(one => one * 86400).concat([1, 2, 5, 10, 20, 50, 100, 1000, 10000].map(one => one * 365.25 * 86400));
  const every = STEPS.concat(days).find(one => span / one <= wanted) || span;
  const offset = -60 * new Date(meta.start * 1000).getTimezoneOffset(), found = [];
  let before = "";
  for (let at = Math.ceil((meta.start + offset) / every) * every - offset; at <= meta.start + span; at += every) {
    const date = new Date(at * 1000), today = day(date);
    const text = every >= 300 * 86400 ? String(date.getFullYear()) : every >= 86400 ? today : clock(date, every < 60);
    found.push([at - meta.start, text, every < 86400 && today !== before ? today : ""]);
    before = today;
  }
  if (before && found.every(one => !one[2] || one[2] === found[0][2]) && day(new Date(meta.start * 1000)) === before) found[0][2] = "";
  if (every >= 86400) return [found, every >= 300 * 86400 ? "year" : "date"];
  return [found, "time of day" + (found.some(one => one[2]) ? "" : ", " + day(new Date(meta.start * 1000)))];
}

/* ---- drawing */
function path(curve, x, y) {
  let text = "", pen = "M";
  curve.values.forEach((value, at) => {
    if (value === null) { pen = "M"; return; }
    text += pen + x(xs[at]).toFixed(1) + " " + y(value).toFixed(1);
    pen = "L";
  });
  return text;
}
function area(curve, x, y) {
  const back = curve.base.map((value, at) => x(xs[at]).toFixed(1) + " " + y(value).toFixed(1)).reverse();
  return path(curve, x, y) + "L" + back.join("L") + "Z";
}
function draw() {
  shown = curves();
  chart.replaceChildren();
  const width = chart.clientWidth || 800, height = chart.clientHeight || 320;
  const [low, high] = bounds(shown), ticks = ticksOf(low, high, Math.max(2, Math.floor(height / 48)), state.unit);
  const widest = Math.max(...ticks.map(one => one[1].length));
  const left = 14 + 6.6 * widest, right = width - 22, top = 10, bottom = height - 40;
  const x = value => xs[LAST] > xs[0] ? left + (value - xs[0]) / (xs[LAST] - xs[0]) * (right - left) : (left + right) / 2;
  const y = value => bottom - (value - low) / (high - low) * (bottom - top);
  frame = {x, y, left, right, top, bottom, width};
  const grid = drawn("g", {class: "grid"}, chart);
  for (const [value, text] of ticks) {
    drawn("line", {x1: left, x2: right, y1: y(value), y2: y(value), class: value === 0 ? "zero" : ""}, grid);
    drawn("text", {x: left - 8, y: y(value) + 4, "text-anchor": "end"}, grid, text);
  }
  const [across, axis] = timeTicks(right - left);
  for (const [value, text, date] of across) {
    const at = x(value);
    drawn("line", {x1: at, x2: at, y1: bottom, y2: bottom + 5, class: "zero"}, grid);
    const anchor = at > right - 12 && text.length > 5 ? "end" : "middle";
    drawn("text", {x: at, y: bottom + 18, "text-anchor": anchor}, grid, text);
    if (date) drawn("text", {x: at, y: bottom + 32, "text-anchor": anchor, class: "day"}, grid, date);
  }
  drawn("text", {x: right, y: bottom + 34, "text-anchor": "end", class: "axis"}, grid, axis);
  const body = drawn("g", {class: "curves"}, chart);
  for (const curve of shown.filter(one => one.base)) drawn("path", {d: area(curve, x, y), fill: curve.colour, class: "area", "data-at": shown.indexOf(curve)}, body);
  for (const curve of shown.slice().reverse()) {
    const at = shown.indexOf(curve);
    drawn("path", {d: path(curve, x, y), stroke: curve.colour, class: "curve" + (curve.total ? " total" : "") + (curve.dashed ? " dashed" : "") + (curve.base ? " edge" : ""), "data-at": at}, body);
    if (COUNT <= 40 && !curve.base) curve.values.forEach((value, sample) => {
      if (value !== null) drawn("circle", {cx: x(xs[sample]), cy: y(value), r: curve.total ? 2.5 : 3, fill: curve.colour, "data-at": at}, body);
    });
  }
  drawn("g", {id: "cross"}, chart);
  chart.setAttribute("aria-label", state.category.title + ": " + shown.map(curve => curve.name).join("; "));
  legend();
  cross();
}

/* ---- the legend: all curves, or the details of a single chosen row */
function legend() {
  const box = $("legend");
  box.replaceChildren();
  if (state.chosen.length) {
    const bar = element("div", null, "bar"), back = element("button", "× show the top rows");
    back.onclick = () => choose([]);
    bar.append(element("b", counted(state.chosen.length, "chosen row")), back);
    box.append(bar);
  }
  shown.forEach((curve, at) => {
    const line = element("button", null, "entry"), swatch = element("i", null, "swatch" + (curve.total ? " line" : ""));
    swatch.style.background = curve.colour;
    const change = (curve.raw[LAST] || 0) - (curve.raw[0] || 0);
    line.append(swatch, element("span", curve.name, "name"), element("span", state.mode === "change" ? signed(change, state.unit) : amount(curve.raw[LAST], state.unit), "value"));
    line.title = curve.name;
    line.onpointerenter = line.onfocus = () => light(at);
    line.onpointerleave = line.onblur = () => light(-1);
    if (curve.row) line.onclick = event => choose(toggled(curve.row, event.ctrlKey || event.metaKey || event.shiftKey)); else line.disabled = true;
    box.append(line);
  });
  if (state.chosen.length === 1) box.append(detail(state.chosen[0]));
  if (!shown.length) box.append(element("p", "no figures in this unit", "pale"));
}
function detail(row) {
  const list = element("dl");
  const add = (name, text) => { if (text) list.append(element("dt", name), element("dd", text)); };
  add("Name", row.name);
  add("Of", row.within);
  add("Note", row.note);
  add("Section", row.section);
  if (row.bytes) add("Bytes", amount(row.bytes[0], "bytes") + " → " + amount(row.bytes[LAST], "bytes") + " (" + signed((row.bytes[LAST] || 0) - (row.bytes[0] || 0), "bytes") + ")");
  if (row.count) add("Count", amount(row.count[0], "count") + " → " + amount(row.count[LAST], "count") + " (" + signed((row.count[LAST] || 0) - (row.count[0] || 0), "count") + ")");
  const known = row.values.filter(value => value !== null);
  if (COUNT > 2 && known.length) add("Range", amount(Math.min(...known), row.unit) + " to " + amount(Math.max(...known), row.unit));
  add("Trend", trends[row.trend]);
  if (row.hour) {
    const [rate, from, to] = row.hour;
    add("Per hour", signed(rate, row.unit) + (COUNT > 2 ? " (Theil–Sen; 95 %: " + signed(from, row.unit) + " to " + signed(to, row.unit) + ")" : ""));
  }
  for (const part of row.inside) {
    const values = part.bytes || part.count;
    add("Part", part.name + ": " + signed((values[LAST] || 0) - (values[0] || 0), part.bytes ? "bytes" : "count"));
  }
  return list;
}
function light(at) {
  chart.classList.toggle("lit", at >= 0);
  for (const one of chart.querySelectorAll("[data-at]")) one.classList.toggle("on", +one.dataset.at === at);
  for (const [entry, line] of [...$("legend").querySelectorAll(".entry")].entries()) line.classList.toggle("on", entry === at);
}

/* ---- under the pointer */
function cross() {
  const group = $("cross");
  group.replaceChildren();
  if (state.sample < 0 || !frame) { tip.hidden = true; $("said").textContent = ""; return; }
  const at = frame.x(xs[state.sample]);
  drawn("line", {x1: at, x2: at, y1: frame.top, y2: frame.bottom}, group);
  for (const curve of shown) {
    const value = curve.values[state.sample];
    if (value !== null) drawn("circle", {cx: at, cy: frame.y(value), r: 4, fill: curve.colour}, group);
  }
}
function describe() {
  const at = state.sample, [name, ordinal] = meta.samples[at];
  tip.replaceChildren(element("b", decimal(ordinal) + " of " + decimal(meta.of) + "  " + name), element("div", when(at), "pale"));
  const table = element("table");
  for (const curve of shown) {
    const line = element("tr"), swatch = element("i", null, "swatch" + (curve.total ? " line" : ""));
    swatch.style.background = curve.colour;
    const mark = element("td");
    mark.append(swatch);
    const value = curve.raw[at], first = curve.raw.find(one => one !== null) || 0;
    line.append(mark, element("td", amount(value, state.unit), "n"), element("td", value === null || !at ? "" : signed(value - first, state.unit), "n pale"), element("td", curve.name, "name"));
    if (curve === state.near) line.className = "here";
    table.append(line);
  }
  tip.append(table);
}
function point(sample, y, pageX, pageY) {
  state.sample = sample;
  state.near = null;
  let least = 24;
  if (y !== null) for (const curve of shown) {
    const value = curve.values[sample];
    if (value === null) continue;
    if (curve.base) { if (y >= frame.y(value) && y <= frame.y(curve.base[sample])) { state.near = curve; least = 0; } continue; }
    const away = Math.abs(frame.y(value) - y);
    if (away < least) { least = away; state.near = curve; }
  }
  cross();
  light(state.near ? shown.indexOf(state.near) : -1);
  describe();
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), edge = chart.getBoundingClientRect().right; // text beside the chart must stay readable
  tip.style.left = Math.max(4, pageX + 18 + box.width > edge ? pageX - box.width - 14 : pageX + 18) + "px";
  tip.style.top = Math.max(4, Math.min(pageY - box.height / 2, innerHeight - box.height - 6)) + "px";
}
function nearest(x) {
  let best = 0;
  for (let at = 1; at < COUNT; at++) if (Math.abs(frame.x(xs[at]) - x) < Math.abs(frame.x(xs[best]) - x)) best = at;
  return best;
}
function away() {
  state.sample = -1;
  state.near = null;
  cross();
  light(-1);
}
chart.addEventListener("pointermove", event => {
  const box = chart.getBoundingClientRect();
  point(nearest(event.clientX - box.left), event.clientY - box.top, event.clientX, event.clientY);
});
chart.addEventListener("pointerleave", away);
chart.addEventListener("blur", away);
chart.addEventListener("click", event => { if (state.near && state.near.row) choose(toggled(state.near.row, event.ctrlKey || event.metaKey || event.shiftKey)); });
chart.addEventListener("keydown", event => {
  const moves = {ArrowLeft: state.sample < 0 ? LAST : state.sample - 1, ArrowRight: state.sample + 1, Home: 0, End: LAST};
  if (!(event.key in moves)) return;
  event.preventDefault();
  const at = Math.max(0, Math.min(LAST, moves[event.key])), box = chart.getBoundingClientRect();
  point(at, null, box.left + frame.x(xs[at]), box.top + 60);
  $("said").textContent = [meta.samples[at][0], when(at), ...shown.map(curve => curve.name + " " + amount(curve.raw[at], state.unit))].join("; ");
});
