/* ---- the choices: category, mode, unit, rows */
const NAMES = {stacked: "Stacked", values: "Values", change: "Change since the first"};
const TREND_MEANS = {
  growing: "its floor rises until the end", plateau: "its growth has ended", "saw-tooth": "it returns to its floor", falling: "it shrinks",
  flat: "it has hardly changed", unknown: "two samples have no trend",
};

function toggled(row, add) {
  const had = state.chosen.includes(row);
  if (add) return had ? state.chosen.filter(one => one !== row) : [...state.chosen, row];
  return had && state.chosen.length === 1 ? [] : [row];
}
function choose(rows) {
  state.chosen = rows;
  if (rows.length && !rows.some(row => row[state.unit])) state.unit = rows[0].unit;
  if (!rows.length && !inCategory(state.unit).length) state.unit = state.unit === "bytes" ? "count" : "bytes";
  refresh();
}
function refresh() {
  buttons($("modes"), modes().map(word => [word, NAMES[word]]), modeNow(), word => { state.mode = word; refresh(); });
  const units = ["bytes", "count"].filter(unit => (state.chosen.length ? state.chosen : state.category.rows).some(row => row[unit]));
  buttons($("units"), units.length > 1 ? [["bytes", "Bytes"], ["count", "Counts"]] : [], state.unit, unit => { state.unit = unit; refresh(); });
  draw();
  const rows = inCategory(state.unit).length, curves = shown.filter(one => one.row).length;
  $("about").textContent = state.chosen.length || curves === rows || modeNow() === "stacked" ? "" : "rows that grew most: " + curves + " of " + decimal(rows);
  mark();
}
function open(category, focus) {
  state.category = category;
  state.chosen = [];
  state.mode = category.stacked && category.word === "share" ? "stacked" : "change";
  state.unit = category.rows.length && category.rows.every(row => row.unit === "count") ? "count" : "bytes";
  for (const tab of $("tabs").children) {
    const on = tab.dataset.word === category.word;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    if (on && focus) tab.focus();
  }
  refresh();
  list();
}

/* ---- the head */
$("title").textContent = meta.title;
$("headline").textContent = meta.headline;
{
  const [first, last] = [meta.samples[0][2], meta.samples[LAST][2]];
  const from = first === null || last === null ? "" : ", " + stamp(first) + " to " + stamp(last);
  $("span").textContent = counted(meta.of, "sample") + (COUNT < meta.of ? " (" + decimal(COUNT) + " drawn)" : "") + from;
}
$("findings").append(...meta.findings.map(text => element("li", text)));
$("notes").append(...meta.differences.map(text => element("li", text)));
if (meta.warnings.length) {
  $("warnings").hidden = false;
  $("warnings").querySelector("summary").textContent = counted(meta.warnings.length, "warning");
  $("warnings").querySelector("ul").append(...meta.warnings.map(text => element("li", text)));
}
for (const category of categories) {
  const tab = element("button", category.title);
  tab.setAttribute("role", "tab");
  tab.setAttribute("aria-controls", "panel");
  tab.dataset.word = category.word;
  tab.append(element("span", decimal(category.rows.length), "number"));
  tab.onclick = () => open(category);
  $("tabs").append(tab);
}
$("tabs").addEventListener("keydown", event => {
  const at = categories.indexOf(state.category), moves = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: categories.length - 1};
  if (event.key in moves) { event.preventDefault(); open(categories[(moves[event.key] + categories.length) % categories.length], true); }
});
$("trend").append(new Option("any", ""), ...meta.trends.map((name, at) => {
  const option = new Option(trends[at], at);
  option.title = TREND_MEANS[name];
  return option;
}).filter((_, at) => everything.rows.concat(categories[0].rows).some(row => row.trend === at)));
$("trend").onchange = list;
$("filter").oninput = list;

/* ---- the samples */
$("samples").querySelector("summary").textContent = counted(COUNT, "sample");
$("samples").addEventListener("toggle", () => {
  const [head, rows] = [$("samples").querySelector("thead"), $("samples").querySelector("tbody")];
  if (head.rows.length) return;
  const line = element("tr"), total = series[meta.total.series].bytes;
  line.append(...["", "Name", "When", "Total " + meta.total.name].map(text => element("th", text)));
  head.append(line);
  rows.append(...meta.samples.map(([name, ordinal], at) => {
    const made = element("tr");
    made.append(element("td", decimal(ordinal), "n"), element("td", name), element("td", when(at)), element("td", total ? amount(total[at], "bytes") : "–", "n"));
    return made;
  }));
});

/* ---- light and dark: the system's, until the button is used */
const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "☀ Light" : "☾ Dark";
}
$("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
theme(dark.matches ? "dark" : "light");

addEventListener("keydown", event => {
  if (event.key === "Escape") {
    if (state.sample >= 0) away();
    else if (state.chosen.length) choose([]);
    else if ($("filter").value) { $("filter").value = ""; list(); }
  } else if (event.key === "/" && !event.target.matches("input, select")) { event.preventDefault(); $("filter").focus(); }
});
addEventListener("scroll", away, {passive: true});
new ResizeObserver(draw).observe(chart);
new ResizeObserver(() => document.documentElement.style.setProperty("--tabs", $("tabs").offsetHeight + "px")).observe($("tabs"));
open(state.category);
document.documentElement.dataset.ready = "yes";
