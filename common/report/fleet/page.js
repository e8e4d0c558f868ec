const $ = id => document.getElementById(id);
const meta = JSON.parse($("meta").textContent);
const text = number => meta.texts[number];
const SVG = "http://www.w3.org/2000/svg";
const PIECE = 200;

function element(tag, content, name) {
  const made = document.createElement(tag);
  if (content !== undefined) made.textContent = content;
  if (name) made.className = name;
  return made;
}
function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
const decimal = count => count.toLocaleString("en-US");
const counted = (count, noun) => decimal(count) + " " + noun + (count === 1 ? "" : "s");
function size(count) {
  if (count === null) return "–";
  if (count < 1024) return count + " B";
  let power = -1;
  while (power < 3 && (power < 0 || count >= 999.5)) { count /= 1024; power++; }
  return (count < 9.95 ? count.toFixed(1) : count.toFixed(0)) + " " + ["KiB", "MiB", "GiB", "TiB"][power];
}
const two = count => String(count).padStart(2, "0");
function day(time) {
  if (time === null) return "–";
  const date = new Date(1000 * time);
  return date.getFullYear() + "-" + two(date.getMonth() + 1) + "-" + two(date.getDate());
}
function stamp(time) {
  if (time === null) return "–";
  const date = new Date(1000 * time);
  return day(time) + " " + two(date.getHours()) + ":" + two(date.getMinutes());
}

/* ---- the embedded data, by name */
const groups = meta.groups.map(([signature, program, what, hint, cores, leaks, blocks, bytes, first, last, fresh, example], id) => ({
  id, signature, program: text(program), what: text(what), hint: text(hint), cores, leaks, blocks, bytes, first, last, fresh, example: text(example), rows: [],
}));
const rows = meta.rows.map(([core, status, program, build, signal, frame, time, bytes, lost, seconds, error, findings, leaks, warnings], id) => ({
  id, core, status: text(status), program: text(program), build: text(build), signal: text(signal), frame: text(frame), time, bytes, lost, seconds,
  error: text(error), findings: findings.map(([title, held]) => [text(title), held]), warnings: warnings.map(text),
  leaks: leaks.map(([group, count, blocks, held, example]) => ({group: groups[group], count, blocks, bytes: held, example})),
}));
for (const row of rows) for (const leak of row.leaks) leak.group.rows.push(row);
for (const row of rows) {
  row.said = row.error || (row.findings.length ? row.findings[0][0] : "");
  row.words = [row.core, row.program, row.build, row.signal, row.frame, row.said, ...row.leaks.map(leak => leak.group.what + " " + leak.group.signature)].join("\n").toLowerCase();
}
for (const group of groups) group.words = [group.signature, group.program, group.what, group.hint].join("\n").toLowerCase();

const times = rows.map(row => row.time).filter(time => time !== null);
const [FIRST, LAST] = times.length ? [times.reduce((a, b) => Math.min(a, b)), times.reduce((a, b) => Math.max(a, b))] : [0, 0];
const BUCKETS = 48;
const bucket = time => time === null ? -1 : LAST > FIRST ? Math.min(BUCKETS - 1, Math.floor(BUCKETS * (time - FIRST) / (LAST - FIRST))) : 0;

const state = {group: null, bucket: -1, open: null, shown: PIECE, sort: {groups: ["cores", -1], rows: ["lost", -1]}};

/* ---- filters */
const chosen = () => ({words: $("filter").value.toLowerCase().split(" ").filter(Boolean), program: $("program").value, build: $("build").value, status: $("status").value, fresh: $("new").checked});
function rowMatches(row, by, without) {
  return by.words.every(word => row.words.includes(word)) && (!by.program || row.program === by.program)
    && (without === "build" || !by.build || row.build === by.build) && (!by.status || row.status === by.status)
    && (without === "group" || !state.group || row.leaks.some(leak => leak.group === state.group))
    && (without === "bucket" || state.bucket < 0 || bucket(row.time) === state.bucket)
    && (!by.fresh || row.leaks.some(leak => leak.group.fresh));
}
function groupRows(group, by) {
  return group.rows.filter(row => rowMatches(row, {...by, words: []}, "group"));
}

