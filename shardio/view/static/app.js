// The viewer's page. What comes from a dataset becomes text (textContent), numbers, or pixels; never markup, never an
// address. No page of this program uses innerHTML, and the policy that the server sends would refuse it.
"use strict";

const token = new URLSearchParams(location.search).get("token") || "";
const TABS = [
  ["overview", "Overview"], ["records", "Records"], ["statistics", "Statistics"], ["shards", "Shards"],
  ["versions", "Versions"],
];
const SVG = "http://www.w3.org/2000/svg";
const main = document.getElementById("main");
let summary = null; // of the version that is shown
let running = null; // aborts the requests of the page that is left
let blobs = []; // object URLs of the page that is shown
let pager = null; // what the arrow keys do on this page
let back = "#/records"; // the records that were looked at before a record
let shown = null; // the address that is shown
const tops = new Map(); // how far each address was scrolled when it was left

// ------------------------------------------------------------------------------------------ elements

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  fill(made, attributes, children);
  return made;
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  fill(made, attributes, children);
  return made;
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    made.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

const count = (n) => Number(n).toLocaleString("en-US");
const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

function size(n) {
  if (n < 1000) return `${Math.round(n)} B`;
  for (const unit of ["kB", "MB", "GB", "TB"]) {
    n /= 1000;
    if (n < 999.95) return `${n.toFixed(1)} ${unit}`;
  }
  return `${(n / 1000).toFixed(1)} PB`;
}

const moment = (ms) => (ms ? new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "unknown");
const short = (n) => (Math.abs(n) >= 1e6 || (n !== 0 && Math.abs(n) < 1e-3) ? n.toExponential(2) : count(Number(n.toPrecision(5))));
// Whole numbers that have a bin each; those that are not exact in JavaScript come as text.
const exact = (n) => (typeof n === "string" ? n : count(n));

function card(title, ...children) {
  return el("section", { class: "card" }, title ? el("h2", {}, title) : null, ...children);
}

function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== "").flatMap(
    ([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function table(head, rows, right = []) {
  const side = (k) => (right.includes(k) ? "right" : null);
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": head.join(", ") }, el("table", {},
    el("thead", {}, el("tr", {}, head.map((name, k) => el("th", { class: side(k) }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((each, k) => el("td", { class: side(k) }, each)))))));
}

const FOLDED = 24; // features that a page shows until all are asked for

function folded(items, noun, draw, most = FOLDED) {
  const more = items.length - most;
  if (more <= 0) return draw(items);
  const made = el("div", {}, draw(items.slice(0, most)),
    el("button", { type: "button", click: () => made.replaceWith(draw(items)) }, `show ${plural(more, `more ${noun}`)}`));
  return made;
}

function errorBox(error, small) {
  const about = error.facts || { error: String(error.message || error) };
  const place = ["url", "shard", "row", "start", "stop"].filter((name) => about[name] !== undefined && about[name] !== "")
    .map((name) => `${name} ${about[name]}`).join(", ");
  const sides = ["expected", "found"].filter((name) => about[name] !== undefined).map((name) => `${name} ${about[name]}`).join(", ");
  return el("div", { class: small ? "error small" : "error", role: "alert" },
    el("b", {}, about.kind && about.kind !== "ValueError" ? `${about.kind}: ` : ""), about.error,
    place ? el("div", { class: "small" }, place) : null,
    sides ? el("div", { class: "small" }, sides) : null,
    about.advice ? el("div", {}, "What to do: ", about.advice) : null);
}

// ------------------------------------------------------------------------------------------ requests

class Refused extends Error {
  constructor(about) {
    super(about.error);
    this.facts = about;
  }
}

async function request(name, parameters) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters || {})) {
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  }
  let answer;
  try {
    answer = await fetch(`/api/${name}?${query}`, { headers: { "X-Shardio-Token": token }, signal: running && running.signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused({ kind: "No answer", error: "the viewer does not answer", advice: "is `shardio view` still running?" });
  }
  if (!answer.ok) {
    const text = await answer.text();
    let about;
    try { about = JSON.parse(text); } catch { about = { kind: `HTTP ${answer.status}`, error: text.slice(0, 500) }; }
    throw new Refused(about);
  }
  return answer;
}

const get = async (name, parameters) => (await request(name, parameters)).json();

async function blob(name, parameters) {
  const made = URL.createObjectURL(await (await request(name, parameters)).blob());
  blobs.push(made);
  return made;
}

// What is not scrolled to is not read.
const lazy = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    lazy.unobserve(entry.target);
    entry.target.dispatchEvent(new Event("seen"));
  }
}, { rootMargin: "200px" });

function whenSeen(element, act) {
  element.addEventListener("seen", act, { once: true });
  lazy.observe(element);
  return element;
}

// ------------------------------------------------------------------------------------------ addresses of pages

function here() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parameters = Object.fromEntries(new URLSearchParams(query || ""));
  return { page: path || "overview", ...parameters };
}

function address(page, parameters) {
  const at = here();
  const query = new URLSearchParams();
  const all = { version: at.version, split: at.split, ...parameters };
  for (const [key, value] of Object.entries(all)) {
    if (value !== undefined && value !== null && value !== "") query.set(key, value);
  }
  return `#/${page}${[...query].length ? `?${query}` : ""}`;
}

const go = (page, parameters) => { location.hash = address(page, parameters); };
const which = () => ({ version: here().version || summary.version, split: here().split || summary.shown_split });

