/* ---- the data: packed series of integers (see pack.py); null if a sample has no value */
const meta = JSON.parse($("meta").textContent);
const COUNT = meta.samples.length, LAST = COUNT - 1;
const GROWING = meta.trends.indexOf("growing"), FLAT = meta.trends.indexOf("flat"), UNKNOWN = meta.trends.indexOf("unknown");
const FALLING = meta.trends.indexOf("falling");

const packed = await inflated($("data"));
if (!packed) return;
let read = 0;
function unpacked() {
  const values = new Array(COUNT);
  for (let at = 0, before = 0; at < COUNT; at++) {
    let code = 0, scale = 1, byte;
    do { byte = packed[read++]; code += (byte & 127) * scale; scale *= 128; } while (byte & 128);
    if (code === 0) { values[at] = null; continue; }
    code--;
    before += code % 2 ? -(code + 1) / 2 : code / 2;
    values[at] = before;
  }
  return values;
}
const series = meta.series.map(has => ({bytes: has & 2 ? unpacked() : null, count: has & 1 ? unpacked() : null}));

const trends = meta.trends.map(name => name === "unknown" ? "two samples" : name);
let number = 0;
const categories = meta.categories.map(one => ({...one, rows: one.rows.map(
  ([label, section, within, name, note, at, trend, hour, inside]) => row(label, section, within, name, note, series[at], trend, hour, inside, one))}));
function row(label, section, within, name, note, of, trend, hour, inside, category) {
  const unit = of.bytes ? "bytes" : "count", values = of[unit] || new Array(COUNT).fill(null);
  return {
    id: number++, label, section, within, name, note, trend, hour, category, unit, values, bytes: of.bytes, count: of.count,
    before: values[0], after: values[LAST], delta: (values[LAST] || 0) - (values[0] || 0),
    rate: hour && [GROWING, UNKNOWN, FALLING].includes(trend) ? hour[0] : null,
    inside: inside.map(([what, at]) => ({name: what, ...series[at]})),
    text: [label, within, name, note].join(" ").toLowerCase(),
  };
}
/* All rows of all sections, including the rows of "grew". */
const everything = {word: "all", title: "All", stacked: false, rest: null, rows: []};
everything.rows = categories.filter(one => one.word !== "grew").flatMap(one => one.rows);
if (categories.length > 2) categories.push(everything);

/* ---- words */
function duration(seconds) {
  for (const [name, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return +(seconds / length).toPrecision(3) + " " + name;
  }
  return +seconds.toPrecision(3) + " s";
}
const two = n => String(n).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const clock = (date, seconds) => two(date.getHours()) + ":" + two(date.getMinutes()) + (seconds ? ":" + two(date.getSeconds()) : "");
const day = date => date.getDate() + " " + MONTHS[date.getMonth()];
const stamp = time => { const date = new Date(time * 1000); return date.getFullYear() + "-" + two(date.getMonth() + 1) + "-" + two(date.getDate()) + " " + clock(date, true); };

/* Return the time of a sample: "2026-11-23 09:00:00, + 2 h". */
function when(at) {
  const [, , time] = meta.samples[at];
  const parts = [];
  if (time !== null) parts.push(stamp(time));
  if (meta.times && at) parts.push("+ " + duration(meta.times[at]));
  return parts.join(", ");
}

function drawn(name, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}