/* ---- tables */
const COLUMNS = {
  groups: [
    {word: "cores", title: "Cores", number: true, value: one => one.now.length, text: one => decimal(one.now.length)},
    {word: "program", title: "Program", value: one => one.program.toLowerCase(), text: one => one.program},
    {word: "bytes", title: "Leaked", number: true, value: one => one.held, text: one => size(one.held)},
    {word: "each", title: "Per core", number: true, value: one => one.held / Math.max(one.now.length, 1), text: one => size(Math.floor(one.held / Math.max(one.now.length, 1)))},
    {word: "what", title: "Leak", value: one => one.what.toLowerCase(), text: one => one.what, more: (cell, one) => {
      if (one.hint) cell.append(element("span", " e.g. " + one.hint, "pale"));
      if (one.fresh) cell.append(element("span", "NEW", "tag"));
    }},
    {word: "signature", title: "Signature", name: "id", value: one => one.signature, text: one => one.signature},
    {word: "first", title: "Since", name: "when", value: one => one.first || 0, text: one => day(one.first)},
    {word: "last", title: "Last", name: "when", value: one => one.last || 0, text: one => day(one.last)},
    {word: "builds", title: "Builds", number: true, value: one => one.builds, text: one => decimal(one.builds)},
    {word: "course", title: "Curve", name: "wide", value: one => one.last || 0, text: () => "", more: (cell, one) => cell.append(spark(one.now))},
  ],
  rows: [
    {word: "core", title: "Core", value: one => one.core, text: one => one.core},
    {word: "status", title: "Status", value: one => one.status, text: one => one.status, paint: one => one.status},
    {word: "program", title: "Program", value: one => one.program.toLowerCase(), text: one => one.program},
    {word: "build", title: "Build", name: "id wide", value: one => one.build, text: one => one.build.slice(0, 8)},
    {word: "time", title: "When", name: "when", value: one => one.time || 0, text: one => stamp(one.time)},
    {word: "signal", title: "Signal", name: "wide", value: one => one.signal, text: one => one.signal},
    {word: "lost", title: "Leaked", number: true, value: one => one.lost === null ? -1 : one.lost, text: one => size(one.lost)},
    {word: "leaks", title: "Leaks", number: true, value: one => one.leaks.length, text: one => decimal(one.leaks.length)},
    {word: "said", title: "Finding", value: one => one.said.toLowerCase(), text: one => one.said},
  ],
};
for (const table of ["groups", "rows"]) {
  for (const column of COLUMNS[table]) {
    const head = element("th", undefined, column.number ? "n" : column.name && column.name.includes("wide") ? "wide" : ""), button = element("button", column.title);
    head.dataset.column = column.word;
    button.append(element("span", "", "arrow"));
    button.onclick = () => {
      const [word, way] = state.sort[table];
      state.sort[table] = [column.word, word === column.word ? -way : column.number || column.name === "when" ? -1 : 1];
      state.shown = PIECE;
      refresh();
    };
    head.append(button);
    $(table).tHead.rows[0].append(head);
  }
}
function sorted(table, list) {
  const [word, way] = state.sort[table], value = COLUMNS[table].find(column => column.word === word).value;
  return list.map(one => [value(one), one]).sort(([a, one], [b, other]) => (a < b ? -way : a > b ? way : one.id - other.id)).map(pair => pair[1]);
}
function fill(table, list, chose) {
  const [word, way] = state.sort[table], held = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset[table] : undefined;
  for (const head of $(table).tHead.rows[0].cells) {
    const on = head.dataset.column === word;
    head.querySelector(".arrow").textContent = on ? (way < 0 ? " ↓" : " ↑") : "";
    on ? head.setAttribute("aria-sort", way < 0 ? "descending" : "ascending") : head.removeAttribute("aria-sort");
  }
  const lines = [];
  for (const one of list) {
    const line = element("tr", undefined, "line");
    line.dataset[table] = one.id;
    line.tabIndex = 0;
    for (const column of COLUMNS[table]) {
      const cell = element("td", column.text(one), [column.number ? "n" : column.name || "", column.paint ? column.paint(one) : ""].join(" ").trim());
      if (column.more) column.more(cell, one);
      line.append(cell);
    }
    line.onclick = () => chose(one);
    lines.push(line);
    if (table === "groups") line.setAttribute("aria-selected", String(one === state.group));
    else {
      line.setAttribute("aria-expanded", String(one === state.open));
      if (one === state.open) lines.push(details(one));
    }
  }
  $(table).tBodies[0].replaceChildren(...lines);
  if (held !== undefined) { const line = $(table).querySelector(`tr[data-${table}="${held}"]`); if (line) line.focus(); }
}
function details(row) {
  const line = element("tr", undefined, "details"), cell = element("td");
  cell.colSpan = COLUMNS.rows.length;
  const list = (title, items) => { if (items.length) { const made = element("ul"); made.append(...items); cell.append(element("b", title), made); } };
  const facts = [size(row.bytes), row.build && "build-id " + row.build, row.signal && row.signal + (row.frame ? " in " + row.frame : ""), "read in " + row.seconds + " s"];
  cell.append(element("p", facts.filter(Boolean).join(" · "), "pale"));
  if (row.error) cell.append(element("p", row.error));
  list("Leaks", row.leaks.map(leak => {
    const item = element("li", `${size(leak.bytes)} in ${counted(leak.blocks, "block")}: ${leak.group.what} `);
    const button = element("button", leak.group.signature);
    button.onclick = event => { event.stopPropagation(); state.group = leak.group; refresh(); };
    item.append(button, " e.g. ", element("code", leak.example));
    return item;
  }));
  list("Findings", row.findings.map(([title]) => element("li", title)));
  list("Warnings", row.warnings.map(title => element("li", title)));
  const quoted = /^[\w@%+:,.\/-]+$/.test(row.core) ? row.core : "'" + row.core.replaceAll("'", "'\\''") + "'";
  const next = element("p", "next: ");
  next.append(element("code", `${meta.command} verdict ${quoted}`), " · ", element("code", `${meta.command} find --kind definite ${quoted}`));
  cell.append(next);
  line.append(cell);
  return line;
}
function spark(list) {
  const counts = new Array(24).fill(0), made = shape("svg", {class: "spark", width: 98, height: 16});
  for (const row of list) { const at = bucket(row.time); if (at >= 0) counts[at >> 1]++; }
  const most = Math.max(1, ...counts);
  counts.forEach((count, at) => { if (count) { const high = Math.max(2, 16 * count / most); made.append(shape("rect", {x: 4 * at, y: 16 - high, width: 3, height: high})); } });
  return made;
}

