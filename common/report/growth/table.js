/* ---- the table: the rows of the category, sorted and filtered; rows are added when the user scrolls to them */
const PIECE = 100;
const COLUMNS = [
  {word: "what", title: "What", value: row => row.label.toLowerCase()},
  {word: "before", title: "Before", value: row => row.before || 0},
  {word: "after", title: "After", value: row => row.after || 0},
  {word: "growth", title: "Growth", value: row => row.delta},
  {word: "hour", title: "Per hour", value: row => row.rate || 0},
  {word: "trend", title: "Trend", value: row => row.trend},
  {word: "course", title: "Curve", value: null},
];
const order = {column: COLUMNS[3], down: true};
let listed = [], active = 0;
const body = $("rows").tBodies[0];

function sort() {
  const {value} = order.column, sign = order.down ? -1 : 1, text = order.column.word === "what";
  const compare = (a, b) => text ? value(a).localeCompare(value(b)) : value(a) - value(b);
  // Bytes and counts have no common order, except by name and trend.
  const apart = !["what", "trend"].includes(order.column.word);
  listed.sort((a, b) => (apart && (b.unit === "bytes") - (a.unit === "bytes")) || sign * compare(a, b) || b.delta - a.delta || a.id - b.id);
}
function heads() {
  const line = $("rows").tHead.rows[0];
  line.replaceChildren();
  for (const column of COLUMNS) {
    const head = element("th", null, column.word);
    head.scope = "col";
    if (column.value) {
      const sorted = order.column === column, button = element("button", column.title);
      head.setAttribute("aria-sort", sorted ? (order.down ? "descending" : "ascending") : "none");
      button.append(element("span", sorted ? (order.down ? "▾" : "▴") : "", "arrow"));
      button.dataset.column = column.word;
      button.onclick = () => {
        order.down = order.column === column ? !order.down : column.word !== "what";
        order.column = column;
        list();
        $("rows").tHead.querySelector("[data-column=" + column.word + "]").focus();
      };
      head.append(button);
    } else head.textContent = column.title;
    line.append(head);
  }
}
function list() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean), trend = $("trend").value;
  const rows = state.category.rows;
  listed = rows.filter(row => words.every(word => row.text.includes(word)) && (trend === "" || row.trend === +trend));
  sort();
  heads();
  body.replaceChildren();
  active = 0;
  extend();
  const rest = state.category.rest;
  $("matches").textContent = listed.length === rows.length ? counted(rows.length, "row") : decimal(listed.length) + " of " + counted(rows.length, "row");
  $("rest").textContent = rest && rest[0] ? counted(rest[0], "more row") + ", which changed less, are not on this page: " + size(rest[1]) + " at first, " + size(rest[2]) + " at last" : "";
}
function extend() {
  const from = body.rows.length, made = document.createDocumentFragment();
  for (const row of listed.slice(from, from + PIECE)) made.append(lineOf(row));
  body.append(made);
  const left = listed.length - body.rows.length, more = $("more");
  more.replaceChildren();
  if (left > 0) {
    const button = element("button", "show " + decimal(Math.min(left, PIECE)) + " more of " + decimal(left));
    button.onclick = extend;
    more.append(button);
  } else if (!listed.length) more.textContent = "no row matches";
  mark();
}
function lineOf(row) {
  const line = element("tr"), cell = element("td", null, "what"), what = element("div"), unit = row.unit;
  cell.append(what);
  what.append(element("i", null, "swatch"), element("span", row.label, "name"));
  if (state.category === everything) what.append(element("span", row.category.title, "tag"));
  what.title = row.label;
  const trend = element("td", null, "trend");
  trend.append(element("span", trends[row.trend], "kind " + meta.trends[row.trend]));
  const course = element("td", null, "course");
  course.append(sparkline(row));
  line.append(cell, element("td", amount(row.before, unit), "n"), element("td", amount(row.after, unit), "n"),
    element("td", signed(row.delta, unit), "n growth" + (row.delta > 0 && [GROWING, UNKNOWN].includes(row.trend) ? " up" : "")), element("td", row.rate === null ? "–" : signed(row.rate, unit), "n"), trend, course);
  line.dataset.row = row.id;
  line.tabIndex = -1;
  line.onclick = event => { activate(listed.indexOf(row), false); choose(toggled(row, event.ctrlKey || event.metaKey || event.shiftKey)); };
  return line;
}
/* Return at most 60 points. If there are more samples, return the lowest and the highest point of each part, in their order. */
function sparkline(row) {
  const width = 110, height = 22, points = [];
  const parts = Math.min(30, COUNT);
  if (COUNT <= 60) row.values.forEach((value, at) => { if (value !== null) points.push([xs[at], value]); });
  else for (let part = 0; part < parts; part++) {
    let low = -1, high = -1;
    for (let at = Math.floor(part * COUNT / parts); at < Math.floor((part + 1) * COUNT / parts); at++) {
      const value = row.values[at];
      if (value === null) continue;
      if (low < 0 || value < row.values[low]) low = at;
      if (high < 0 || value > row.values[high]) high = at;
    }
    for (const at of low < 0 ? [] : low === high ? [low] : [Math.min(low, high), Math.max(low, high)]) points.push([xs[at], row.values[at]]);
  }
  const image = drawn("svg", {width, height, viewBox: "0 0 " + width + " " + height, class: "spark " + meta.trends[row.trend], "aria-hidden": "true"});
  const values = points.map(one => one[1]), low = Math.min(...values), high = Math.max(...values);
  const span = Math.max(high - low, 0.04 * Math.max(high, -low)), middle = (high + low) / 2; // small changes look flat
  const x = value => 2 + (value - xs[0]) / (xs[LAST] - xs[0] || 1) * (width - 4);
  const y = value => height / 2 - (span ? (value - middle) / span : 0) * (height - 6);
  if (points.length) drawn("path", {d: "M" + points.map(([at, value]) => x(at).toFixed(1) + " " + y(value).toFixed(1)).join("L")}, image);
  return image;
}

/* ---- rows by the keyboard */
function activate(at, focus = true) {
  if (!listed.length) return;
  active = Math.max(0, Math.min(listed.length - 1, at));
  while (body.rows.length <= active) extend();
  mark();
  if (focus) { body.rows[active].focus(); body.rows[active].scrollIntoView({block: "nearest"}); }
}
function mark() {
  for (const [at, line] of [...body.rows].entries()) line.tabIndex = at === active ? 0 : -1;
  const colours = new Map(shown.filter(curve => curve.row).map(curve => [curve.row.id, curve.colour]));
  const chosen = new Set(state.chosen.map(row => row.id));
  for (const line of body.rows) {
    const id = +line.dataset.row;
    line.querySelector(".swatch").style.background = colours.get(id) || "transparent";
    line.setAttribute("aria-selected", String(chosen.has(id)));
  }
}
body.addEventListener("focusin", event => {
  const line = event.target.closest("tr");
  if (body.rows[active]) body.rows[active].tabIndex = -1;
  line.tabIndex = 0;
  active = line.sectionRowIndex;
});
$("rows").addEventListener("keydown", event => {
  if (!event.target.matches("tbody tr")) return;
  const moves = {ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + 10, PageUp: active - 10, Home: 0, End: listed.length - 1};
  if (event.key in moves) { event.preventDefault(); activate(moves[event.key]); }
  else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(toggled(listed[active], event.ctrlKey || event.metaKey || event.shiftKey)); }
});