// What was asked of Records; addresses hold all of it, so that each state can be kept as a bookmark.
const ASKED = ["where", "text", "key", "feature", "sort", "descending"];
const SHOWN = ["count", "as", "columns", "heads"];
const asked = () => Object.fromEntries(ASKED.map((name) => [name, here()[name]]));
const state = (changes) => ({ ...asked(), ...Object.fromEntries(SHOWN.map((name) => [name, here()[name]])), ...changes });
const search = (changes) => go("records", state({ start: null, ...changes }));
const narrowed = (condition) => { const where = here().where; return where ? `(${where}) AND ${condition}` : condition; };
const isColumn = (name) => summary.columns.includes(name);
const inSql = (name) => `"${name.replaceAll('"', '""')}"`;

function replace(...children) {
  const title = (TABS.find(([name]) => name === here().page) || ["", ""])[1];
  main.replaceChildren(...(title ? [el("h1", { class: "unseen" }, title)] : []), ...children.flat().filter(Boolean));
}

// ------------------------------------------------------------------------------------------ charts

function histogramChart(data, unit, format = short, name = null) {
  if (!data) return el("p", { class: "quiet" }, "nothing to count");
  if (data.whole && format === short) format = exact;
  const most = Math.max(...data.counts);
  const bars = data.counts.map((n, k) => {
    const high = most ? (100 * n) / most : 0;
    const bar = svg("rect", { x: k, y: 100 - high, width: 0.9, height: n ? Math.max(high, 1) : 0 });
    const last = data.whole ? format(data.edges[k]) : `${format(data.edges[k])} to ${format(data.edges[k + 1])}`;
    if (name !== null && isColumn(name)) {
      // The last bar holds its upper end.
      const column = inSql(name), low = exactly(data.edges[k]), high = exactly(data.edges[k + 1]);
      const condition = data.whole ? `${column} = ${low}` : `${column} >= ${low} AND ${column} ${k + 1 < data.counts.length ? "<" : "<="} ${high}`;
      bar.addEventListener("click", () => search({ where: narrowed(condition) }));
      bar.classList.add("link");
    }
    bar.append(svg("title", {}, `${last}${unit ? ` ${unit}` : ""}: ${count(n)}`));
    return bar;
  });
  const total = data.counts.reduce((a, b) => a + b, 0);
  const label = `histogram of ${count(total)} values from ${format(data.edges[0])} to ${format(data.edges[data.edges.length - 1])}`;
  const lastEdge = data.whole ? data.edges[data.edges.length - 2] : data.edges[data.edges.length - 1];
  return el("div", {},
    svg("svg", { class: "chart", viewBox: `0 0 ${data.counts.length} 100`, preserveAspectRatio: "none", role: "img", "aria-label": label }, bars),
    el("div", { class: "axis" }, el("span", {}, format(data.edges[0])), el("span", {}, unit || ""),
      data.counts.length > 1 ? el("span", {}, format(lastEdge)) : null));
}

const exactly = (edge) => String(edge).replaceAll(",", "");

function barList(each, pairs = each.top) {
  const most = Math.max(1, ...pairs.map((pair) => pair[1]));
  const links = each.literals && isColumn(each.name);
  return el("div", { class: "bars" }, pairs.flatMap(([name, n], k) => {
    const inside = el("i");
    inside.style.width = `${(100 * n) / most}%`;
    const condition = links ? narrowed(`${inSql(each.name)} = ${each.literals[k]}`) : null;
    const made = links ? el("a", { class: "name", title: condition, href: address("records", state({ start: null, where: condition })) }, name || "(empty)") : el("span", { class: "name", title: name }, name || "(empty)");
    return [made, el("span", { class: "track" }, inside), el("span", { class: "mono" }, count(n))];
  }));
}