/* ---- cores over time, and by build */
function chart(by) {
  const svg = $("chart"), width = svg.clientWidth || 1000, high = 150, base = high - 22, left = 44;
  svg.setAttribute("viewBox", `0 0 ${width} ${high}`);
  svg.replaceChildren();
  $("span").textContent = times.length ? (LAST > FIRST ? stamp(FIRST) + " to " + stamp(LAST) : stamp(FIRST)) : "no times are known";
  const all = new Array(BUCKETS).fill(0), has = new Array(BUCKETS).fill(0);
  for (const row of rows) {
    const at = bucket(row.time);
    if (at < 0 || !rowMatches(row, by, state.bucket >= 0 ? "bucket" : "group")) continue;
    all[at]++;
  }
  for (const row of rows) { const at = bucket(row.time); if (at >= 0 && rowMatches(row, by, "bucket")) has[at]++; }
  const most = Math.max(1, ...all, ...has), wide = (width - left) / BUCKETS;
  for (const part of [0, 0.5, 1]) {
    const y = base - part * (base - 12);
    svg.append(shape("line", {x1: left, x2: width, y1: y, y2: y}));
    const label = shape("text", {x: left - 6, y: y + 4, "text-anchor": "end"});
    label.textContent = decimal(Math.round(part * most));
    if (part !== 0.5 || most > 1) svg.append(label);
  }
  for (let at = 0; at < BUCKETS; at++) {
    for (const [count, name] of [[Math.max(all[at], has[at]), "rest"], [has[at], "has"]]) {
      const tall = (base - 12) * count / most;
      if (count) svg.append(shape("rect", {class: name, x: left + at * wide + 1, y: base - tall, width: Math.max(1, wide - 2), height: tall}));
    }
    const zone = shape("rect", {class: "zone" + (at === state.bucket ? " on" : ""), x: left + at * wide, y: 0, width: wide, height: base});
    const said = shape("title", {});
    said.textContent = stamp(FIRST + (LAST - FIRST) * at / BUCKETS) + ": " + counted(has[at], "core");
    zone.append(said);
    zone.addEventListener("click", () => { state.bucket = state.bucket === at ? -1 : at; refresh(); });
    svg.append(zone);
  }
  for (const [part, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    if (!times.length || (part && LAST === FIRST)) continue;
    const label = shape("text", {x: left + part * (width - left), y: high - 5, "text-anchor": anchor});
    label.textContent = stamp(FIRST + part * (LAST - FIRST));
    svg.append(label);
  }
  $("legend").textContent = state.group ? "cores with " + state.group.what + ", of all that match" : "cores that match";
}
function builds(by) {
  const found = new Map();
  for (const row of rows) {
    if (!row.build || !rowMatches(row, by, "build")) continue;
    const one = found.get(row.build) || {program: row.program, cores: 0, lost: 0, last: 0};
    one.cores++;
    one.lost += state.group ? row.leaks.filter(leak => leak.group === state.group).reduce((sum, leak) => sum + leak.bytes, 0) : row.lost || 0;
    one.last = Math.max(one.last, row.time || 0);
    found.set(row.build, one);
  }
  const list = [...found].sort(([, a], [, b]) => b.cores - a.cores || b.last - a.last).slice(0, 12), most = list.length ? list[0][1].cores : 1;
  $("builds").replaceChildren(...list.flatMap(([id, one]) => {
    const button = element("button", `${one.program || "?"} ${id.slice(0, 12)}`, "id"), bar = element("div", undefined, "bar"), part = element("i");
    button.setAttribute("aria-pressed", String(id === by.build));
    button.onclick = () => { $("build").value = by.build === id ? "" : id; refresh(); };
    part.style.width = 100 * one.cores / most + "%";
    bar.append(part);
    return [button, bar, element("span", `${counted(one.cores, "core")}, ${size(one.lost)} leaked, last ${day(one.last || null)}`, "n")];
  }));
}

function refresh() {
  const by = chosen(), matching = rows.filter(row => rowMatches(row, by));
  for (const group of groups) {
    group.now = groupRows(group, by);
    group.held = 0;
    const ids = new Set();
    for (const row of group.now) { if (row.build) ids.add(row.build); for (const leak of row.leaks) if (leak.group === group) group.held += leak.bytes; }
    group.builds = ids.size;
  }
  const listed = groups.filter(group => group.now.length && (!by.fresh || group.fresh)
    && (by.words.every(word => group.words.includes(word)) || group.now.some(row => by.words.every(word => row.words.includes(word)))));
  fill("groups", sorted("groups", listed), group => { state.group = state.group === group ? null : group; state.shown = PIECE; refresh(); });
  const all = sorted("rows", matching);
  fill("rows", all.slice(0, state.shown), row => { state.open = state.open === row ? null : row; refresh(); });
  $("groupcount").textContent = counted(listed.length, "group") + (listed.length < groups.length ? " of " + decimal(groups.length) : "");
  $("rowcount").textContent = counted(matching.length, "core") + (matching.length < rows.length ? " of " + decimal(rows.length) : "") + (state.group ? ", with " + state.group.what : "");
  $("more").replaceChildren();
  if (all.length > state.shown) {
    const button = element("button", `${decimal(all.length - state.shown)} more`);
    button.onclick = () => { state.shown += 10 * PIECE; refresh(); };
    $("more").append(button);
  }
  $("clear").disabled = !(by.words.length || by.program || by.build || by.status || by.fresh || state.group || state.bucket >= 0);
  chart(by);
  builds(by);
}
function clear() {
  $("filter").value = "";
  for (const id of ["program", "build", "status"]) $(id).value = "";
  $("new").checked = false;
  Object.assign(state, {group: null, bucket: -1, shown: PIECE});
  refresh();
}

/* ---- the head */
$("title").textContent = meta.title;
$("headline").textContent = meta.headline;
$("notes").append(...meta.notes.map(note => element("li", note)));
const [coresLeft, groupsLeft] = meta.left_out;
if (coresLeft || groupsLeft) $("notes").append(element("li", `not on this page: the ${counted(coresLeft, "core")} with the fewest leaked bytes, ${counted(groupsLeft, "group")}`));
$("newest").hidden = !meta.compared;
for (const [id, pick] of [["program", row => row.program], ["build", row => row.build], ["status", row => row.status]]) {
  const found = [...new Set(rows.map(pick).filter(Boolean))].sort();
  $(id).append(new Option("all", ""), ...found.map(word => new Option(id === "build" ? word.slice(0, 16) : word, word)));
  $(id).onchange = () => { state.shown = PIECE; refresh(); };
}
$("filter").oninput = () => { state.shown = PIECE; refresh(); };
$("new").onchange = refresh;
$("clear").onclick = clear;
for (const table of ["groups", "rows"]) {
  $(table).addEventListener("keydown", event => {
    if (!event.target.matches("tr.line")) return;
    const lines = [...$(table).querySelectorAll("tr.line")], at = lines.indexOf(event.target), moves = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: lines.length - 1};
    if (event.key in moves) { event.preventDefault(); const next = lines[moves[event.key]]; if (next) next.focus(); }
    else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.target.click(); }
  });
}
addEventListener("keydown", event => {
  if (event.key === "Escape") clear();
  else if (event.key === "/" && !event.target.matches("input, select")) { event.preventDefault(); $("filter").focus(); }
});
const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "☀ Light" : "☾ Dark";
}
$("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
theme(dark.matches ? "dark" : "light");
new ResizeObserver(() => chart(chosen())).observe($("chart"));
refresh();
document.documentElement.dataset.ready = "yes";
