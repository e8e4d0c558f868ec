/* ---- the table: functions by their own values, and by values that include their callees */
const ROWS = 300;
const COLUMNS = meta.compared
  ? [["change", "Change"], ["before", "Before"], ["after", "After"], ["name", "Frame"], ["module", "File"]]
  : [["own", "Own"], ["all", "With callees"], ["name", "Frame"], ["module", "File"]];
let sorted = "";

/* Sums by label. If a function calls itself, the same bytes are counted only once. */
function summed(measure) {
  if (measure.labels) return measure.labels;
  const count = NAMES.length, made = {own: new Float64Array(count), all: new Float64Array(count), before: new Float64Array(count)};
  const until = new Int32Array(count);
  for (let node = 1; node < NODES; node++) {
    const at = label[node];
    made.own[at] += measure.own[node];
    if (node < until[at]) continue;
    until[at] = end[node];
    made.all[at] += measure.sum[node];
    if (meta.compared) made.before[at] += measure.sumBefore[node];
  }
  return measure.labels = made;
}
function listed() {
  const measure = prepared(state.measure), sums = summed(measure), key = sorted || (meta.compared ? "change" : "own");
  const cell = {
    own: at => sums.own[at], all: at => sums.all[at], after: at => sums.all[at], before: at => sums.before[at],
    change: at => sums.all[at] - sums.before[at], name: at => NAMES[at], module: at => meta.modules[meta.moduleOf[at]],
  };
  const text = key === "name" || key === "module", value = cell[key];
  const rank = key === "change" ? at => Math.abs(value(at)) : value;
  let rows = Array.from(NAMES.keys()).slice(1);
  if (state.search) rows = rows.filter(at => state.search[at]);
  rows.sort(text ? (a, b) => value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a - b : (a, b) => rank(b) - rank(a) || a - b);
  return {rows, cell, key};
}
function list() {
  const {rows, cell, key} = listed(), unit = state.measure.unit, head = $("table").querySelector("thead tr");
  head.replaceChildren(...COLUMNS.map(([word, title]) => {
    const made = element("th", null, word), button = element("button", title);
    button.dataset.column = word;
    button.onclick = () => { sorted = word; list(); };
    made.setAttribute("aria-sort", word === key ? (word === "name" || word === "module" ? "ascending" : "descending") : "none");
    made.append(button);
    return made;
  }));
  $("table").querySelector("tbody").replaceChildren(...rows.slice(0, ROWS).map(at => {
    const made = element("tr");
    for (const [word] of COLUMNS) {
      const value = cell[word](at), text = word === "name" || word === "module";
      if (word === "name") {
        const cell = element("td", null, word), button = element("button", value);
        button.title = "search for it in the graph";
        button.onclick = () => { view(false); searched(value); graph.focus(); };
        cell.append(button);
        made.append(cell);
      } else made.append(element("td", text ? value : word === "change" ? signed(value, unit) : amount(value, unit), text ? word : "n"));
    }
    return made;
  }));
  $("more").textContent = rows.length > ROWS ? counted(rows.length - ROWS, "more frame") + ": search for a part of their names" : "";
}
function view(table) {
  state.table = table;
  $("table").hidden = !table;
  graph.hidden = table;
  if (table) list(); else redraw();
  buttons($("views"), [["graph", "Graph"], ["table", "Table"]], table ? "table" : "graph", word => view(word === "table"));
}