function spark(points) {
  const known = points.filter((p) => p !== null);
  if (!known.length) return null;
  const low = Math.min(...known), high = Math.max(...known), scale = high > low ? 26 / (high - low) : 0;
  let path = "", pen = false;
  points.forEach((p, k) => {
    if (p === null) { pen = false; return; }
    path += `${pen ? "L" : "M"}${k} ${28 - (p - low) * scale} `;
    pen = true;
  });
  return svg("svg", { class: "spark", viewBox: `0 0 ${Math.max(points.length - 1, 1)} 30`, preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", { d: path }));
}

// Viridis, at five places; between them straight lines.
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function heat(grid, full) {
  const rows = grid.rows.length, columns = grid.rows[0].length;
  const canvas = el("canvas", { class: "heat", width: columns, height: rows, role: "img", "aria-label": `heat map from ${grid.low} to ${grid.high}` });
  const pixels = new ImageData(columns, rows);
  grid.rows.flat().forEach((value, k) => {
    const place = (Math.max(value, 0) / 255) * 4, step = Math.min(3, Math.floor(place)), part = place - step;
    const colour = value < 0 ? [128, 128, 128] : RAMP[step].map((c, i) => c + (RAMP[step + 1][i] - c) * part);
    pixels.data.set([...colour, 255], 4 * k);
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  const scale = Math.max(1, Math.floor((full ? 420 : 96) / Math.max(rows, columns)));
  canvas.style.width = `${columns * scale}px`;
  return canvas;
}

// ------------------------------------------------------------------------------------------ cells

function drawCell(each, record, full) {
  switch (each.kind) {
    case "missing": return el("span", { class: "quiet" }, "missing");
    case "number": return el("span", { class: "mono" }, each.text, each.class !== undefined ? el("span", { class: "tag" }, each.class) : null);
    case "text": case "json": case "object": return drawText(each, record, full);
    case "image": return drawImage(each, record, full, `${each.format} ${each.size ? each.size.join(" x ") + ", " : ""}${size(each.bytes)}`);
    case "audio": return drawAudio(each, record);
    case "array": return drawArray(each, record, full);
    case "bytes": return el("div", {}, el("span", { class: "quiet" }, `${size(each.bytes)} `), el("span", { class: "numbers mono", tabindex: full ? 0 : null }, each.hex), full ? download(each, record) : null);
    case "list": return drawMany(each, each.items.map((item) => drawCell(item, record, full)));
    case "map": return drawMany(each, each.items.map(([name, item]) => el("div", {}, el("b", { class: "small" }, `${name} `), drawCell(item, record, full))));
    default: return el("span", {}, String(each.kind));
  }
}

function drawText(each, record, full) {
  // Of long bytes the characters are not counted.
  const total = each.characters === undefined ? size(each.bytes) : plural(each.characters, "character");
  const more = !(each.characters <= each.text.length);
  return el("div", {}, el("div", { class: each.kind === "json" ? "cell-text mono" : "cell-text", tabindex: full ? 0 : null }, each.text, more ? " ..." : ""),
    full || more ? el("span", { class: "quiet small" }, total, each.encoded ? " of UTF-8 in bytes" : "") : null,
    full && each.path ? el("span", {}, " ", download(each, record)) : null);
}

function drawMany(each, items) {
  const more = each.count - items.length;
  return el("div", { class: "items" }, items, more > 0 ? el("span", { class: "quiet small" }, `and ${count(more)} more`) : null, each.count ? null : el("span", { class: "quiet" }, "empty"));
}

async function showOriginal(each, record, text) {
  const place = document.getElementById("original"), dialog = document.getElementById("picture");
  place.replaceChildren(el("p", { class: "quiet" }, "Reading ..."));
  dialog.showModal();
  try {
    const src = await blob("media", { ...which(), position: record.position, path: JSON.stringify(each.path), edge: 0 });
    place.replaceChildren(el("img", { src, alt: text }), el("p", { class: "small" }, `record ${count(record.position)}, ${text} `, download(each, record)));
  } catch (error) { show(place, error); }
}

function drawImage(each, record, full, text, zoom = true) {
  const image = el("img", { class: each.kind === "array" ? "cell-image pixels" : "cell-image", alt: text, title: text });
  const open = (event) => { event.stopPropagation(); showOriginal(each, record, text); };
  const holder = el("div", {}, zoom ? el("button", { type: "button", class: "plain", "aria-label": `${text}: all pixels`, click: open }, image) : image,
    full ? el("div", { class: "quiet small" }, text, " ", download(each, record)) : null);
  return whenSeen(holder, async () => {
    try {
      image.src = await blob("media", { ...which(), position: record.position, path: JSON.stringify(each.path), edge: full ? 1600 : 320 });
    } catch (error) {
      if (error.name !== "AbortError") holder.replaceChildren(errorBox(error, true));
    }
  });
}

function drawAudio(each, record) {
  const player = el("audio", { controls: true, preload: "none" });
  const button = el("button", { type: "button", click: async (event) => {
    event.stopPropagation();
    try {
      player.src = await blob("media", { ...which(), position: record.position, path: JSON.stringify(each.path) });
      holder.replaceChildren(player);
      await player.play();
    } catch (error) {
      if (!["AbortError", "NotAllowedError"].includes(error.name)) holder.append(errorBox(error, true));
    }
  } }, "\u25b6 play");
  const holder = el("div", { click: (event) => event.stopPropagation() }, button, el("span", { class: "quiet small" }, ` ${each.format}, ${size(each.bytes)}`));
  return holder;
}

function drawArray(each, record, full) {
  const about = `${each.dtype}[${each.shape.join(",")}]`;
  const range = each.range ? ` ${each.range[0]} to ${each.range[1]}` : "";
  const picture = each.picture ? drawImage(each, record, full, about) : each.heat ? heat(each.heat, full) : each.spark ? spark(each.spark) : null;
  const total = each.shape.reduce((a, b) => a * b, 1);
  const more = total > each.numbers.length ? " ..." : "";
  return el("div", {}, picture,
    el("div", { class: "small" }, el("span", { class: "mono" }, about), el("span", { class: "quiet" }, range, each.plane ? `, plane [${each.plane.join(",")}] shown` : "")),
    each.tokens === undefined ? null : el("div", { class: "cell-text", tabindex: full ? 0 : null }, each.tokens),
    full || !picture || each.spark ? el("span", { class: "numbers mono", tabindex: full ? 0 : null }, each.numbers.join(" "), more) : null,
    full ? download(each, record, ".npy") : null);
}

function download(each, record, suffix = "") {
  return el("button", { type: "button", class: "small", click: async () => {
    const made = await blob("content", { ...which(), position: record.position, path: JSON.stringify(each.path) });
    // The name is made of a number: names in a dataset choose no file.
    el("a", { href: made, download: `record-${Number(record.position)}${suffix || ".bin"}` }).click();
  } }, `save${suffix ? ` ${suffix}` : ""}`);
}

const COLUMNS = 12; // features of a table until others are chosen

function namesOf(records) {
  const schema = (summary.schema || []).map((row) => row.name);
  const seen = new Set(records.flatMap((record) => (record.cells || []).map(([name]) => name)));
  return [...schema.filter((name) => seen.has(name)), ...[...seen].filter((name) => !schema.includes(name))];
}

function chosenNames(every) {
  try {
    const chosen = JSON.parse(here().columns || "null");
    if (Array.isArray(chosen)) return every.filter((name) => chosen.includes(name));
  } catch { /* an address that was typed: all columns are shown */ }
  return every.slice(0, COLUMNS);
}

function recordTable(records, { names = null, heads = null } = {}) {
  const every = namesOf(records);
  names = names || every.slice(0, COLUMNS);
  const head = (name) => {
    const sorted = heads && here().sort === name, down = Boolean(here().descending);
    const title = name || "value";
    const sort = () => search(sorted ? (down ? { sort: null, descending: null } : { descending: 1 }) : { sort: name, descending: null });
    return el("th", { scope: "col", "data-name": name, "aria-sort": sorted ? (down ? "descending" : "ascending") : null },
      heads && isColumn(name) ? el("button", { type: "button", class: "plain", click: sort, title: `sort by ${title}` }, title, sorted ? (down ? " \u25bc" : " \u25b2") : "") : title,
      heads && heads !== "off" ? el("div", { class: "head" }) : null);
  };
  const row = (record) => {
    const cells = new Map(record.cells || []);
    const link = el("a", { href: address("record", { position: record.position }) }, count(record.position));
    const made = el("tr", { class: "row", click: (event) => { if (!event.target.closest("a, button, audio")) link.click(); } },
      el("td", { class: "key mono", "data-label": "position" }, link));
    if (record.error) made.append(el("td", { colspan: Math.max(1, names.length) }, errorBox(new Refused(record.error), true)));
    else for (const name of names) made.append(el("td", { "data-label": name || "value" }, cells.has(name) ? drawCell(cells.get(name), record, false) : ""));
    return made;
  };
  return el("div", { class: `card scroll${heads ? " tall" : ""}`, tabindex: 0, role: "region", "aria-label": "table of records" }, el("table", { class: "records" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "position"), names.map(head))),
    el("tbody", {}, records.map(row))));
}

function fillHeads(place, features) {
  for (const each of features) {
    const head = [...place.querySelectorAll("th[data-name]")].find((th) => th.dataset.name === each.name);
    if (!head || !head.querySelector(".head")) continue;
    const data = each.histogram || each.lengths;
    head.querySelector(".head").replaceChildren(each.top && (!data || each.distinct <= 5) ? barList(each, each.top.slice(0, 5))
      : data ? histogramChart(data, each.histogram ? each.of || "" : each.lengths_of, short, each.histogram && !each.of ? each.name : null) : "");
  }
}

function imageOf(record) {
  for (const [name, each] of record.cells || []) {
    let first = each;
    while (first && first.kind === "list") first = first.items[0];
    if (first && (first.kind === "image" || first.picture)) return [name, first];
  }
  return null;
}

function recordGallery(records) {
  return el("div", { class: "gallery" }, records.map((record) => {
    const image = imageOf(record);
    const told = (record.cells || []).filter(([, each]) => each.kind === "number" || each.kind === "text");
    // What class a record has says more than its other numbers.
    const words = told.filter(([, each]) => each.class !== undefined).concat(told.filter(([, each]) => each.class === undefined)).slice(0, 2)
      .map(([name, each]) => (each.class !== undefined ? each.class : each.kind === "number" ? `${name} ${each.text}` : each.text)).join(" \u00b7 ");
    return el("a", { href: address("record", { position: record.position }) },
      image ? drawImage(image[1], record, false, image[0] || "image", false) : el("div", { class: "about quiet" }, record.error ? "damaged" : "no image"),
      el("div", { class: "about", title: words }, el("span", { class: "mono quiet" }, `${count(record.position)} `), words));
  }));
}

// ------------------------------------------------------------------------------------------ pages

const pages = {
  async overview() {
    const split = here().split || summary.shown_split;
    const splits = Object.entries(summary.splits);
    const total = splits.reduce((sum, [, each]) => sum + each.records, 0);
    const stored = splits.reduce((sum, [, each]) => sum + each.stored_bytes, 0);
    const shardCount = splits.reduce((sum, [, each]) => sum + each.shards, 0);
    const tile = (name, value, note) => el("div", { class: "tile" }, el("span", { class: "quiet small" }, name), el("b", {}, value), note ? el("span", { class: "quiet small" }, note) : null);
    const shape = card("Shards", el("p", { class: "quiet" }, "Reading the lists of shards ..."));
    const first = el("div", {}, el("p", { class: "quiet" }, "Reading the first records ..."));
    const schema = summary.schema;
    const seen = schema ? null : card("Seen in the first records", el("p", { class: "quiet" }, "..."));
    const tags = Object.entries(summary.tags).filter(([, number]) => number === summary.version).map(([name]) => el("span", { class: "tag" }, name));
    replace(
      el("div", { class: "tiles" },
        tile("records", count(total), `in ${plural(splits.length, "split")}`),
        tile("shards", count(shardCount)),
        tile("stored", size(stored), total ? `${size(stored / total)} a record` : null),
        tile("version", String(summary.version), summary.version === summary.latest_version ? "the latest" : `the latest is ${summary.latest_version}`)),
      el("div", { class: "grid" },
        card("Version", facts([
          ["committed", moment(summary.created_ms)], ["by", `${summary.operation}${summary.writer ? `, ${summary.writer}` : ""}`],
          tags.length ? ["tags", el("span", {}, tags)] : null, ["digest", el("code", {}, summary.digest)],
          summary.roots.length ? ["data roots", summary.roots.join(", ")] : null,
          Object.keys(summary.keys).length ? ["found by key", Object.keys(summary.keys).join(", ")] : null,
          summary.table.length ? ["table of", summary.table.join(", ")] : null])),
        card("Splits", splits.length ? table(["split", "records", "shards", "stored"], splits.map(([name, each]) => [
          el("a", { href: address("records", { split: name }) }, name), count(each.records), count(each.shards), size(each.stored_bytes)]), [1, 2, 3])
          : el("p", { class: "quiet" }, "no split: nothing was written")),
        shape),
      schema ? card(`Schema (${summary.encoding})`, schemaTable(schema)) : seen,
      Object.keys(summary.metadata).length ? card("Metadata", el("pre", { tabindex: 0 }, JSON.stringify(summary.metadata, null, 2))) : null,
      splits.length ? el("h2", {}, `First records of ${split}`) : null, first);
    const parts = [];
    if (split) {
      parts.push(get("records", { ...which(), count: 5 }).then((found) => first.replaceChildren(found.records.length ? recordTable(found.records) : el("p", { class: "quiet" }, "no records")), (error) => show(first, error)));
      parts.push(get("shards", { ...which(), count: 0 }).then((found) => shape.replaceChildren(el("h2", {}, "Shards"), shardFacts(found)), (error) => show(shape, error)));
      if (seen) parts.push(get("seen", which()).then((found) => seen.replaceChildren(el("h2", {}, "Seen in the first records"), seenTable(found.seen)), (error) => show(seen, error)));
    } else {
      first.replaceChildren();
      shape.remove();
    }
    await Promise.all(parts);
  },

  async records() {
    const at = here();
    back = location.hash;
    const rows = Number(at.count) || 20;
    const out = el("div", {}, el("p", { class: "quiet" }, "Reading ..."));
    replace(searchForm(), out);
    const question = { ...which(), ...asked() };
    let found;
    try {
      found = await get("records", { ...question, start: at.start || 0, count: rows });
    } catch (error) {
      show(out, error); // below the form, so that what was typed can be mended
      return;
    }
    const first = found.start, last = first + found.records.length, total = found.total;
    const turn = (start) => go("records", state({ start }));
    const change = (name, value) => go("records", state({ start: name === "count" ? first : null, [name]: value }));
    const previous = () => first > 0 && turn(Math.max(0, first - rows));
    const next = () => last < total && turn(last);
    pager = { previous, next };
    const every = namesOf(found.records), names = chosenNames(every);
    const heads = at.heads || (summary.is_local ? "on" : "off");
    const gallery = at.as === "grid";
    const select = (label, name, options, value) => el("select", { "aria-label": label, change: (event) => change(name, event.target.value) },
      options.map(([key, text]) => el("option", { value: key, selected: String(key) === String(value) }, text)));
    const isSearch = total < found.all || Object.values(asked()).some(Boolean);
    out.replaceChildren(
      el("div", { class: "tools" },
        el("button", { type: "button", click: previous, disabled: first <= 0, "aria-label": "page before" }, "\u2190"),
        el("button", { type: "button", click: next, disabled: last >= total, "aria-label": "next page" }, "\u2192"),
        el("span", { class: "quiet", id: "range" }, total ? `${count(first)} to ${count(last - 1)} of ${count(total)}${isSearch ? ` found, of ${count(found.all)}` : ""}` : isSearch ? `nothing found, of ${count(found.all)}` : "no records"),
        el("span", { class: "space" }), jump(total),
        summary.columns.length ? select("sort by", "sort", [["", "not sorted"], ...summary.columns.map((name) => [name, `by ${name}`])], at.sort || "") : null,
        every.length > 1 ? columnPicker(every, names) : null,
        el("button", { type: "button", click: () => go("records", state({ start: first, as: gallery ? null : "grid" })) }, gallery ? "table" : "grid"),
        gallery ? null : el("button", { type: "button", class: "wide", "aria-pressed": heads === "on" ? "true" : "false", click: () => go("records", state({ start: first, heads: heads === "on" ? "off" : "on" })) }, "histograms"),
        select("records a page", "count", [20, 50, 100, 200, 500, 1000].map((n) => [n, `${count(n)} a page`]), rows),
        el("button", { type: "button", id: "python", click: () => showPython(found.python) }, "copy Python")),
      found.records.length ? (gallery ? recordGallery(found.records) : recordTable(found.records, { names, heads })) : "");
    if (gallery || heads !== "on" || !found.records.length) return;
    try { fillHeads(out, (await get("statistics", { ...question, sample: 256 })).features); } catch (error) {
      if (error.name !== "AbortError") out.prepend(errorBox(error));
    }
  },

  async record() {
    const position = Number(here().position || 0);
    const found = await get("record", { ...which(), position });
    const move = (to) => to >= 0 && to < found.total && go("record", { position: to });
    pager = { previous: () => move(found.position - 1), next: () => move(found.position + 1), back: () => { location.hash = back; } };
    const features = (found.cells || []).map(([name, each]) => {
      const known = (summary.schema || []).find((row) => row.name === name);
      return el("div", { class: "feature full" }, el("div", { class: "name" }, el("b", {}, name || "value"),
        known ? el("code", { class: "quiet" }, known.type) : null, known && known.description ? el("span", { class: "quiet" }, known.description) : null), drawCell(each, found, true));
    });
    replace(
      el("div", { class: "tools" },
        el("button", { type: "button", click: pager.previous, disabled: found.position <= 0 }, "\u2190"),
        el("button", { type: "button", click: pager.next, disabled: found.position >= found.total - 1 }, "\u2192"),
        el("h1", { class: "nowrap" }, `Record ${count(found.position)}`), el("span", { class: "quiet" }, `of ${count(found.total)}`), el("span", { class: "space" }), jump(found.total, "record")),
      found.error ? errorBox(new Refused(found.error)) : null,
      features.length ? card(null, folded(features, "feature", (some) => el("div", {}, some))) : null,
      card("Where it is", facts([
        ["shard", found.shard ? el("code", {}, found.shard) : null], ["row", found.row === undefined ? null : count(found.row)],
        ["url", found.url ? el("code", {}, found.url) : null],
        ["frame", found.start === undefined ? null : `bytes ${count(found.start)} to ${count(found.stop)}${/\.(zst|gz|zz)$/.test(found.shard || "") ? " of its decoded block" : " of the object"}`],
        ["payload", found.bytes === undefined ? null : el("span", {}, plural(found.bytes, "byte"), " ", download({ path: [] }, found))]])),
      found.hex ? card("First bytes of the payload", hexDump(found.hex)) : null);
  },

  async statistics() {
    const sample = Number(here().sample) || 256;
    replace(el("p", { class: "quiet" }, "Reading a sample ..."));
    const found = await get("statistics", { ...which(), sample });
    const all = found.records + found.unreadable === found.total;
    replace(
      el("div", { class: "tools" },
        el("span", {}, all ? `All ${plural(found.total, "record")}` : `A sample of ${plural(found.records, "record")} of ${count(found.total)}, evenly spaced${found.runs < found.records ? `: ${plural(found.runs, "run")} of neighbours` : ""}`),
        el("span", { class: "space" }),
        el("select", { "aria-label": "records in the sample", change: (event) => go("statistics", { sample: event.target.value }) },
          [64, 256, 1024, 2048].map((n) => el("option", { value: n, selected: n === sample }, `sample ${count(n)}`)))),
      found.unreadable ? el("div", {}, el("p", {}, `${plural(found.unreadable, "record")} of the sample could not be read:`), found.errors.map((each) => errorBox(new Refused(each.error)))) : null,
      card("Bytes of a record", histogramChart(found.record_bytes, "bytes", size)),
        folded(found.features, "feature", (some) => el("div", { class: "columns" }, some.map((each) => card(null,
          el("div", { class: "name" }, el("b", {}, each.name || "value"), " ", each.type ? el("code", { class: "quiet" }, each.type) : null,
            each.missing ? el("span", { class: "tag bad" }, `missing in ${count(each.missing)}`) : null),
          facts(each.facts),
          each.top ? el("div", {}, el("p", { class: "quiet small" }, each.distinct > each.top.length ? `the ${each.top.length} most frequent of ${count(each.distinct)}` : ""), barList(each)) : null,
          each.histogram ? histogramChart(each.histogram, each.of || "", short, each.of ? null : each.name) : null,
          each.lengths ? histogramChart(each.lengths, each.lengths_of, each.lengths_of === "bytes" ? size : short) : null)))));
  },

  async shards() {
    const start = Number(here().start) || 0;
    const found = await get("shards", { ...which(), start, count: 100 });
    const previous = () => start > 0 && go("shards", { start: Math.max(0, start - 100) });
    const next = () => start + 100 < found.shards && go("shards", { start: start + 100 });
    pager = { previous, next };
    replace(
      el("div", { class: "grid" },
        card("Stored bytes of a shard", histogramChart(found.stored_bytes, "", size)),
        card("Records of a shard", histogramChart(found.shard_records, "records")),
        card("Mean bytes of a record, by shard", histogramChart(found.record_bytes, "", size))),
      el("div", { class: "tools" }, el("button", { type: "button", click: previous, disabled: start <= 0 }, "\u2190"), el("button", { type: "button", click: next, disabled: start + 100 >= found.shards }, "\u2192"),
        el("span", { class: "quiet" }, `${plural(found.shards, "shard")}, ${plural(found.records, "record")}${found.deleted_records ? `, ${count(found.deleted_records)} deleted (all splits)` : ""}`)),
      card(null, table(["shard", "first record", "records", "deleted", "stored", "blocks", "format"], found.listed.map((each) => [
        el("code", { class: "small" }, each.shard), each.records ? el("a", { href: address("records", { start: each.first }) }, count(each.first)) : "-", count(each.records),
        each.deleted ? count(each.deleted) : "-", size(each.stored_bytes), count(each.blocks), `${each.framing}${each.compression === "none" ? "" : `, ${each.compression}`}${each.adopted ? ", adopted" : ""}`]), [1, 2, 3, 4, 5])));
  },

  async versions() {
    const found = await get("versions", { before: here().before });
    replace(
      card(null, table(["version", "committed", "by", "records", "shards", "stored", "tags"], found.versions.map((each) => [
        each.expired ? el("span", { class: "quiet" }, `${each.version} (expired)`) : el("a", { href: address("overview", { version: each.version }) }, String(each.version)),
        moment(each.created_ms), `${each.operation}${each.restored_version ? ` of ${each.restored_version}` : ""}`, count(each.records), count(each.shards), size(each.stored_bytes), each.tags.map((name) => el("span", { class: "tag" }, name))]), [3, 4, 5])),
      found.earlier ? el("a", { href: address("versions", { before: found.versions[found.versions.length - 1].version }) }, "earlier versions") : null);
  },
};

function schemaTable(schema) {
  return folded(schema, "feature", (some) => table(["feature", "type", "about"], some.map((row) => [el("b", {}, row.name), el("code", {}, row.type), el("span", {},
    row.optional ? el("span", { class: "tag" }, "optional") : null,
    row.classes ? el("span", { class: "quiet" }, `${plural(row.classes.length, "class").replace(/classs$/, "classes")}: ${row.classes.slice(0, 12).join(", ")}${row.classes.length > 12 ? ", ..." : ""} `) : null,
    row.stored_name !== row.name ? el("span", { class: "quiet" }, `stored as ${row.stored_name} `) : null, [row.unit, row.description].filter(Boolean).join("; "))])));
}

function seenTable(seen) {
  if (!seen) return el("p", { class: "quiet" }, "No schema, and the first records are no Examples: they are shown as text or bytes.");
  return el("div", {}, el("p", { class: "quiet" }, `The first ${plural(seen.records, "record")} are tf.train.${seen.encoding === "sequence_example" ? "SequenceExample" : "Example"}s; a schema that fits so far:`),
    folded(seen.features, "feature", (some) => table(["feature", "type", "notes"], some.map((row) => [el("b", {}, row.name), el("code", {}, row.type || "-"), row.notes.join("; ")]))));
}

function shardFacts(found) {
  return el("div", {}, facts([["compression", found.compression.join(", ")], ["framing", found.framing.join(", ")], found.deleted_records ? ["deleted", plural(found.deleted_records, "record")] : null,
    found.adopted_shards ? ["adopted", plural(found.adopted_shards, "shard")] : null]), el("p", { class: "quiet small" }, "stored bytes of a shard"), histogramChart(found.stored_bytes, "", size));
}

function hexDump(hex) {
  const lines = [];
  for (let k = 0; k < hex.length; k += 32) {
    const pairs = hex.slice(k, k + 32).match(/../g);
    const text = pairs.map((pair) => { const code = parseInt(pair, 16); return code >= 32 && code < 127 ? String.fromCharCode(code) : "."; }).join("");
    lines.push(`${(k / 2).toString(16).padStart(6, "0")}  ${pairs.join(" ").padEnd(47)}  ${text}`);
  }
  return el("pre", { class: "hex mono", tabindex: 0 }, lines.join("\n"));
}

// A condition that this dataset takes.
function example() {
  const number = summary.schema.find((row) => isColumn(row.name) && /^u?(int|float)/.test(row.type)), text = summary.schema.find((row) => isColumn(row.name) && row.type === "text");
  const named = (row) => (/^[a-z_][a-z0-9_]*$/i.test(row.name) ? row.name : inSql(row.name));
  return number ? `${named(number)} = 3` : text ? `${named(text)} LIKE 'a%'` : "label = 3";
}

function searchForm() {
  const at = here();
  const field = (name, label, hint) => el("input", { type: "search", name, placeholder: hint, value: at[name] || "", "aria-label": label, title: label, id: `find-${name}` });
  const keys = Object.keys(summary.keys);
  const feature = keys.length > 1 ? el("select", { name: "feature", "aria-label": "feature of the key" }, keys.map((name) => el("option", { value: name, selected: name === at.feature }, name))) : null;
  const parts = [
    summary.schema ? field("where", "condition in SQL", `condition, such as ${example()}`) : null,
    (summary.schema || []).some((row) => row.type === "text") ? field("text", "text to look for", "text to look for") : null,
    keys.length ? field("key", `key, by ${keys.join(" or ")}`, `key (${keys[0]})`) : null];
  if (!parts.some(Boolean)) return null;
  return el("form", { class: "tools", role: "search", submit: (event) => { event.preventDefault(); search(Object.fromEntries(new FormData(event.target))); } },
    parts, feature, el("button", { class: "main" }, "filter"), ASKED.some((name) => at[name]) ? el("a", { href: address("records", state({ ...Object.fromEntries(ASKED.map((name) => [name, null])), start: null })) }, "show all") : null);
}

function columnPicker(every, names) {
  const choose = (event) => {
    event.preventDefault();
    const chosen = new FormData(event.target).getAll("column");
    go("records", state({ start: here().start, columns: chosen.length && chosen.length < every.length ? JSON.stringify(chosen) : chosen.length ? JSON.stringify(every) : null }));
  };
  const box = (name) => el("label", {}, el("input", { type: "checkbox", name: "column", value: name, checked: names.includes(name) }), " ", name || "value");
  const all = (event) => { for (const each of event.target.form.elements) if (each.name === "column") each.checked = event.target.checked; };
  return el("details", { class: "picker" }, el("summary", {}, `columns ${count(names.length)} of ${count(every.length)}`),
    el("form", { submit: choose }, el("label", {}, el("input", { type: "checkbox", checked: names.length === every.length, change: all }), " all"),
      el("div", { class: "choices", tabindex: 0, role: "group", "aria-label": "columns" }, every.map(box)), el("button", { class: "main" }, "show")));
}

function showPython(code) {
  const copy = async (event) => {
    try { await navigator.clipboard.writeText(code); event.target.textContent = "copied"; } catch { getSelection().selectAllChildren(place.querySelector("pre")); event.target.textContent = "selected: press Ctrl-C"; }
  };
  const place = document.getElementById("original");
  place.replaceChildren(el("pre", { class: "mono", tabindex: 0 }, code), el("button", { type: "button", class: "main", click: copy }, "copy"));
  document.getElementById("picture").showModal();
}

function jump(total, page) {
  const input = el("input", { type: "number", min: 0, max: Math.max(0, total - 1), placeholder: "position", "aria-label": "position", class: "jump" });
  return el("form", { class: "tools", submit: (event) => {
    event.preventDefault();
    if (input.value === "") return;
    const target = Number(input.value);
    if (page === "record") go("record", { position: target }); else go("records", state({ start: target }));
  } }, input, el("button", {}, "go"));
}

function show(place, error) {
  if (error.name !== "AbortError") place.replaceChildren(errorBox(error));
}

// ------------------------------------------------------------------------------------------ from an address to a page

function choices() {
  const at = here();
  const split = document.getElementById("split"), version = document.getElementById("version");
  const names = Object.keys(summary.splits), chosen = at.split || summary.shown_split;
  split.replaceChildren(...names.map((name) => el("option", { value: name, selected: name === chosen }, name)));
  split.parentElement.hidden = names.length < 2;
  const numbers = new Map();
  for (let n = summary.latest_version; n > Math.max(0, summary.latest_version - 20); n -= 1) numbers.set(String(n), String(n));
  numbers.set(String(summary.version), String(summary.version));
  for (const n of summary.expired_versions) if (n !== summary.version) numbers.delete(String(n));
  for (const [name, n] of Object.entries(summary.tags)) numbers.set(name, `${name} (${n})`);
  const now = at.version || String(summary.version);
  version.replaceChildren(...[...numbers].map(([value, text]) => el("option", { value, selected: value === now }, text)));
}

async function route() {
  if (running) running.abort();
  running = new AbortController();
  const mine = running;
  for (const made of blobs) URL.revokeObjectURL(made);
  blobs = [];
  pager = null;
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  const at = here();
  const tabs = document.getElementById("tabs");
  const current = at.page === "record" ? "records" : at.page;
  tabs.replaceChildren(...TABS.map(([name, title]) => el("a", { href: address(name), "aria-current": name === current ? "page" : null }, title)));
  document.body.dataset.ready = "";
  // A page begins at its top, below the header that stays; a list of records where it was left.
  if (shown !== location.hash) {
    if (shown !== null) tops.set(shown, scrollY);
    shown = location.hash;
  }
  const top = at.page === "records" ? tops.get(shown) || 0 : 0;
  try {
    if (summary === null || String(at.version || summary.version) !== String(summary.version) || (!at.version && summary.asked)) {
      summary = await get("summary", { version: at.version });
      summary.asked = at.version;
      document.getElementById("dataset").textContent = summary.url;
      document.getElementById("dataset").title = summary.url;
    }
    const title = (TABS.find(([name]) => name === current) || ["", "shardio"])[1];
    document.title = `${title} - ${summary.url.split("/").filter(Boolean).pop() || "dataset"} - shardio`;
    choices();
    if (!Object.hasOwn(pages, at.page)) throw new Refused({ error: "there is no such page" });
    await pages[at.page]();
  } catch (error) {
    if (mine === running && error.name !== "AbortError") replace(errorBox(error));
    if (error.name !== "AbortError" && !(error instanceof Refused)) console.error(error);
  }
  if (mine !== running) return;
  scrollTo(0, top);
  document.body.dataset.ready = "yes";
}

document.getElementById("split").addEventListener("change", (event) => go(here().page === "record" ? "records" : here().page, { split: event.target.value }));
document.getElementById("version").addEventListener("change", (event) => go(here().page === "record" ? "records" : here().page, { version: event.target.value }));
document.getElementById("keys").addEventListener("click", () => document.getElementById("help").showModal());
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
addEventListener("hashchange", route);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, dialog, audio")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const number = Number(event.key);
  if (number >= 1 && number <= TABS.length) go(TABS[number - 1][0]);
  else if (["ArrowRight", "j"].includes(event.key) && pager) pager.next();
  else if (["ArrowLeft", "k"].includes(event.key) && pager) pager.previous();
  else if (["ArrowDown", "ArrowUp"].includes(event.key)) {
    // From record to record; Enter opens the one that has the focus. Pages without records scroll.
    const links = [...main.querySelectorAll("tr.row td.key a, .gallery a")];
    if (!links.length) return;
    event.preventDefault();
    const now = links.findIndex((link) => (link.closest("tr") || link).contains(document.activeElement));
    links[now < 0 ? 0 : Math.min(links.length - 1, Math.max(0, now + (event.key === "ArrowDown" ? 1 : -1)))].focus();
  }
  else if (event.key === "Escape" && pager && pager.back) pager.back();
  else if (event.key === "?") document.getElementById("help").showModal();
  else if (event.key === "/") { event.preventDefault(); if (here().page !== "records") go("records"); setTimeout(() => (document.getElementById("find-where") || document.getElementById("find-key") || main).focus(), 50); }
  else if (event.key === "g") {
    event.preventDefault();
    const input = document.querySelector("input.jump");
    if (input) input.focus(); else { go("records"); }
  }
});
route();
