/* ---- common functions of several pages: unpack data, format figures, create elements */
const $ = id => document.getElementById(id);

/* Return the bytes of an element's text, which pack.py packed; null if the browser cannot unpack them. */
async function inflated(box) {
  try {
    const text = atob(box.textContent.trim()), deflated = new Uint8Array(text.length);
    for (let at = 0; at < text.length; at++) deflated[at] = text.charCodeAt(at);
    box.textContent = "";
    return new Uint8Array(await new Response(new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer());
  } catch (error) {
    $("title").textContent = "This browser cannot unpack the page's data: use a browser of 2023 or newer.";
    return null;
  }
}

const UNITS = ["KiB", "MiB", "GiB", "TiB"];
const decimal = n => n.toLocaleString("en-US");
function size(n) {
  if (n < 1024) return Math.round(n) + " B";
  let unit = -1;
  do { n /= 1024; unit++; } while (n >= 999.5 && unit < 3);
  return (n < 9.95 ? n.toFixed(1) : n.toFixed(0)) + " " + UNITS[unit];
}
const few = n => n < 10 && n % 1 ? n.toFixed(1) : decimal(Math.round(n));
const amount = (n, unit) => n === null ? "–" : (n < 0 ? "−" : "") + (unit === "bytes" ? size(Math.abs(n)) : few(Math.abs(n)));
const signed = (n, unit) => n === null ? "–" : n ? (n < 0 ? "− " : "+ ") + amount(Math.abs(n), unit) : "0";
const counted = (n, noun) => decimal(n) + " " + noun + (n === 1 ? "" : "s");

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}
/* Create buttons, one of which is pressed. `list` has words and texts. */
function buttons(box, list, now, chosen) {
  const held = box.contains(document.activeElement) ? document.activeElement.dataset.word : null;
  box.replaceChildren();
  for (const [word, text] of list) {
    const button = element("button", text);
    button.dataset.word = word;
    button.setAttribute("aria-pressed", String(word === now));
    button.onclick = () => chosen(word);
    box.append(button);
    if (word === held) button.focus();
  }
}
