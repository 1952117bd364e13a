// All models, with what each does now; up to some thousands.
import {askJson} from "./api.js";
import * as changes from "./changes.js";
import {recently} from "./counts.js";
import {alertBox, h, say, setClass, setText} from "./dom.js";
import {NONE, bytes, count, duration, exact, plural, rate} from "./format.js";

// READY, LOADING, and UNAVAILABLE for all that does not answer.
export function stateOf(version) {
  if (version.state === "READY") return "ready";
  return version.state === "LOADING" ? "loading" : "unavailable";
}

export const kinds = {ready: "good", loading: "busy", unavailable: "bad"};

export function shapeOf(version) {
  if (version.collection) return `${plural(version.features, "feature")}`;
  if (version.num_rows === undefined) return NONE;
  return `${exact(version.num_rows)} × ${version.row_shape.join(" × ")}`;
}

export function formatOf(version) {
  if (version.collection) return "collection";
  if (version.datatype === undefined) return NONE;
  const kind = version.row_format === "plain" ? version.datatype : `${version.row_format} → ${version.datatype}`;
  return [kind, version.keyed && "keys", version.mapped && "mapped"].filter(Boolean).join(", ");
}

// One entry for each name: {name, main, versions}, the main one being the default version.
export function group(list) {
  const names = new Map();
  for (const version of list) {
    if (!names.has(version.name)) names.set(version.name, {name: version.name, main: version, versions: []});
    const entry = names.get(version.name);
    entry.versions.push(version);
    if (version.default) entry.main = version;
  }
  return [...names.values()];
}

// Returns the reason of the default version, or of a version that is loading or has failed; "": none.
function reasonOf(entry) {
  if (entry.main.reason) return entry.main.reason;
  const other = entry.versions.find((version) => version.state === "LOADING" || version.reason);
  return other ? `version ${other.version}: ${other.reason || "is being loaded"}` : "";
}

const columns = [
  {name: "Name", value: (e) => e.name},
  {name: "Version", value: (e) => Number(e.main.version), text: (e) => e.main.version +
    (e.versions.length > 1 ? ` of ${e.versions.length}` : "")},
  {name: "Shape", value: (e) => e.main.num_rows ?? e.main.features, text: (e) => shapeOf(e.main)},
  {name: "Format", value: (e) => formatOf(e.main), text: (e) => formatOf(e.main)},
  {name: "Memory", value: (e) => e.main.bytes, text: (e) => e.main.bytes ? bytes(e.main.bytes) : NONE, number: true},
  {name: "Requests", value: (e) => e.now?.perSecond ?? -1, text: (e) => rate(e.now?.perSecond), number: true},
  {name: "Rows", value: (e) => e.now?.rowsPerSecond ?? -1, text: (e) => rate(e.now?.rowsPerSecond), number: true},
  {name: "p99", value: (e) => e.now?.p99 ?? -1, text: (e) => duration(e.now?.p99), number: true},
  {name: "State", value: (e) => stateOf(e.main)},
];

function makeRow(entry) {
  const link = h("a", {href: `#/models/${encodeURIComponent(entry.name)}`}, entry.name);
  const texts = columns.slice(1, -1).map((column) =>
    h("td", {"data-label": column.name, role: "cell", class: column.number ? "number" : ""}));
  const state = h("span", {class: "state"}), reason = h("span", {class: "note reason"});
  const progress = h("progress", {hidden: true, max: 1, value: 0, "aria-label": `${entry.name} is being loaded`});
  const element = h("tr", {"data-model": entry.name, role: "row"},
    h("th", {scope: "row", role: "rowheader"}, link), texts, h("td", {"data-label": "State", role: "cell"}, state, progress, reason));
  return {element, texts, state, reason, progress};
}

function showRow(row, entry, loading) {
  const state = stateOf(entry.main);
  if (row.element.dataset.state !== state) row.element.dataset.state = state;
  row.texts.forEach((cell, i) => setText(cell, columns[i + 1].text(entry)));
  setText(row.state, state);
  setClass(row.state, `state ${kinds[state]}`);
  setText(row.reason, reasonOf(entry));
  const loads = loading && loading.name === entry.name;
  row.progress.hidden = !loads;
  if (loads) {
    row.progress.max = loading.total_bytes;
    row.progress.value = loading.done_bytes;
  }
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a ?? "").localeCompare(String(b ?? ""), "en", {numeric: true});
}

export function show(session) {
  const error = alertBox(), rows = new Map(), history = recently();
  let entries = [], sorted = {column: columns[0], down: false}, loading = null;
  const body = h("tbody", {role: "rowgroup"}), total = h("p", {class: "note", role: "status"});
  const search = h("input", {type: "search", name: "search", placeholder: "Part of a name", "aria-label": "Models whose name has",
    oninput: arrange});
  const state = h("select", {name: "state", "aria-label": "Models whose state is", onchange: arrange},
    h("option", {value: ""}, "Any state"),
    Object.keys(kinds).map((kind) => h("option", {value: kind}, kind)));
  const heads = columns.map((column) => {
    const button = h("button", {class: "sort", "aria-label": `Sort by ${column.name}`, onclick: () => {
      sorted = {column, down: sorted.column === column ? !sorted.down : Boolean(column.number)};
      arrange();
      say(`Sorted by ${column.name}.`);
    }}, column.name);
    return h("th", {scope: "col", class: column.number ? "number" : ""}, button);
  });
  const more = session.changes_models ? changes.loadForm(() => refresh()) : null;
  const element = h("div", {},
    h("h1", {tabindex: "-1"}, "Models"), error.element,
    h("div", {class: "bar"}, search, state, total),
    h("div", {class: "card scroll", tabindex: "0", role: "region", "aria-label": "Models"},
      h("table", {class: "models", role: "table"}, h("caption", {class: "unseen"}, "Models"), h("thead", {}, h("tr", {}, heads)), body)),
    more, session.changes_models ? null : h("p", {class: "note"}, changes.whyNot(session)));

  // Rows are moved only where their order is another one: what has the focus keeps it.
  function arrange() {
    const part = search.value.toLowerCase(), wanted = state.value;
    const visible = entries.filter((entry) => entry.name.toLowerCase().includes(part) &&
      (!wanted || stateOf(entry.main) === wanted));
    visible.sort((a, b) => compare(sorted.column.value(a), sorted.column.value(b)) * (sorted.down ? -1 : 1));
    const order = visible.map((entry) => rows.get(entry.name).element);
    if (order.length !== body.children.length || order.some((row, i) => body.children[i] !== row)) body.replaceChildren(...order);
    heads.forEach((head, i) => {
      if (columns[i] === sorted.column) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const bad = entries.filter((entry) => stateOf(entry.main) !== "ready").length;
    setText(total, `${visible.length === entries.length ? plural(entries.length, "model")
      : `${exact(visible.length)} of ${plural(entries.length, "model")}`}${bad ? `, ${exact(bad)} not ready` : ""}`);
  }

  async function refresh() {
    const answer = await askJson("v2/server/models");
    history.add(answer);
    loading = answer.loading;
    entries = group(answer.models);
    page.everyMs = entries.length > 500 ? 5000 : 2000;
    for (const entry of entries) {
      entry.now = history.of(entry.main, answer.bounds_ns);
      if (!rows.has(entry.name)) rows.set(entry.name, makeRow(entry));
      showRow(rows.get(entry.name), entry, loading);
    }
    arrange();
    body.setAttribute("data-models", count(entries.length));
  }

  const page = {title: "Models", element, refresh, everyMs: 2000, failed: (text) => error.show(text)};
  return page;
}
